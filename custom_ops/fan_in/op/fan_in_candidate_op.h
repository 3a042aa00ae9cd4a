// The kernel of the gradient for candidates on any device: validate, allocate, call.
#ifndef LARGEOUT_FAN_IN_FAN_IN_CANDIDATE_OP_H_
#define LARGEOUT_FAN_IN_FAN_IN_CANDIDATE_OP_H_

#include "fan_in/op/fan_in_loss_op.h"

namespace largeout {

template <typename Device, typename T, typename Id>
class FanInCandidateGradOp : public FanInLossOpBase<Device> {
 public:
  using FanInLossOpBase<Device>::FanInLossOpBase;

  void Run(tensorflow::OpKernelContext* context) override {
    const FanInLossInputs in(context);
    const FanInSaved saved(context, 8);
    const tensorflow::Tensor &candidates = context->input(12), &first_tensor = context->input(13);
    OpCall<typename Device::Call> call(context, &this->kept_);
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 5, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, this->use_bias_));
    const FanInBatch batch = this->BatchOf(in.inputs);
    FanInPositives positives;
    OP_REQUIRES_OK(context, this->Open(&call, &variables, in, 0, batch, &positives));
    OP_REQUIRES_OK(context, saved.Check(batch, this->loss_, variables.classes()));
    OP_REQUIRES_OK(context, CheckShape(first_tensor, "first_row", {}));
    OP_REQUIRES(context, candidates.dims() == 2,
                absl::InvalidArgumentError(
                    absl::StrCat("`candidates` must have the shape [rows, count]. Received: shape ",
                                 candidates.shape().DebugString())));
    const int64_t first = first_tensor.scalar<int64_t>()(), rows = candidates.dim_size(0);
    OP_REQUIRES(context, first >= 0 && rows <= variables.classes() - first,
                absl::InvalidArgumentError(
                    absl::StrCat("`first_row` and `candidates` must name rows of `weights`, below ",
                                 variables.classes(), ". Received: ", rows, " rows from row ", first)));
    tensorflow::Tensor* gradient;
    OP_REQUIRES_OK(context, context->allocate_output(0, candidates.shape(), &gradient));
    Device device(call.get(), batch);
    int64_t bad, bad_candidate;
    OP_REQUIRES_OK(context, LayOut(call, in.inputs, &device));
    OP_REQUIRES_OK(context, call.Status(device.CandidateGradient(
                                variables.Layer<T, Id>(batch.inputs), this->Gradients(saved, positives),
                                candidates.flat<int32_t>().data(), first, rows, candidates.dim_size(1),
                                Data<float>(gradient), &bad, &bad_candidate)));
    OP_REQUIRES_OK(context, BadIndex(bad, batch.inputs));
    OP_REQUIRES(context, bad_candidate < 0,
                absl::InvalidArgumentError(absl::StrCat("`candidates` must be in [0, ", batch.inputs,
                                                        "), the columns of "
                                                        "`inputs`. Received: another value in row ",
                                                        bad_candidate)));
  }
};

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_CANDIDATE_OP_H_
