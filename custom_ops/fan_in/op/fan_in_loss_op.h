// The kernels of the losses, their gradients and the fused step on any device: validate, allocate, call.
// Device: FanInCpu or FanInGpu.
#ifndef LARGEOUT_FAN_IN_FAN_IN_LOSS_OP_H_
#define LARGEOUT_FAN_IN_FAN_IN_LOSS_OP_H_

#include <string>

#include "fan_in/op/fan_in_op.h"

namespace largeout {

template <typename Device>
class FanInLossOpBase : public GuardedOp {
 public:
  explicit FanInLossOpBase(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    std::string loss;
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
    OP_REQUIRES_OK(context, context->GetAttr("loss", &loss));
    if (context->HasAttr("late_errors"))
      OP_REQUIRES_OK(context, context->GetAttr("late_errors", &late_errors_));
    OP_REQUIRES(context, FindFanInLoss(loss.c_str(), &loss_),
                absl::InvalidArgumentError(absl::StrCat("`loss` must be a known loss. Received: ", loss)));
  }

 protected:
  // What every kernel here begins with, once its variables are found: locks, checks, labels.
  absl::Status Open(OpCall<typename Device::Call>* call, FanInVariables* variables, const FanInLossInputs& in,
                    int of_weights, const FanInBatch& batch, FanInPositives* positives) const {
    TF_RETURN_IF_ERROR(variables->Lock(call));
    TF_RETURN_IF_ERROR(CheckInputs(in.inputs));
    TF_RETURN_IF_ERROR(variables->Check(batch.inputs, of_weights));
    TF_RETURN_IF_ERROR(in.Check(variables->classes()));
    return in.Sort(batch, variables->classes(), positives);
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
  typename Device::Call::Late* late() { return late_errors_ ? &late_ : nullptr; }

  bool late_errors_ = false;
  FanInLoss loss_;
  KeptMemory kept_;
  typename Device::Call::Late late_;
};

template <typename Device, typename T, typename Id>
class FanInLossOp : public FanInLossOpBase<Device> {
 public:
  using FanInLossOpBase<Device>::FanInLossOpBase;

  void Run(tensorflow::OpKernelContext* context) override {
    const FanInLossInputs in(context);
    OpCall<typename Device::Call> call(context, &this->kept_, this->late());
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 5, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, this->use_bias_));
    const FanInBatch batch = this->BatchOf(in.inputs);
    FanInPositives positives;
    OP_REQUIRES_OK(context, this->Open(&call, &variables, in, 0, batch, &positives));
    const bool softmax = this->loss_ == FanInLoss::kSoftmax, hinge = this->loss_ == FanInLoss::kSquaredHinge;
    tensorflow::Tensor *loss, *lse, *mass, *active;
    OP_REQUIRES_OK(context, context->allocate_output(0, {batch.size}, &loss));
    OP_REQUIRES_OK(context, context->allocate_output(1, {softmax ? batch.size : 0}, &lse));
    OP_REQUIRES_OK(context, context->allocate_output(2, {softmax ? batch.size : 0}, &mass));
    OP_REQUIRES_OK(context, context->allocate_output(
                                3, {hinge ? FanInActiveBytes(batch, variables.classes()) : 0}, &active));
    Device device(call.get(), batch);
    int64_t bad;
    OP_REQUIRES_OK(context, LayOut(call, in.inputs, &device));
    OP_REQUIRES_OK(
        context,
        call.Status(device.LossForward(
            variables.Layer<T, Id>(batch.inputs), this->loss_, positives,
            {Data<float>(loss), Data<float>(lse), Data<float>(mass), active->flat<uint8_t>().data()}, &bad)));
    OP_REQUIRES_OK(context,
                   BadIndex(bad, batch.inputs, kMayBeLate<typename Device::Call> && this->late_errors_));
  }
};

template <typename Device, typename T, typename Id>
class FanInLossGradOp : public FanInLossOpBase<Device> {
 public:
  explicit FanInLossGradOp(tensorflow::OpKernelConstruction* context) : FanInLossOpBase<Device>(context) {
    OP_REQUIRES_OK(context, context->GetAttr("input_gradient", &input_gradient_));
    OP_REQUIRES_OK(context, context->GetAttr("weight_gradient", &weight_gradient_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const FanInLossInputs in(context);
    const FanInSaved saved(context, 8);
    OpCall<typename Device::Call> call(context, &this->kept_, this->late());
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 5, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, this->use_bias_));
    const FanInBatch batch = this->BatchOf(in.inputs);
    FanInPositives positives;
    OP_REQUIRES_OK(context, this->Open(&call, &variables, in, 0, batch, &positives));
    OP_REQUIRES_OK(context, saved.Check(batch, this->loss_, variables.classes()));
    FanInStep<typename KernelType<T>::type> step;
    tensorflow::Tensor* d_inputs;
    OP_REQUIRES_OK(context, AllocateInputGradient(context, batch, input_gradient_, &d_inputs));
    OP_REQUIRES_OK(context,
                   AllocateGradients<T>(context, variables, this->use_bias_, weight_gradient_, &step));
    Device device(call.get(), batch);
    OP_REQUIRES_OK(context, LayOut(call, in.inputs, &device));
    OP_REQUIRES_OK(context, Backward(call, &device, variables.Layer<T, Id>(batch.inputs),
                                     this->Gradients(saved, positives), step, input_gradient_, d_inputs));
  }

 private:
  bool input_gradient_, weight_gradient_;
};

template <typename Device, typename T, typename Id>
class FanInStepOp : public FanInLossOpBase<Device> {
 public:
  explicit FanInStepOp(tensorflow::OpKernelConstruction* context) : FanInLossOpBase<Device>(context) {
    std::string rule;
    int slots;
    OP_REQUIRES_OK(context, context->GetAttr("input_gradient", &input_gradient_));
    OP_REQUIRES_OK(context, context->GetAttr("rule", &rule));
    OP_REQUIRES_OK(context, context->GetAttr("N", &slots));
    OP_REQUIRES(context, FindFanInRule(rule.c_str(), &rule_),
                absl::InvalidArgumentError(absl::StrCat("`rule` must be a known rule. Received: ", rule)));
    OP_REQUIRES(context, slots == all_slots(),
                absl::InvalidArgumentError(absl::StrCat("`slots` of rule `", rule, "` must be ", all_slots(),
                                                        " variables. Received: ", slots)));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const FanInLossInputs in(context);
    const FanInSaved saved(context, 8);
    const tensorflow::Tensor &hyper = context->input(12 + all_slots()),
                             &seed = context->input(13 + all_slots());
    OpCall<typename Device::Call> call(context, &this->kept_, this->late());
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 5, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, this->use_bias_,
                                           FanInVariables::kWeights, 12, all_slots()));
    const FanInBatch batch = this->BatchOf(in.inputs);
    FanInPositives positives;
    OP_REQUIRES_OK(context, this->Open(&call, &variables, in, info().slots, batch, &positives));
    OP_REQUIRES_OK(context, saved.Check(batch, this->loss_, variables.classes()));
    OP_REQUIRES_OK(context, CheckShape(hyper, "hyper", {info().hyper}));
    OP_REQUIRES_OK(context, CheckShape(seed, "seed", {2}));
    tensorflow::Tensor* d_inputs;
    OP_REQUIRES_OK(context, AllocateInputGradient(context, batch, input_gradient_, &d_inputs));
    FanInStep<typename KernelType<T>::type> step;
    step.rule = rule_;
    step.weights = Data<T>(variables.weights());
    step.bias = this->use_bias_ ? Data<float>(variables.bias()) : nullptr;
    for (int i = 0; i < info().slots; ++i) {
      step.slots[i] = Data<float>(variables.slot(i));
      if (this->use_bias_) step.bias_slots[i] = Data<float>(variables.slot(info().slots + i));
    }
    step.hyper = Data<float>(hyper);
    step.key = RandomKey(seed.vec<int64_t>()(0), seed.vec<int64_t>()(1));
    step.first_class = in.first_class();
    Device device(call.get(), batch);
    OP_REQUIRES_OK(context, LayOut(call, in.inputs, &device));
    OP_REQUIRES_OK(context, Backward(call, &device, variables.Layer<T, Id>(batch.inputs),
                                     this->Gradients(saved, positives), step, input_gradient_, d_inputs));
  }

 private:
  const FanInRuleInfo& info() const { return kFanInRuleInfo[static_cast<int>(rule_)]; }
  int all_slots() const { return info().slots * (this->use_bias_ ? 2 : 1); }

  bool input_gradient_;
  FanInRule rule_;
};

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_LOSS_OP_H_
