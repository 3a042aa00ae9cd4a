// The CPU kernel of the gradient for candidates: validate, allocate, call.
#include "fan_in/fan_in_cpu_op.h"

namespace largeout {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <typename T, typename Id>
class FanInCandidateGradOp : public FanInLossOpBase {
 public:
  using FanInLossOpBase::FanInLossOpBase;

  void Compute(OpKernelContext* context) override {
    const FanInLossInputs in(context);
    const FanInSaved saved(context, 8);
    const Tensor &candidates = context->input(12), &first_tensor = context->input(13);
    FanInVariables variables;
    OP_REQUIRES_OK(context, variables.Find(context, 5, tensorflow::DataTypeToEnum<T>::value,
                                           tensorflow::DataTypeToEnum<Id>::value, use_bias_));
    const FanInBatch batch = BatchOf(in.inputs);
    ContextParallel parallel(context);
    FanInPositives positives;
    Tensor blocks, *gradient;
    OP_REQUIRES_OK(context, Open(context, &variables, in, false, 0, batch, &parallel, &positives, &blocks));
    OP_REQUIRES_OK(context, saved.Check(batch, loss_, variables.classes()));
    OP_REQUIRES_OK(context, CheckShape(first_tensor, "first_row", {}));
    OP_REQUIRES(context, candidates.dims() == 2,
                absl::InvalidArgumentError(
                    absl::StrCat("`candidates` must have the shape [rows, count]. Received: shape ",
                                 candidates.shape().DebugString())));
    const int64_t first = first_tensor.scalar<int64_t>()(), rows = candidates.dim_size(0);
    OP_REQUIRES(context, first >= 0 && first + rows <= variables.classes(),
                absl::InvalidArgumentError(
                    absl::StrCat("`first_row` and `candidates` must name rows of `weights`, below ",
                                 variables.classes(), ". Received: ", rows, " rows from row ", first)));
    OP_REQUIRES_OK(context, context->allocate_output(0, candidates.shape(), &gradient));
    int64_t bad_candidate;
    OP_REQUIRES_OK(context,
                   BadIndex(FanInCandidateGradient(
                                variables.Layer<T, Id>(batch.inputs), batch, Data<float>(blocks),
                                Gradients(saved, positives), candidates.flat<int32_t>().data(), first, rows,
                                candidates.dim_size(1), Data<float>(gradient), &bad_candidate, &parallel),
                            batch.inputs));
    OP_REQUIRES(context, bad_candidate < 0,
                absl::InvalidArgumentError(absl::StrCat("`candidates` must be in [0, ", batch.inputs,
                                                        "), the columns of "
                                                        "`inputs`. Received: another value in row ",
                                                        bad_candidate)));
  }
};

#define REGISTER(T, Id)                                        \
  REGISTER_KERNEL_BUILDER(Name("Largeout>FanInCandidateGrad")  \
                              .Device(tensorflow::DEVICE_CPU)  \
                              .TypeConstraint<T>("dtype")      \
                              .TypeConstraint<Id>("Tindices"), \
                          FanInCandidateGradOp<T, Id>)
REGISTER(float, uint16_t);
REGISTER(float, int32_t);
REGISTER(Eigen::bfloat16, uint16_t);
REGISTER(Eigen::bfloat16, int32_t);
#undef REGISTER

}  // namespace
}  // namespace largeout
