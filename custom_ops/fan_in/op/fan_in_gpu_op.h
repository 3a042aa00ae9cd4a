// What the ops of fan_in call on GPUs: the kernels of fan_in_cuda.h. Labels are sorted on the host, where
// they lie.
#ifndef LARGEOUT_FAN_IN_FAN_IN_GPU_OP_H_
#define LARGEOUT_FAN_IN_FAN_IN_GPU_OP_H_

#include "common/op/tf_gpu_op.h"
#include "fan_in/cuda/fan_in_cuda.h"
#include "fan_in/op/fan_in_op.h"

namespace largeout {

// One call of an op on its batch; the twin of FanInCpu.
class FanInGpu {
 public:
  struct Memory {};  // TensorFlow keeps memory of the device

  FanInGpu(tensorflow::OpKernelContext* context, const FanInBatch& batch, Memory*)
      : context_(context), batch_(batch), stream_(ContextStream(context)) {}

  template <typename T>
  static absl::Status OwnMemory(tensorflow::OpKernelContext* context, tensorflow::Var* variable) {
    return largeout::OwnMemory(context, variable);
  }

  absl::Status LayOut(const tensorflow::Tensor& inputs) {
    TF_RETURN_IF_ERROR(GpuWorkspace(context_, batch_.floats() * sizeof(float), &blocks_));
    return GpuStatus(inputs.dtype() == tensorflow::DT_FLOAT
                         ? FanInLayOutCuda(batch_, Data<float>(inputs), blocks(), stream_)
                         : FanInLayOutCuda(batch_, Data<Eigen::bfloat16>(inputs), blocks(), stream_));
  }

  // *bad: see BadIndex.
  template <typename T, typename Id>
  absl::Status Logits(const FanInLayer<T, Id>& layer, float* logits, int64_t* bad) {
    TF_RETURN_IF_ERROR(Workspace(kFanInLogitsWorkspaceCuda));
    return GpuStatus(FanInLogitsCuda(layer, batch_, blocks(), logits, workspace_.data(), stream_, bad));
  }

  template <typename T, typename Id, typename Out>
  absl::Status TopK(const FanInLayer<T, Id>& layer, int64_t k, float* scores, Out* rows, int64_t* bad) {
    TF_RETURN_IF_ERROR(Workspace(FanInTopKWorkspaceCuda(layer.classes, batch_, k)));
    return GpuStatus(
        FanInTopKCuda(layer, batch_, blocks(), k, scores, rows, workspace_.data(), stream_, bad));
  }

  template <typename T, typename Id>
  absl::Status LossForward(const FanInLayer<T, Id>& layer, FanInLoss loss, const FanInPositives& positives,
                           const FanInLossOutputs& out, int64_t* bad) {
    FanInPositivesCuda on_gpu;
    TF_RETURN_IF_ERROR(ToGpu(positives, &on_gpu));
    TF_RETURN_IF_ERROR(Workspace(FanInLossWorkspaceCuda(layer.classes, batch_)));
    return GpuStatus(
        FanInLossForwardCuda(layer, batch_, blocks(), loss, on_gpu, out, workspace_.data(), stream_, bad));
  }

  // d_inputs: null: no gradient of the inputs.
  template <typename T, typename Id>
  absl::Status Backward(const FanInLayer<T, Id>& layer, const FanInGradients& gradients,
                        const FanInStep<T>& step, tensorflow::Tensor* d_inputs, int64_t* bad) {
    FanInGradientsCuda on_gpu;
    TF_RETURN_IF_ERROR(ToGpu(gradients, &on_gpu));
    const bool wanted = d_inputs != nullptr;
    TF_RETURN_IF_ERROR(Workspace(FanInBackwardWorkspaceCuda(layer.classes, layer.fan_in, batch_, wanted)));
    float* d_blocks;
    TF_RETURN_IF_ERROR(
        GpuStatus(FanInBackwardCuda(layer, batch_, blocks(), on_gpu, step, wanted ? &d_blocks : nullptr,
                                    workspace_.data(), stream_, bad)));
    if (!wanted) return absl::OkStatus();
    return GpuStatus(d_inputs->dtype() == tensorflow::DT_FLOAT
                         ? FanInLayBackCuda(batch_, d_blocks, Data<float>(d_inputs), stream_)
                         : FanInLayBackCuda(batch_, d_blocks, Data<Eigen::bfloat16>(d_inputs), stream_));
  }

  template <typename T, typename Id>
  absl::Status CandidateGradient(const FanInLayer<T, Id>& layer, const FanInGradients& gradients,
                                 const int32_t* candidates, int64_t first, int64_t rows, int64_t count,
                                 float* d_weights, int64_t* bad, int64_t* bad_candidate) {
    FanInGradientsCuda on_gpu;
    TF_RETURN_IF_ERROR(ToGpu(gradients, &on_gpu));
    TF_RETURN_IF_ERROR(Workspace(FanInBackwardWorkspaceCuda(rows, layer.fan_in, batch_, false)));
    return GpuStatus(FanInCandidateGradientCuda(layer, batch_, blocks(), on_gpu, candidates, first, rows,
                                                count, d_weights, workspace_.data(), stream_, bad,
                                                bad_candidate));
  }

 private:
  float* blocks() const { return static_cast<float*>(blocks_.data()); }

  absl::Status Workspace(int64_t bytes) { return GpuWorkspace(context_, bytes, &workspace_); }

  absl::Status ToGpu(const FanInPositives& from, FanInPositivesCuda* to) {
    const int64_t sorted = from.sorted.size() * sizeof(FanInPositive),
                  starts = from.block_start.size() * sizeof(int64_t);
    TF_RETURN_IF_ERROR(GpuWorkspace(context_, sorted, &sorted_));
    TF_RETURN_IF_ERROR(GpuWorkspace(context_, starts, &starts_));
    TF_RETURN_IF_ERROR(GpuStatus(CopyToDeviceCuda(from.sorted.data(), sorted, sorted_.data(), stream_)));
    TF_RETURN_IF_ERROR(GpuStatus(CopyToDeviceCuda(from.block_start.data(), starts, starts_.data(), stream_)));
    to->sorted = static_cast<const FanInPositive*>(sorted_.data());
    to->block_start = static_cast<const int64_t*>(starts_.data());
    return absl::OkStatus();
  }

  absl::Status ToGpu(const FanInGradients& from, FanInGradientsCuda* to) {
    to->logits = from.logits, to->loss = from.loss, to->grad_loss = from.grad_loss;
    to->lse = from.lse, to->mass = from.mass, to->active = from.active;
    return from.positives == nullptr ? absl::OkStatus() : ToGpu(*from.positives, &to->positives);
  }

  tensorflow::OpKernelContext* context_;
  const FanInBatch batch_;
  const GpuStream stream_;
  tensorflow::Tensor blocks_, workspace_, sorted_, starts_;
};

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_GPU_OP_H_
