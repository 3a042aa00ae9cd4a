// The CPU kernels of logits and top-k: validate, allocate, call.
#include "fan_in/fan_in_cpu_op.h"

namespace largeout {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <typename T, typename Id>
class FanInLogitsOp : public OpKernel {
 public:
  explicit FanInLogitsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& inputs = context->input(0);
    OP_REQUIRES_OK(context, CheckInputs(inputs));
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 1, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, use_bias_));
    OP_REQUIRES_OK(context, variables.Lock(false));
    OP_REQUIRES_OK(context, variables.Check(inputs.dim_size(1)));
    const FanInBatch batch(inputs.dim_size(0), inputs.dim_size(1));
    Tensor *logits, blocks;
    OP_REQUIRES_OK(context, context->allocate_output(0, {batch.size, variables.classes()}, &logits));
    OP_REQUIRES_OK(context, memory_.Take(context, batch.floats(), &blocks));
    ContextParallel parallel(context);
    LayOut(batch, inputs, Data<float>(&blocks), &parallel);
    OP_REQUIRES_OK(context, BadIndex(FanInLogits(variables.Layer<T, Id>(batch.inputs), batch,
                                                 Data<float>(blocks), Data<float>(logits), &parallel),
                                     batch.inputs));
  }

 private:
  bool use_bias_;
  KeptMemory memory_;
};

template <typename T, typename Id>
class FanInLogitsGradOp : public OpKernel {
 public:
  explicit FanInLogitsGradOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
    OP_REQUIRES_OK(context, context->GetAttr("input_gradient", &input_gradient_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &inputs = context->input(0), &d_logits = context->input(4);
    OP_REQUIRES_OK(context, CheckInputs(inputs));
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 1, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, use_bias_));
    OP_REQUIRES_OK(context, variables.Lock(false));
    OP_REQUIRES_OK(context, variables.Check(inputs.dim_size(1)));
    const FanInBatch batch(inputs.dim_size(0), inputs.dim_size(1));
    const int64_t classes = variables.classes(), fan_in = variables.fan_in();
    OP_REQUIRES_OK(context, CheckShape(d_logits, "d_logits", {batch.size, classes}));
    Tensor *d_inputs, *d_weights, *d_bias, blocks, scratch;
    OP_REQUIRES_OK(context,
                   context->allocate_output(
                       0, {input_gradient_ ? batch.size : 0, input_gradient_ ? batch.inputs : 0}, &d_inputs));
    OP_REQUIRES_OK(context, context->allocate_output(1, {classes, fan_in}, &d_weights));
    OP_REQUIRES_OK(context, context->allocate_output(2, {use_bias_ ? classes : 0}, &d_bias));
    OP_REQUIRES_OK(context, memory_.Take(context, batch.floats(), &blocks));
    OP_REQUIRES_OK(
        context,
        scratch_.Take(context, FanInBackwardScratch(classes, fan_in, batch, input_gradient_), &scratch));
    ContextParallel parallel(context);
    LayOut(batch, inputs, Data<float>(&blocks), &parallel);
    FanInGradients gradients;
    gradients.logits = Data<float>(d_logits);
    FanInStep<typename KernelType<T>::type> step;
    step.weights = Data<T>(d_weights);
    step.bias = use_bias_ ? Data<float>(d_bias) : nullptr;
    float* sums = Data<float>(&scratch);
    OP_REQUIRES_OK(context,
                   BadIndex(FanInBackward(variables.Layer<T, Id>(batch.inputs), batch, Data<float>(blocks),
                                          gradients, step, input_gradient_ ? sums : nullptr, sums, &parallel),
                            batch.inputs));
    if (input_gradient_) LayBack(batch, sums, d_inputs, &parallel);
  }

 private:
  bool use_bias_, input_gradient_;
  KeptMemory memory_, scratch_;
};

template <typename T, typename Id>
class FanInTopKOp : public OpKernel {
 public:
  explicit FanInTopKOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &inputs = context->input(0), &k_tensor = context->input(1);
    OP_REQUIRES_OK(context, CheckInputs(inputs));
    OP_REQUIRES_OK(context, CheckShape(k_tensor, "k", {}));
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 2, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, use_bias_));
    OP_REQUIRES_OK(context, variables.Lock(false));
    OP_REQUIRES_OK(context, variables.Check(inputs.dim_size(1)));
    const int64_t k = k_tensor.scalar<int32_t>()();
    OP_REQUIRES(context, k >= 0 && k <= variables.classes(),
                absl::InvalidArgumentError(absl::StrCat("`k` must be in [0, ", variables.classes(),
                                                        "], the number of classes. Received: k=", k)));
    const FanInBatch batch(inputs.dim_size(0), inputs.dim_size(1));
    Tensor *scores, *ids, blocks;
    OP_REQUIRES_OK(context, context->allocate_output(0, {batch.size, k}, &scores));
    OP_REQUIRES_OK(context, context->allocate_output(1, {batch.size, k}, &ids));
    OP_REQUIRES_OK(context, memory_.Take(context, batch.floats(), &blocks));
    ContextParallel parallel(context);
    LayOut(batch, inputs, Data<float>(&blocks), &parallel);
    const auto layer = variables.Layer<T, Id>(batch.inputs);
    const int64_t bad = ids->dtype() == tensorflow::DT_INT32
                            ? FanInTopK(layer, batch, Data<float>(blocks), k, Data<float>(scores),
                                        ids->flat<int32_t>().data(), &parallel)
                            : FanInTopK(layer, batch, Data<float>(blocks), k, Data<float>(scores),
                                        reinterpret_cast<int64_t*>(ids->data()), &parallel);
    OP_REQUIRES_OK(context, BadIndex(bad, batch.inputs));
  }

 private:
  bool use_bias_;
  KeptMemory memory_;
};

#define REGISTER_ONE(name, Kernel, T, Id)                                                                  \
  REGISTER_KERNEL_BUILDER(                                                                                 \
      Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("dtype").TypeConstraint<Id>("Tindices"), \
      Kernel<T, Id>)
#define REGISTER_ALL(T, Id)                                           \
  REGISTER_ONE("Largeout>FanInLogits", FanInLogitsOp, T, Id);         \
  REGISTER_ONE("Largeout>FanInLogitsGrad", FanInLogitsGradOp, T, Id); \
  REGISTER_ONE("Largeout>FanInTopK", FanInTopKOp, T, Id)
REGISTER_ALL(float, uint16_t);
REGISTER_ALL(float, int32_t);
REGISTER_ALL(Eigen::bfloat16, uint16_t);
REGISTER_ALL(Eigen::bfloat16, int32_t);

}  // namespace
}  // namespace largeout
