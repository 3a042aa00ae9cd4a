// The kernels of full_softmax on any device: validate, allocate, call. Device: FullSoftmaxCpu or
// FullSoftmaxGpu.
#ifndef LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_KERNEL_OP_H_
#define LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_KERNEL_OP_H_

#include "common/op/call_op.h"
#include "full_softmax/op/full_softmax_op.h"

namespace largeout {

template <typename Device, typename T, typename Thidden, typename Ttargets>
class FullSoftmaxOpBase : public GuardedOp {
 public:
  explicit FullSoftmaxOpBase(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("use_bias", &use_bias_));
    OP_REQUIRES_OK(context, context->GetAttr("skip_target", &skip_target_));
    OP_REQUIRES_OK(context, context->GetAttr("weight_gradient", &weight_gradient_));
    OP_REQUIRES_OK(context, context->GetAttr("smoothing", &smoothing_));
    OP_REQUIRES_OK(context, context->GetAttr("per_class", &per_class_));
    OP_REQUIRES_OK(context, context->GetAttr("z_loss", &z_loss_));
    OP_REQUIRES_OK(context, context->GetAttr("late_errors", &late_errors_));
  }

 protected:
  using KernelT = typename KernelType<T>::type;
  using KernelH = typename KernelType<Thidden>::type;

  // hidden, targets, weights, table and bias are inputs 0 .. 4.
  absl::Status Open(tensorflow::OpKernelContext* context, TableAndBias* variables) const {
    const tensorflow::Tensor& hidden = context->input(0);
    TF_RETURN_IF_ERROR(variables->Open(context, 3, tensorflow::DataTypeToEnum<T>::value, use_bias_));
    TF_RETURN_IF_ERROR(variables->Check(hidden));
    TF_RETURN_IF_ERROR(CheckShape(context->input(1), "targets", {hidden.dim_size(0)}));
    return CheckShape(context->input(2), "weights", {hidden.dim_size(0)}, true);
  }

  SoftmaxBatch<KernelH, Ttargets> Batch(tensorflow::OpKernelContext* context) const {
    const tensorflow::Tensor& hidden = context->input(0);
    return {Data<Thidden>(hidden), Data<Ttargets>(context->input(1)), hidden.dim_size(0), skip_target_};
  }

  // Input `positive_at`: [tokens] with weights and skip_target, else [0].
  absl::Status Expected(tensorflow::OpKernelContext* context, int positive_at,
                        SoftmaxExpected* expected) const {
    const tensorflow::Tensor &weights = context->input(2), &positive = context->input(positive_at);
    const int64_t count = skip_target_ ? weights.NumElements() : 0;
    TF_RETURN_IF_ERROR(CheckShape(positive, "positive", {count}));
    *expected = {Data<float>(weights), count > 0 ? Data<float>(positive) : nullptr, smoothing_, per_class_,
                 z_loss_};
    return absl::OkStatus();
  }

  // Outputs at .. at + 2: those of the gradients, or (wanted being false) of nothing.
  absl::Status Allocate(tensorflow::OpKernelContext* context, int at, const TableAndBias& variables,
                        bool wanted, SoftmaxBatchGradients<KernelH, KernelT>* out) const {
    const int64_t tokens = wanted ? context->input(0).dim_size(0) : 0, dim = variables.table().dim_size(1),
                  rows = wanted && weight_gradient_ ? variables.table().dim_size(0) : 0;
    tensorflow::Tensor *d_hidden, *d_table, *d_bias;
    TF_RETURN_IF_ERROR(context->allocate_output(at, {tokens, dim}, &d_hidden));
    TF_RETURN_IF_ERROR(context->allocate_output(at + 1, {rows, dim}, &d_table));
    TF_RETURN_IF_ERROR(context->allocate_output(at + 2, {use_bias_ ? rows : 0}, &d_bias));
    *out = {Data<Thidden>(d_hidden), weight_gradient_ ? Data<T>(d_table) : nullptr,
            use_bias_ && weight_gradient_ ? Data<float>(d_bias) : nullptr};
    return absl::OkStatus();
  }

  absl::Status Wrong(const BadTarget& bad, int64_t classes) const {
    return TargetStatus(bad, classes, kMayBeLate<typename Device::Call> && late_errors_);
  }

  typename Device::Call::Late* late() { return late_errors_ ? &late_ : nullptr; }

  bool use_bias_, skip_target_, weight_gradient_, late_errors_;
  float smoothing_, per_class_, z_loss_;
  KeptMemory kept_;
  typename Device::Call::Late late_;
};

template <typename Device, typename T, typename Thidden, typename Ttargets>
class FullSoftmaxOp : public FullSoftmaxOpBase<Device, T, Thidden, Ttargets> {
 public:
  explicit FullSoftmaxOp(tensorflow::OpKernelConstruction* context)
      : FullSoftmaxOpBase<Device, T, Thidden, Ttargets>(context) {
    OP_REQUIRES_OK(context, context->GetAttr("scratch_bytes", &scratch_bytes_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    TableAndBias variables;
    OP_REQUIRES_OK(context, this->Open(context, &variables));
    const int64_t tokens = context->input(0).dim_size(0);
    tensorflow::Tensor *lse, *ce, *sum;
    OP_REQUIRES_OK(context, context->allocate_output(0, {tokens}, &lse));
    OP_REQUIRES_OK(context, context->allocate_output(1, {tokens}, &ce));
    OP_REQUIRES_OK(context, context->allocate_output(2, {tokens}, &sum));
    const SoftmaxTerms terms{Data<float>(lse), Data<float>(ce), Data<float>(sum)};
    SoftmaxExpected expected;
    OP_REQUIRES_OK(context, this->Expected(context, 5, &expected));
    const bool expects = Device::kGivesExpected && context->input(2).NumElements() > 0;
    SoftmaxBatchGradients<typename FullSoftmaxOp::KernelH, typename FullSoftmaxOp::KernelT> gradients;
    OP_REQUIRES_OK(context, this->Allocate(context, 3, variables, expects, &gradients));
    OpCall<typename Device::Call> call(context, &this->kept_, this->late());
    Device device(call.get());
    const auto table = SoftmaxRowsOf<T>(variables);
    const auto batch = this->Batch(context);
    BadTarget bad;
    if constexpr (Device::kGivesExpected) {
      if (expects) {
        OP_REQUIRES_OK(context, call.Status(device.TermsAndGradient(table, batch, expected, scratch_bytes_,
                                                                    terms, gradients, &bad)));
        OP_REQUIRES_OK(context, this->Wrong(bad, table.classes));
        return;
      }
    }
    OP_REQUIRES_OK(context, call.Status(device.Terms(table, batch, terms, &bad)));
    OP_REQUIRES_OK(context, this->Wrong(bad, table.classes));
  }

 private:
  int64_t scratch_bytes_;
};

// lse, grad_lse, grad_ce, grad_sum are inputs 5 .. 8; the gradients that FullSoftmax gave 9 .. 11;
// positive 12.
template <typename Device, typename T, typename Thidden, typename Ttargets>
class FullSoftmaxGradOp : public FullSoftmaxOpBase<Device, T, Thidden, Ttargets> {
 public:
  using FullSoftmaxOpBase<Device, T, Thidden, Ttargets>::FullSoftmaxOpBase;

  void Run(tensorflow::OpKernelContext* context) override {
    TableAndBias variables;
    OP_REQUIRES_OK(context, this->Open(context, &variables));
    const int64_t tokens = context->input(0).dim_size(0);
    const char* const names[] = {"lse", "grad_lse", "grad_ce", "grad_sum"};
    for (int i = 0; i < 4; ++i)
      OP_REQUIRES_OK(context, CheckShape(context->input(5 + i), names[i], {tokens}));
    const float* lse = Data<float>(context->input(5));
    const SoftmaxUpstream upstream{Data<float>(context->input(6)), Data<float>(context->input(7)),
                                   Data<float>(context->input(8))};
    OpCall<typename Device::Call> call(context, &this->kept_, this->late());
    Device device(call.get());
    if constexpr (Device::kGivesExpected) {
      if (context->input(2).NumElements() > 0) {
        float factor;
        SoftmaxExpected expected;
        OP_REQUIRES_OK(context, CheckExpected(context, variables));
        OP_REQUIRES_OK(context, this->Expected(context, 12, &expected));
        if (IsExpected(expected, lse, upstream, tokens, &factor)) {
          OP_REQUIRES_OK(context, Scale<Thidden>(context, &device, 9, 0, factor));
          OP_REQUIRES_OK(context, Scale<T>(context, &device, 10, 1, factor));
          OP_REQUIRES_OK(context, Scale<float>(context, &device, 11, 2, factor));
          return;
        }
      }
    }
    SoftmaxBatchGradients<typename FullSoftmaxGradOp::KernelH, typename FullSoftmaxGradOp::KernelT> gradients;
    OP_REQUIRES_OK(context, this->Allocate(context, 0, variables, true, &gradients));
    const auto table = SoftmaxRowsOf<T>(variables);
    BadTarget bad;
    OP_REQUIRES_OK(context,
                   call.Status(device.Gradient(table, this->Batch(context), lse, upstream, gradients, &bad)));
    OP_REQUIRES_OK(context, this->Wrong(bad, table.classes));
  }

 private:
  absl::Status CheckExpected(tensorflow::OpKernelContext* context, const TableAndBias& variables) const {
    const int64_t rows = this->weight_gradient_ ? variables.table().dim_size(0) : 0;
    TF_RETURN_IF_ERROR(CheckShape(context->input(9), "expected_hidden", context->input(0).shape()));
    TF_RETURN_IF_ERROR(
        CheckShape(context->input(10), "expected_table", {rows, variables.table().dim_size(1)}));
    return CheckShape(context->input(11), "expected_bias", {this->use_bias_ ? rows : 0});
  }

  // In place, where nobody else has the input.
  template <typename X>
  absl::Status Scale(tensorflow::OpKernelContext* context, Device* device, int from, int to, float factor) {
    tensorflow::Tensor* out;
    TF_RETURN_IF_ERROR(
        context->forward_input_or_allocate_output({from}, to, context->input(from).shape(), &out));
    device->Scale(Data<X>(context->input(from)), out->NumElements(), factor, Data<X>(out));
    return absl::OkStatus();
  }
};

}  // namespace largeout

#endif  // LARGEOUT_FULL_SOFTMAX_FULL_SOFTMAX_KERNEL_OP_H_
