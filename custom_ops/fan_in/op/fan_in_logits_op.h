// The kernels of logits and top-k on any device: validate, allocate, call. Device: FanInCpu or FanInGpu.
#ifndef LARGEOUT_FAN_IN_FAN_IN_LOGITS_OP_H_
#define LARGEOUT_FAN_IN_FAN_IN_LOGITS_OP_H_

#include "fan_in/op/fan_in_op.h"

namespace largeout {

template <typename Device, typename T, typename Id>
class FanInLogitsOp : public GuardedOp {
 public:
  explicit FanInLogitsOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
    OP_REQUIRES_OK(context, context->GetAttr("late_errors", &late_errors_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& inputs = context->input(0);
    OP_REQUIRES_OK(context, CheckInputs(inputs));
    OpCall<typename Device::Call> call(context, &kept_, late_errors_ ? &late_ : nullptr);
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 1, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, use_bias_));
    OP_REQUIRES_OK(context, variables.Lock(&call));
    OP_REQUIRES_OK(context, variables.Check(inputs.dim_size(1)));
    const FanInBatch batch(inputs.dim_size(0), inputs.dim_size(1));
    tensorflow::Tensor* logits;
    OP_REQUIRES_OK(context, context->allocate_output(0, {batch.size, variables.classes()}, &logits));
    Device device(call.get(), batch);
    int64_t bad;
    OP_REQUIRES_OK(context, LayOut(call, inputs, &device));
    OP_REQUIRES_OK(
        context, call.Status(device.Logits(variables.Layer<T, Id>(batch.inputs), Data<float>(logits), &bad)));
    OP_REQUIRES_OK(context, BadIndex(bad, batch.inputs, kMayBeLate<typename Device::Call> && late_errors_));
  }

 private:
  bool use_bias_, late_errors_;
  KeptMemory kept_;
  typename Device::Call::Late late_;
};

template <typename Device, typename T, typename Id>
class FanInLogitsGradOp : public GuardedOp {
 public:
  explicit FanInLogitsGradOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
    OP_REQUIRES_OK(context, context->GetAttr("late_errors", &late_errors_));
    OP_REQUIRES_OK(context, context->GetAttr("input_gradient", &input_gradient_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor &inputs = context->input(0), &d_logits = context->input(4);
    OP_REQUIRES_OK(context, CheckInputs(inputs));
    OpCall<typename Device::Call> call(context, &kept_, late_errors_ ? &late_ : nullptr);
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 1, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, use_bias_));
    OP_REQUIRES_OK(context, variables.Lock(&call));
    OP_REQUIRES_OK(context, variables.Check(inputs.dim_size(1)));
    const FanInBatch batch(inputs.dim_size(0), inputs.dim_size(1));
    const int64_t classes = variables.classes();
    OP_REQUIRES_OK(context, CheckShape(d_logits, "d_logits", {batch.size, classes}));
    FanInGradients gradients;
    gradients.logits = Data<float>(d_logits);
    FanInStep<typename KernelType<T>::type> step;
    tensorflow::Tensor* d_inputs;
    OP_REQUIRES_OK(context, AllocateInputGradient(context, batch, input_gradient_, &d_inputs));
    OP_REQUIRES_OK(context, AllocateGradients<T>(context, variables, use_bias_, true, &step));
    Device device(call.get(), batch);
    OP_REQUIRES_OK(context, LayOut(call, inputs, &device));
    OP_REQUIRES_OK(context, Backward(call, &device, variables.Layer<T, Id>(batch.inputs), gradients, step,
                                     input_gradient_, d_inputs));
  }

 private:
  bool use_bias_, input_gradient_, late_errors_;
  KeptMemory kept_;
  typename Device::Call::Late late_;
};

template <typename Device, typename T, typename Id>
class FanInTopKOp : public GuardedOp {
 public:
  explicit FanInTopKOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor &inputs = context->input(0), &k_tensor = context->input(1);
    OP_REQUIRES_OK(context, CheckInputs(inputs));
    OP_REQUIRES_OK(context, CheckShape(k_tensor, "k", {}));
    OpCall<typename Device::Call> call(context, &kept_);
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 2, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, use_bias_));
    OP_REQUIRES_OK(context, variables.Lock(&call));
    OP_REQUIRES_OK(context, variables.Check(inputs.dim_size(1)));
    const int64_t k = k_tensor.scalar<int32_t>()();
    OP_REQUIRES(context, k >= 0 && k <= variables.classes(),
                absl::InvalidArgumentError(absl::StrCat("`k` must be in [0, ", variables.classes(),
                                                        "], the number of classes. Received: k=", k)));
    const FanInBatch batch(inputs.dim_size(0), inputs.dim_size(1));
    tensorflow::Tensor *scores, *ids;
    OP_REQUIRES_OK(context, context->allocate_output(0, {batch.size, k}, &scores));
    OP_REQUIRES_OK(context, context->allocate_output(1, {batch.size, k}, &ids));
    Device device(call.get(), batch);
    OP_REQUIRES_OK(context, LayOut(call, inputs, &device));
    const auto layer = variables.Layer<T, Id>(batch.inputs);
    int64_t bad;
    OP_REQUIRES_OK(context,
                   call.Status(ids->dtype() == tensorflow::DT_INT32
                                   ? device.TopK(layer, k, Data<float>(scores), Data<int32_t>(ids), &bad)
                                   : device.TopK(layer, k, Data<float>(scores),
                                                 static_cast<int64_t*>(ids->data()), &bad)));
    OP_REQUIRES_OK(context, BadIndex(bad, batch.inputs));
  }

 private:
  bool use_bias_;
  KeptMemory kept_;
};

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_LOGITS_OP_H_
