// What the CPU kernels of fan_in share: the batch laid out, and memory that is kept from one step to the
// next.
#ifndef LARGEOUT_FAN_IN_FAN_IN_CPU_OP_H_
#define LARGEOUT_FAN_IN_FAN_IN_CPU_OP_H_

#include <string>

#include "common/huge_pages.h"
#include "fan_in/fan_in_op.h"

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

inline void LayOut(const FanInBatch& batch, const tensorflow::Tensor& inputs, float* blocks,
                   Parallel* parallel) {
  if (inputs.dtype() == tensorflow::DT_FLOAT)
    return FanInLayOut(batch, Data<float>(inputs), blocks, parallel);
  FanInLayOut(batch, Data<Eigen::bfloat16>(inputs), blocks, parallel);
}

inline void LayBack(const FanInBatch& batch, const float* blocks, tensorflow::Tensor* d_inputs,
                    Parallel* parallel) {
  if (d_inputs->dtype() == tensorflow::DT_FLOAT)
    return FanInLayBack(batch, blocks, Data<float>(d_inputs), parallel);
  FanInLayBack(batch, blocks, Data<Eigen::bfloat16>(d_inputs), parallel);
}

// The kernels of a loss.
class FanInLossOpBase : public tensorflow::OpKernel {
 public:
  explicit FanInLossOpBase(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    std::string loss;
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
    OP_REQUIRES_OK(context, context->GetAttr("loss", &loss));
    OP_REQUIRES(context, FindFanInLoss(loss.c_str(), &loss_),
                absl::InvalidArgumentError(absl::StrCat("`loss` must be a known loss. Received: ", loss)));
  }

 protected:
  // What every kernel here begins with, once its variables are found: locks, checks, labels and the batch
  // laid out.
  absl::Status Open(tensorflow::OpKernelContext* context, FanInVariables* variables,
                    const FanInLossInputs& in, bool update, int of_weights, const FanInBatch& batch,
                    Parallel* parallel, FanInPositives* positives, tensorflow::Tensor* blocks) {
    TF_RETURN_IF_ERROR(variables->Lock(update));
    TF_RETURN_IF_ERROR(CheckInputs(in.inputs));
    TF_RETURN_IF_ERROR(variables->Check(batch.inputs, of_weights));
    TF_RETURN_IF_ERROR(in.Check(variables->classes()));
    TF_RETURN_IF_ERROR(in.Sort(batch, variables->classes(), positives));
    TF_RETURN_IF_ERROR(memory_.Take(context, batch.floats(), blocks));
    LayOut(batch, in.inputs, Data<float>(blocks), parallel);
    return absl::OkStatus();
  }

  static FanInBatch BatchOf(const tensorflow::Tensor& inputs) {
    return inputs.dims() == 2 ? FanInBatch(inputs.dim_size(0), inputs.dim_size(1)) : FanInBatch(0, 0);
  }

  FanInGradients Gradients(const FanInSaved& saved, const FanInPositives& positives) const {
    FanInGradients gradients;
    gradients.loss = loss_, gradients.positives = &positives;
    gradients.grad_loss = Data<float>(saved.grad_loss), gradients.lse = Data<float>(saved.lse);
    gradients.mass = Data<float>(saved.mass);
    gradients.active = loss_ == FanInLoss::kSquaredHinge ? saved.active.flat<uint8_t>().data() : nullptr;
    return gradients;
  }

  bool use_bias_;
  FanInLoss loss_;
  KeptMemory memory_;
};

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_CPU_OP_H_
