// The kernel of RowUpdate on any device: validate, lock, call. Device: RowUpdateCpu or RowUpdateGpu.
#ifndef LARGEOUT_ROW_UPDATE_ROW_UPDATE_KERNEL_OP_H_
#define LARGEOUT_ROW_UPDATE_ROW_UPDATE_KERNEL_OP_H_

#include <string>

#include "common/op/locked_variables_op.h"
#include "row_update/row_update.h"

namespace largeout {

template <typename Device, typename T, typename G, typename Id>
class RowUpdateOp final : public GuardedOp {
 public:
  explicit RowUpdateOp(tensorflow::OpKernelConstruction* context) : GuardedOp(context) {
    std::string name;
    int slots;
    OP_REQUIRES_OK(context, context->GetAttr("rule", &name));
    OP_REQUIRES_OK(context, context->GetAttr("N", &slots));
    OP_REQUIRES_OK(context, context->GetAttr("copy_on_read", &copy_on_read_));
    OP_REQUIRES(context, FindUpdateRule(name.c_str(), &rule_),
                absl::InvalidArgumentError(absl::StrCat("`rule` must be a known rule. Received: ", name)));
    OP_REQUIRES(context, slots == info().slots,
                absl::InvalidArgumentError(absl::StrCat("`slots` of rule `", name, "` must be ", info().slots,
                                                        " variables. Received: ", slots)));
  }

  void Run(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor &indices = context->input(1 + info().slots),
                             &values = context->input(2 + info().slots),
                             &hyper = context->input(3 + info().slots);
    LockedVariables variables;  // the table, then its slots
    OP_REQUIRES_OK(context, variables.Find(context, 0, tensorflow::DataTypeToEnum<T>::value, "variable",
                                           LockedVariables::kWrite));
    for (int i = 0; i < info().slots; ++i) {
      OP_REQUIRES_OK(context,
                     variables.Find(context, 1 + i, tensorflow::DT_FLOAT, "slots", LockedVariables::kWrite));
    }
    OP_REQUIRES_OK(context, variables.CheckDifferent("`variable` and `slots`"));
    variables.Lock();
    OpCall<typename Device::Call> call(context);
    OP_REQUIRES_OK(context, variables.Own(&call, copy_on_read_));
    OP_REQUIRES_OK(context, CheckShapes(variables, indices, values, hyper));
    const int64_t rows = variables[0].dim_size(0), dim = rows == 0 ? 0 : variables[0].NumElements() / rows;
    float* slots[kMaxSlots] = {};
    for (int i = 0; i < info().slots; ++i) slots[i] = Data<float>(variables.writable(1 + i));
    Device device(call.get());
    BadIndex bad;
    OP_REQUIRES_OK(context, call.Status(device.Update(rule_, Data<T>(variables.writable(0)), rows, dim, slots,
                                                      indices.flat<Id>().data(), indices.NumElements(),
                                                      Data<G>(values), Data<float>(hyper), &bad)));
    OP_REQUIRES(context, bad.position < 0,
                absl::InvalidArgumentError(absl::StrCat(
                    "`indices` must be in [0, ", rows, "), the rows of `variable`. Received: indices[",
                    bad.position, "] = ", bad.index, "; nothing was updated")));
  }

 private:
  const UpdateRuleInfo& info() const { return kUpdateRuleInfo[static_cast<int>(rule_)]; }

  // Call with the locks held.
  absl::Status CheckShapes(const LockedVariables& variables, const tensorflow::Tensor& indices,
                           const tensorflow::Tensor& values, const tensorflow::Tensor& hyper) const {
    const tensorflow::TensorShape& shape = variables[0].shape();
    if (shape.dims() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("`variable` must have at least one axis. Received: shape=", shape.DebugString()));
    }
    const tensorflow::TensorShape slot_shape =
        info().slot_per_row ? tensorflow::TensorShape({shape.dim_size(0)}) : shape;
    for (int i = 1; i < variables.size(); ++i) {
      if (variables[i].shape() != slot_shape) {
        return absl::InvalidArgumentError(absl::StrCat("`slots` of rule `", info().name,
                                                       "` must have the shape ", slot_shape.DebugString(),
                                                       ". Received: ", variables[i].shape().DebugString()));
      }
    }
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
    if (hyper.dims() != 1 || hyper.NumElements() != info().hyper) {
      return absl::InvalidArgumentError(absl::StrCat("`hyper` of rule `", info().name,
                                                     "` must have the shape [", info().hyper,
                                                     "]. Received: shape=", hyper.shape().DebugString()));
    }
    return absl::OkStatus();
  }

  UpdateRule rule_ = UpdateRule::kSgd;
  bool copy_on_read_ = true;
};

// Facade as the kernel of DEVICE, for all types. HOST is nothing, or the inputs that lie in host memory.
#define LARGEOUT_ROW_UPDATE(DEVICE, Facade, T, G, Id, HOST)                               \
  REGISTER_KERNEL_BUILDER(Name("Largeout>RowUpdate")                                      \
                              .Device(tensorflow::DEVICE) HOST.TypeConstraint<T>("dtype") \
                              .TypeConstraint<G>("Tvalues")                               \
                              .TypeConstraint<Id>("Tindices"),                            \
                          RowUpdateOp<Facade, T, G, Id>)
#define LARGEOUT_ROW_UPDATE_IDS(DEVICE, Facade, T, G, HOST) \
  LARGEOUT_ROW_UPDATE(DEVICE, Facade, T, G, int32_t, HOST); \
  LARGEOUT_ROW_UPDATE(DEVICE, Facade, T, G, int64_t, HOST)
#define LARGEOUT_ROW_UPDATE_TYPES(DEVICE, Facade, HOST)                  \
  LARGEOUT_ROW_UPDATE_IDS(DEVICE, Facade, float, float, HOST);           \
  LARGEOUT_ROW_UPDATE_IDS(DEVICE, Facade, float, Eigen::bfloat16, HOST); \
  LARGEOUT_ROW_UPDATE_IDS(DEVICE, Facade, Eigen::bfloat16, float, HOST); \
  LARGEOUT_ROW_UPDATE_IDS(DEVICE, Facade, Eigen::bfloat16, Eigen::bfloat16, HOST)

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_ROW_UPDATE_KERNEL_OP_H_
