// What the ops of fan_in call on CPUs: the kernels of fan_in.h, in memory that is kept from one step to the
// next.
#ifndef LARGEOUT_FAN_IN_FAN_IN_CPU_OP_H_
#define LARGEOUT_FAN_IN_FAN_IN_CPU_OP_H_

#include "common/huge_pages.h"
#include "fan_in/op/fan_in_op.h"

namespace largeout {

// Scratch memory of an op. New memory from the system in every step would cost a page fault every 4 KB: the
// kernel keeps that of its last step, and hands it out again once nobody else holds it. Large ones are not
// kept.
class KeptMemory {
 public:
  absl::Status Take(tensorflow::OpKernelContext* context, int64_t floats, tensorflow::Tensor* out) {
    constexpr int64_t kKeptFloats = int64_t{64} << 20;
    if (floats > kKeptFloats) return New(context, floats, out);
    tensorflow::mutex_lock lock(mu_);
    if (!kept_.RefCountIsOne() || kept_.NumElements() < floats) {
      kept_ = tensorflow::Tensor();
      TF_RETURN_IF_ERROR(New(context, floats, &kept_));
    }
    *out = kept_;
    return absl::OkStatus();
  }

 private:
  static absl::Status New(tensorflow::OpKernelContext* context, int64_t floats, tensorflow::Tensor* out) {
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_FLOAT, {std::max<int64_t>(floats, 1)}, out));
    AdviseHugePages(out->data(), out->TotalBytes());
    return absl::OkStatus();
  }

  tensorflow::mutex mu_;
  tensorflow::Tensor kept_ TF_GUARDED_BY(mu_);
};

// One call of an op on its batch.
class FanInCpu {
 public:
  struct Memory {
    KeptMemory blocks, scratch;
  };

  FanInCpu(tensorflow::OpKernelContext* context, const FanInBatch& batch, Memory* memory)
      : context_(context), batch_(batch), memory_(memory), parallel_(context) {}

  template <typename T>
  static absl::Status OwnMemory(tensorflow::OpKernelContext* context, tensorflow::Var* variable) {
    return tensorflow::EnsureSparseVariableAccess<Eigen::ThreadPoolDevice, T>(context, variable);
  }

  absl::Status LayOut(const tensorflow::Tensor& inputs) {
    TF_RETURN_IF_ERROR(memory_->blocks.Take(context_, batch_.floats(), &blocks_));
    if (inputs.dtype() == tensorflow::DT_FLOAT) {
      FanInLayOut(batch_, Data<float>(inputs), Data<float>(&blocks_), &parallel_);
    } else {
      FanInLayOut(batch_, Data<Eigen::bfloat16>(inputs), Data<float>(&blocks_), &parallel_);
    }
    return absl::OkStatus();
  }

  // *bad: see BadIndex.
  template <typename T, typename Id>
  absl::Status Logits(const FanInLayer<T, Id>& layer, float* logits, int64_t* bad) {
    AdviseHugePages(logits, batch_.size * layer.classes * sizeof(float));
    *bad = FanInLogits(layer, batch_, blocks(), logits, &parallel_);
    return absl::OkStatus();
  }

  template <typename T, typename Id, typename Out>
  absl::Status TopK(const FanInLayer<T, Id>& layer, int64_t k, float* scores, Out* rows, int64_t* bad) {
    *bad = FanInTopK(layer, batch_, blocks(), k, scores, rows, &parallel_);
    return absl::OkStatus();
  }

  template <typename T, typename Id>
  absl::Status LossForward(const FanInLayer<T, Id>& layer, FanInLoss loss, const FanInPositives& positives,
                           const FanInLossOutputs& out, int64_t* bad) {
    *bad = FanInLossForward(layer, batch_, blocks(), loss, positives, out, &parallel_);
    return absl::OkStatus();
  }

  // d_inputs: null: no gradient of the inputs.
  template <typename T, typename Id>
  absl::Status Backward(const FanInLayer<T, Id>& layer, const FanInGradients& gradients,
                        const FanInStep<T>& step, tensorflow::Tensor* d_inputs, int64_t* bad) {
    tensorflow::Tensor scratch;
    TF_RETURN_IF_ERROR(memory_->scratch.Take(
        context_, FanInBackwardScratch(layer.classes, layer.fan_in, batch_, d_inputs != nullptr), &scratch));
    float* sums = Data<float>(&scratch);
    *bad = FanInBackward(layer, batch_, blocks(), gradients, step, d_inputs == nullptr ? nullptr : sums, sums,
                         &parallel_);
    if (d_inputs == nullptr) return absl::OkStatus();
    if (d_inputs->dtype() == tensorflow::DT_FLOAT) {
      FanInLayBack(batch_, sums, Data<float>(d_inputs), &parallel_);
    } else {
      FanInLayBack(batch_, sums, Data<Eigen::bfloat16>(d_inputs), &parallel_);
    }
    return absl::OkStatus();
  }

  template <typename T, typename Id>
  absl::Status CandidateGradient(const FanInLayer<T, Id>& layer, const FanInGradients& gradients,
                                 const int32_t* candidates, int64_t first, int64_t rows, int64_t count,
                                 float* d_weights, int64_t* bad, int64_t* bad_candidate) {
    *bad = FanInCandidateGradient(layer, batch_, blocks(), gradients, candidates, first, rows, count,
                                  d_weights, bad_candidate, &parallel_);
    return absl::OkStatus();
  }

 private:
  const float* blocks() const { return Data<float>(blocks_); }

  tensorflow::OpKernelContext* context_;
  const FanInBatch batch_;
  Memory* memory_;
  ContextParallel parallel_;
  tensorflow::Tensor blocks_;
};

// Kernel<FanInCpu, T, Id> as the CPU kernel of `name`, for all types.
#define LARGEOUT_FAN_IN_CPU_TYPES(name, Kernel, T, Id)                                                     \
  REGISTER_KERNEL_BUILDER(                                                                                 \
      Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("dtype").TypeConstraint<Id>("Tindices"), \
      Kernel<FanInCpu, T, Id>)
#define LARGEOUT_FAN_IN_CPU(name, Kernel)                             \
  LARGEOUT_FAN_IN_CPU_TYPES(name, Kernel, float, uint16_t);           \
  LARGEOUT_FAN_IN_CPU_TYPES(name, Kernel, float, uint32_t);           \
  LARGEOUT_FAN_IN_CPU_TYPES(name, Kernel, Eigen::bfloat16, uint16_t); \
  LARGEOUT_FAN_IN_CPU_TYPES(name, Kernel, Eigen::bfloat16, uint32_t)

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_CPU_OP_H_
