#include <algorithm>
#include <vector>

#include "common/tf_op.h"
#include "row_update/row_update.h"

namespace largeout {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace {

absl::Status RowUpdateShape(InferenceContext* c) {
  std::string name;
  int slots;
  TF_RETURN_IF_ERROR(c->GetAttr("rule", &name));
  TF_RETURN_IF_ERROR(c->GetAttr("N", &slots));
  UpdateRule rule;
  FindUpdateRule(name.c_str(), &rule);
  const UpdateRuleInfo& info = kUpdateRuleInfo[static_cast<int>(rule)];
  if (slots != info.slots) {
    return absl::InvalidArgumentError(
        absl::StrCat("`slots` of rule `", name, "` must be ", info.slots, " variables. Received: ", slots));
  }
  ShapeHandle indices, values, hyper, table = TableShape(c, 0);
  DimensionHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1 + slots), 1, &indices));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(2 + slots), 1, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3 + slots), 1, &hyper));
  TF_RETURN_IF_ERROR(c->WithValue(c->Dim(hyper, 0), info.hyper, &unused));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(indices, 0), c->Dim(values, 0), &unused));
  if (!c->RankKnown(table)) return absl::OkStatus();
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(table, 1, &table));
  for (int i = 0; i < slots; ++i) {
    ShapeHandle slot = TableShape(c, 1 + i), expected = table;
    if (info.slot_per_row) expected = c->Vector(c->Dim(table, 0));
    TF_RETURN_IF_ERROR(c->Merge(slot, expected, &slot));
  }
  ShapeHandle row, row_of_values;
  TF_RETURN_IF_ERROR(c->Subshape(table, 1, &row));
  TF_RETURN_IF_ERROR(c->Subshape(values, 1, &row_of_values));
  if (c->Rank(table) == 1 && c->RankKnown(values) && c->Rank(values) == 2) row = c->Vector(1);
  return c->Merge(row, row_of_values, &row);
}

}  // namespace

REGISTER_OP("Largeout>RowUpdate")
    .Input("variable: resource")
    .Input("slots: N * resource")
    .Input("indices: Tindices")
    .Input("values: Tvalues")
    .Input("hyper: float")
    .Attr("rule: {'sgd', 'momentum', 'nesterov', 'adagrad', 'row_wise_adagrad', 'lazy_adam', 'ftrl'}")
    .Attr("dtype: {float, bfloat16}")
    .Attr("Tvalues: {float, bfloat16}")
    .Attr("Tindices: {int32, int64}")
    .Attr("N: int >= 0")
    .SetIsStateful()
    .SetShapeFn(RowUpdateShape)
    .Doc(R"(Updates rows of a variable and of its optimizer slots in place; see row_update.h for the rules.

variable: [rows, ...] of type dtype.
slots: float32 variables of the shape of variable (row_wise_adagrad: [rows]).
indices: [n], the rows; duplicates are summed first.
values: [n, ...], their gradients.
hyper: the rule's numbers, in the order of row_update.h.
)");

namespace {

// Locks in the order of addresses, so that two updates that share variables cannot wait for each other.
class Locks {
 public:
  explicit Locks(std::vector<tensorflow::Var*> variables) {
    std::sort(variables.begin(), variables.end());
    for (tensorflow::Var* variable : variables) {
      variable->mu()->lock();
      locked_.push_back(variable);
    }
  }
  ~Locks() {
    for (auto it = locked_.rbegin(); it != locked_.rend(); ++it) (*it)->mu()->unlock();
  }

 private:
  std::vector<tensorflow::Var*> locked_;
};

// The variables of one update, and the checks that CPU and GPU kernels share.
struct Update {
  tensorflow::core::RefCountPtr<tensorflow::Var> variable;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> slots;
  std::vector<tensorflow::Var*> all;

  absl::Status Find(OpKernelContext* context, DataType dtype, int count) {
    TF_RETURN_IF_ERROR(LookupTable(context, 0, dtype, "variable", &variable));
    all.push_back(variable.get());
    slots.resize(count);
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(LookupTable(context, 1 + i, tensorflow::DT_FLOAT, "slots", &slots[i]));
      if (std::find(all.begin(), all.end(), slots[i].get()) != all.end()) {
        return absl::InvalidArgumentError("`variable` and `slots` must be different variables. Received: one of them twice");
      }
      all.push_back(slots[i].get());
    }
    return absl::OkStatus();
  }

  // Call with the locks held.
  absl::Status CheckShapes(const UpdateRuleInfo& info, const Tensor& indices, const Tensor& values, const Tensor& hyper) const {
    const tensorflow::TensorShape& shape = variable->tensor()->shape();
    if (shape.dims() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("`variable` must have at least one axis. Received: shape=", shape.DebugString()));
    }
    const tensorflow::TensorShape slot_shape =
        info.slot_per_row ? tensorflow::TensorShape({shape.dim_size(0)}) : shape;
    for (const auto& slot : slots) {
      if (slot->tensor()->shape() != slot_shape) {
        return absl::InvalidArgumentError(absl::StrCat("`slots` of rule `", info.name, "` must have the shape ",
                                                       slot_shape.DebugString(),
                                                       ". Received: ", slot->tensor()->shape().DebugString()));
      }
    }
    if (indices.dims() != 1 || indices.NumElements() > INT32_MAX) {
      return absl::InvalidArgumentError(absl::StrCat("`indices` must have the shape [n], n < 2^31. Received: shape=",
                                                     indices.shape().DebugString()));
    }
    tensorflow::TensorShape expected = shape;
    expected.set_dim(0, indices.dim_size(0));
    tensorflow::TensorShape column = expected;
    if (shape.dims() == 1) column.AddDim(1);
    if (values.shape() != expected && values.shape() != column) {
      return absl::InvalidArgumentError(absl::StrCat("`values` must have the shape ", expected.DebugString(),
                                                     ", one row per index. Received: ", values.shape().DebugString()));
    }
    if (hyper.dims() != 1 || hyper.NumElements() != info.hyper) {
      return absl::InvalidArgumentError(absl::StrCat("`hyper` of rule `", info.name, "` must have the shape [", info.hyper,
                                                     "]. Received: shape=", hyper.shape().DebugString()));
    }
    return absl::OkStatus();
  }
};

class RowUpdateOpBase : public tensorflow::OpKernel {
 public:
  explicit RowUpdateOpBase(OpKernelConstruction* context) : OpKernel(context) {
    std::string name;
    int slots;
    OP_REQUIRES_OK(context, context->GetAttr("rule", &name));
    OP_REQUIRES_OK(context, context->GetAttr("N", &slots));
    OP_REQUIRES(context, FindUpdateRule(name.c_str(), &rule_),
                absl::InvalidArgumentError(absl::StrCat("`rule` must be a known rule. Received: ", name)));
    OP_REQUIRES(context, slots == info().slots,
                absl::InvalidArgumentError(
                    absl::StrCat("`slots` of rule `", name, "` must be ", info().slots, " variables. Received: ", slots)));
  }

 protected:
  const UpdateRuleInfo& info() const { return kUpdateRuleInfo[static_cast<int>(rule_)]; }
  absl::Status BadIndex(int64_t position, int64_t index, int64_t rows) const {
    return absl::InvalidArgumentError(absl::StrCat("`indices` must be in [0, ", rows, "), the rows of `variable`. Received: ",
                                                   "indices[", position, "] = ", index, "; nothing was updated"));
  }
  UpdateRule rule_;
};

template <typename T, typename G, typename Id>
class RowUpdateOp final : public RowUpdateOpBase {
 public:
  using RowUpdateOpBase::RowUpdateOpBase;

  void Compute(OpKernelContext* context) override {
    using Device = Eigen::ThreadPoolDevice;
    const Tensor &indices = context->input(1 + info().slots), &values = context->input(2 + info().slots),
                 &hyper = context->input(3 + info().slots);
    Update update;
    OP_REQUIRES_OK(context, update.Find(context, tensorflow::DataTypeToEnum<T>::value, info().slots));
    // From here on dense reads of these variables copy, so that none of them can see an update half done.
    OP_REQUIRES_OK(context, tensorflow::EnsureSparseVariableAccess<Device, T>(context, update.variable.get()));
    for (const auto& slot : update.slots) {
      OP_REQUIRES_OK(context, tensorflow::EnsureSparseVariableAccess<Device, float>(context, slot.get()));
    }
    Locks locks(update.all);
    OP_REQUIRES_OK(context, update.CheckShapes(info(), indices, values, hyper));
    Tensor* table = update.variable->tensor();
    const int64_t rows = table->dim_size(0), dim = rows == 0 ? 0 : table->NumElements() / rows;
    float* slots[kMaxSlots] = {};
    for (size_t i = 0; i < update.slots.size(); ++i) slots[i] = Data<float>(update.slots[i]->tensor());
    ContextParallel parallel(context);
    const Id* ids = indices.flat<Id>().data();
    const int64_t bad = RowUpdate(rule_, Data<T>(table), rows, dim, slots, ids, indices.NumElements(), Data<G>(values),
                                  hyper.flat<float>().data(), &parallel);
    OP_REQUIRES(context, bad < 0, BadIndex(bad, ids[bad < 0 ? 0 : bad], rows));
  }
};

#define REGISTER(T, G, Id)                                               \
  REGISTER_KERNEL_BUILDER(Name("Largeout>RowUpdate")                     \
                              .Device(tensorflow::DEVICE_CPU)            \
                              .TypeConstraint<T>("dtype")                \
                              .TypeConstraint<G>("Tvalues")              \
                              .TypeConstraint<Id>("Tindices"),           \
                          RowUpdateOp<T, G, Id>)
#define REGISTER_IDS(T, G) \
  REGISTER(T, G, int32_t); \
  REGISTER(T, G, int64_t)
REGISTER_IDS(float, float);
REGISTER_IDS(float, Eigen::bfloat16);
REGISTER_IDS(Eigen::bfloat16, float);
REGISTER_IDS(Eigen::bfloat16, Eigen::bfloat16);
#undef REGISTER_IDS
#undef REGISTER

}  // namespace
}  // namespace largeout
