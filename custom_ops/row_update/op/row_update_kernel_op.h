// The kernel of RowUpdate on any device: validate, lock, call. Device: RowUpdateCpu or RowUpdateGpu.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_KERNEL_OP_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_KERNEL_OP_H_

#include "row_update/op/row_rule_op.h"

namespace largeout {

template <typename Device, typename T, typename G, typename Id>
class RowUpdateOp final : public GuardedOp {
 public:
  explicit RowUpdateOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context), rule_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("copy_on_read", &copy_on_read_));
    OP_REQUIRES_OK(context, context->GetAttr("increasing", &increasing_));
    OP_REQUIRES_OK(context, context->GetAttr("late_errors", &late_errors_));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor &indices = context->input(rule_.end()),
                             &values = context->input(rule_.end() + 1),
                             &hyper = context->input(rule_.end() + 2),
                             &rounding = context->input(rule_.end() + 3);
    StepNumbers numbers(nullptr);
    OP_REQUIRES_OK(context, FindStepNumbers(tensorflow::DataTypeToEnum<T>::value, hyper, rounding, &numbers));
    LockedVariables variables;  // the table, then its slots
    OP_REQUIRES_OK(context, rule_.Find(context, tensorflow::DataTypeToEnum<T>::value, &variables));
    variables.Lock();
    OpCall<typename Device::Call> call(context, nullptr, late_errors_ ? &late_ : nullptr);
    OP_REQUIRES_OK(context, variables.Own(&call, copy_on_read_));
    OP_REQUIRES_OK(context, rule_.CheckShapes(variables, hyper));
    OP_REQUIRES_OK(context, CheckShapes(variables[0].shape(), indices, values));
    const int64_t rows = variables[0].dim_size(0), dim = rows == 0 ? 0 : variables[0].NumElements() / rows;
    float* slots[kMaxSlots];
    rule_.Slots(&variables, slots);
    Device device(call.get());
    BadIndex bad;
    OP_REQUIRES_OK(context, call.Status(device.Update(rule_.get(), Data<T>(variables.writable(0)), rows, dim,
                                                      slots, indices.flat<Id>().data(), indices.NumElements(),
                                                      Data<G>(values), numbers, &bad, increasing_)));
    OP_REQUIRES(context, !bad.out_of_order,
                absl::InvalidArgumentError("`indices` must increase strictly where `increasing` says so. Received: "
                                           "others, in an earlier call; nothing was updated"));
    OP_REQUIRES(context, !bad.late,
                absl::InvalidArgumentError(absl::StrCat(
                    "`indices` must be in [0, ", bad.rows, "), the rows of `variable`. Received: indices[", bad.position,
                    "] = ", bad.index, " in an earlier call (a GPU's check is not waited for: `late_errors`); nothing "
                    "was updated then, and nothing now")));
    OP_REQUIRES(context, bad.position < 0,
                absl::InvalidArgumentError(absl::StrCat(
                    "`indices` must be in [0, ", rows, "), the rows of `variable`. Received: indices[",
                    bad.position, "] = ", bad.index, "; nothing was updated")));
  }

 private:
  static absl::Status CheckShapes(const tensorflow::TensorShape& shape, const tensorflow::Tensor& indices,
                                  const tensorflow::Tensor& values) {
    if (indices.dims() != 1 || indices.NumElements() > INT32_MAX) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`indices` must have the shape [n], n < 2^31. Received: shape=", indices.shape().DebugString()));
    }
    tensorflow::TensorShape expected = shape;
    if (!expected.SetDimWithStatus(0, indices.dim_size(0)).ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("`values` must have less than 2^63 elements, one row of `variable` per index. "
                       "Received: variable of shape ",
                       shape.DebugString(), " and ", indices.dim_size(0), " indices"));
    }
    tensorflow::TensorShape column = expected;
    if (shape.dims() == 1) column.AddDim(1);
    if (values.shape() != expected && values.shape() != column) {
      return absl::InvalidArgumentError(
          absl::StrCat("`values` must have the shape ", expected.DebugString(),
                       ", one row per index. Received: ", values.shape().DebugString()));
    }
    return absl::OkStatus();
  }

  const RowRule rule_;
  bool copy_on_read_ = true, increasing_ = false, late_errors_ = false;
  typename Device::Call::Late late_;
};

// Launcher as the kernel of DEVICE, for all types. HOST is nothing, or the inputs in host memory.
#define LARGEOUT_ROW_UPDATE(DEVICE, Launcher, T, G, Id, HOST)                             \
  REGISTER_KERNEL_BUILDER(Name("Largeout>RowUpdate")                                      \
                              .Device(tensorflow::DEVICE) HOST.TypeConstraint<T>("dtype") \
                              .TypeConstraint<G>("Tvalues")                               \
                              .TypeConstraint<Id>("Tindices"),                            \
                          RowUpdateOp<Launcher, T, G, Id>)
#define LARGEOUT_ROW_UPDATE_IDS(DEVICE, Launcher, T, G, HOST) \
  LARGEOUT_ROW_UPDATE(DEVICE, Launcher, T, G, int32_t, HOST); \
  LARGEOUT_ROW_UPDATE(DEVICE, Launcher, T, G, int64_t, HOST)
#define LARGEOUT_ROW_UPDATE_TYPES(DEVICE, Launcher, HOST)                  \
  LARGEOUT_ROW_UPDATE_IDS(DEVICE, Launcher, float, float, HOST);           \
  LARGEOUT_ROW_UPDATE_IDS(DEVICE, Launcher, float, Eigen::bfloat16, HOST); \
  LARGEOUT_ROW_UPDATE_IDS(DEVICE, Launcher, Eigen::bfloat16, float, HOST); \
  LARGEOUT_ROW_UPDATE_IDS(DEVICE, Launcher, Eigen::bfloat16, Eigen::bfloat16, HOST)

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_KERNEL_OP_H_
