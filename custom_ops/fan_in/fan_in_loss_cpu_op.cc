// The CPU kernels of the losses, their gradients and the fused step: validate, allocate, call.
#include "fan_in/fan_in_cpu_op.h"

namespace largeout {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <typename T, typename Id>
class FanInLossOp : public FanInLossOpBase {
 public:
  using FanInLossOpBase::FanInLossOpBase;

  void Compute(OpKernelContext* context) override {
    const FanInLossInputs in(context);
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 5, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, use_bias_));
    const FanInBatch batch = BatchOf(in.inputs);
    ContextParallel parallel(context);
    FanInPositives positives;
    Tensor blocks, *loss, *lse, *mass, *active;
    OP_REQUIRES_OK(context, Open(context, &variables, in, false, 0, batch, &parallel, &positives, &blocks));
    const bool softmax = loss_ == FanInLoss::kSoftmax, hinge = loss_ == FanInLoss::kSquaredHinge;
    OP_REQUIRES_OK(context, context->allocate_output(0, {batch.size}, &loss));
    OP_REQUIRES_OK(context, context->allocate_output(1, {softmax ? batch.size : 0}, &lse));
    OP_REQUIRES_OK(context, context->allocate_output(2, {softmax ? batch.size : 0}, &mass));
    OP_REQUIRES_OK(context, context->allocate_output(
                                3, {hinge ? FanInActiveBytes(batch, variables.classes()) : 0}, &active));
    OP_REQUIRES_OK(context, BadIndex(FanInLossForward(variables.Layer<T, Id>(batch.inputs), batch,
                                                      Data<float>(blocks), loss_, positives,
                                                      {Data<float>(loss), Data<float>(lse), Data<float>(mass),
                                                       active->flat<uint8_t>().data()},
                                                      &parallel),
                                     batch.inputs));
  }
};

template <typename T, typename Id>
class FanInLossGradOp : public FanInLossOpBase {
 public:
  explicit FanInLossGradOp(OpKernelConstruction* context) : FanInLossOpBase(context) {
    OP_REQUIRES_OK(context, context->GetAttr("input_gradient", &input_gradient_));
  }

  void Compute(OpKernelContext* context) override {
    const FanInLossInputs in(context);
    const FanInSaved saved(context, 8);
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 5, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, use_bias_));
    const FanInBatch batch = BatchOf(in.inputs);
    ContextParallel parallel(context);
    FanInPositives positives;
    Tensor blocks, scratch, *d_inputs, *d_weights, *d_bias;
    OP_REQUIRES_OK(context, Open(context, &variables, in, false, 0, batch, &parallel, &positives, &blocks));
    const int64_t classes = variables.classes(), fan_in = variables.fan_in();
    OP_REQUIRES_OK(context, saved.Check(batch, loss_, classes));
    OP_REQUIRES_OK(context,
                   context->allocate_output(
                       0, {input_gradient_ ? batch.size : 0, input_gradient_ ? batch.inputs : 0}, &d_inputs));
    OP_REQUIRES_OK(context, context->allocate_output(1, {classes, fan_in}, &d_weights));
    OP_REQUIRES_OK(context, context->allocate_output(2, {use_bias_ ? classes : 0}, &d_bias));
    OP_REQUIRES_OK(
        context,
        scratch_.Take(context, FanInBackwardScratch(classes, fan_in, batch, input_gradient_), &scratch));
    FanInStep<typename KernelType<T>::type> step;
    step.weights = Data<T>(d_weights);
    step.bias = use_bias_ ? Data<float>(d_bias) : nullptr;
    float* sums = Data<float>(&scratch);
    OP_REQUIRES_OK(context, BadIndex(FanInBackward(variables.Layer<T, Id>(batch.inputs), batch,
                                                   Data<float>(blocks), Gradients(saved, positives), step,
                                                   input_gradient_ ? sums : nullptr, sums, &parallel),
                                     batch.inputs));
    if (input_gradient_) LayBack(batch, sums, d_inputs, &parallel);
  }

 private:
  bool input_gradient_;
  KeptMemory scratch_;
};

template <typename T, typename Id>
class FanInStepOp : public FanInLossOpBase {
 public:
  explicit FanInStepOp(OpKernelConstruction* context) : FanInLossOpBase(context) {
    std::string rule;
    int slots;
    OP_REQUIRES_OK(context, context->GetAttr("input_gradient", &input_gradient_));
    OP_REQUIRES_OK(context, context->GetAttr("rule", &rule));
    OP_REQUIRES_OK(context, context->GetAttr("N", &slots));
    OP_REQUIRES(context, FindFanInRule(rule.c_str(), &rule_),
                absl::InvalidArgumentError(absl::StrCat("`rule` must be a known rule. Received: ", rule)));
    OP_REQUIRES(context, slots == info().slots * (use_bias_ ? 2 : 1),
                absl::InvalidArgumentError(absl::StrCat("`slots` of rule `", rule, "` must be ",
                                                        info().slots * (use_bias_ ? 2 : 1),
                                                        " variables. Received: ", slots)));
  }

  void Compute(OpKernelContext* context) override {
    using Device = Eigen::ThreadPoolDevice;
    const FanInLossInputs in(context);
    const FanInSaved saved(context, 8);
    const int slots = info().slots * (use_bias_ ? 2 : 1);
    const Tensor &hyper = context->input(12 + slots), &seed = context->input(13 + slots);
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 5, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, use_bias_, 12, slots));
    // From here on dense reads of these variables copy, so that none of them can see an update half done.
    for (tensorflow::Var* variable : variables.updated()) {
      OP_REQUIRES_OK(context, variable == variables.weights_variable()
                                  ? tensorflow::EnsureSparseVariableAccess<Device, T>(context, variable)
                                  : tensorflow::EnsureSparseVariableAccess<Device, float>(context, variable));
    }
    const FanInBatch batch = BatchOf(in.inputs);
    ContextParallel parallel(context);
    FanInPositives positives;
    Tensor blocks, scratch, *d_inputs;
    OP_REQUIRES_OK(context,
                   Open(context, &variables, in, true, info().slots, batch, &parallel, &positives, &blocks));
    const int64_t classes = variables.classes(), fan_in = variables.fan_in();
    OP_REQUIRES_OK(context, saved.Check(batch, loss_, classes));
    OP_REQUIRES_OK(context, CheckShape(hyper, "hyper", {info().hyper}));
    OP_REQUIRES_OK(context, CheckShape(seed, "seed", {2}));
    OP_REQUIRES_OK(context,
                   context->allocate_output(
                       0, {input_gradient_ ? batch.size : 0, input_gradient_ ? batch.inputs : 0}, &d_inputs));
    OP_REQUIRES_OK(
        context,
        scratch_.Take(context, FanInBackwardScratch(classes, fan_in, batch, input_gradient_), &scratch));
    FanInStep<typename KernelType<T>::type> step;
    step.rule = rule_;
    step.weights = Data<T>(variables.weights_variable()->tensor());
    step.bias = use_bias_ ? Data<float>(variables.bias_variable()->tensor()) : nullptr;
    for (int i = 0; i < info().slots; ++i) {
      step.slots[i] = Data<float>(variables.slot(i)->tensor());
      if (use_bias_) step.bias_slots[i] = Data<float>(variables.slot(info().slots + i)->tensor());
    }
    step.hyper = Data<float>(hyper);
    step.key = FanInKey(seed.vec<int64_t>()(0), seed.vec<int64_t>()(1));
    step.first_class = in.first_class();
    float* sums = Data<float>(&scratch);
    OP_REQUIRES_OK(context, BadIndex(FanInBackward(variables.Layer<T, Id>(batch.inputs), batch,
                                                   Data<float>(blocks), Gradients(saved, positives), step,
                                                   input_gradient_ ? sums : nullptr, sums, &parallel),
                                     batch.inputs));
    if (input_gradient_) LayBack(batch, sums, d_inputs, &parallel);
  }

 private:
  const FanInRuleInfo& info() const { return kFanInRuleInfo[static_cast<int>(rule_)]; }

  bool input_gradient_;
  FanInRule rule_;
  KeptMemory scratch_;
};

#define REGISTER_ONE(name, Kernel, T, Id)                                                                  \
  REGISTER_KERNEL_BUILDER(                                                                                 \
      Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("dtype").TypeConstraint<Id>("Tindices"), \
      Kernel<T, Id>)
#define REGISTER_ALL(T, Id)                                       \
  REGISTER_ONE("Largeout>FanInLoss", FanInLossOp, T, Id);         \
  REGISTER_ONE("Largeout>FanInLossGrad", FanInLossGradOp, T, Id); \
  REGISTER_ONE("Largeout>FanInStep", FanInStepOp, T, Id)
REGISTER_ALL(float, uint16_t);
REGISTER_ALL(float, int32_t);
REGISTER_ALL(Eigen::bfloat16, uint16_t);
REGISTER_ALL(Eigen::bfloat16, int32_t);

}  // namespace
}  // namespace largeout
