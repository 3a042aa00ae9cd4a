// Registration, and the kernel for the CPU.
#include "row_update/op/row_update_op.h"

#include <string>

namespace largeout {

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
    .Attr("copy_on_read: bool = true")
    .SetIsStateful()
    .SetShapeFn(RowUpdateShape)
    .Doc(R"(Updates rows of a variable and of its optimizer slots in place; see row_update.h for the rules.

variable: [rows, ...] of type dtype.
slots: float32 variables of the shape of variable (row_wise_adagrad: [rows]).
indices: [n], the rows; duplicates are summed first.
values: [n, ...], their gradients.
hyper: the rule's numbers, in the order of row_update.h.
copy_on_read: From now on every read of these variables as a whole copies them: for tables, which nobody reads so. False:
  reads share their memory, and an update copies a variable while a read of it is in use. (On GPUs always true.)
)");

namespace {

template <typename T, typename G, typename Id>
class RowUpdateOp final : public RowUpdateOpBase {
  using Device = Eigen::ThreadPoolDevice;

 public:
  explicit RowUpdateOp(tensorflow::OpKernelConstruction* context) : RowUpdateOpBase(context) {
    OP_REQUIRES_OK(context, context->GetAttr("copy_on_read", &copy_on_read_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &indices = context->input(1 + info().slots), &values = context->input(2 + info().slots),
                 &hyper = context->input(3 + info().slots);
    Update update;
    OP_REQUIRES_OK(context, update.Find(context, tensorflow::DataTypeToEnum<T>::value, info().slots));
    if (copy_on_read_) {
      // From here on dense reads of these variables copy, so that none of them can see an update half done.
      OP_REQUIRES_OK(context,
                     tensorflow::EnsureSparseVariableAccess<Device, T>(context, update.variable.get()));
      for (const auto& slot : update.slots) {
        OP_REQUIRES_OK(context, tensorflow::EnsureSparseVariableAccess<Device, float>(context, slot.get()));
      }
    }
    Locks locks(update.all);
    if (!copy_on_read_) {
      OP_REQUIRES_OK(context, Own<T>(context, update.variable.get()));
      for (const auto& slot : update.slots) OP_REQUIRES_OK(context, Own<float>(context, slot.get()));
    }
    OP_REQUIRES_OK(context, update.CheckShapes(info(), indices, values, hyper));
    Tensor* table = update.variable->tensor();
    const int64_t rows = table->dim_size(0), dim = rows == 0 ? 0 : table->NumElements() / rows;
    float* slots[kMaxSlots] = {};
    for (size_t i = 0; i < update.slots.size(); ++i) slots[i] = Data<float>(update.slots[i]->tensor());
    ContextParallel parallel(context);
    const Id* ids = indices.flat<Id>().data();
    const int64_t bad = RowUpdate(rule_, Data<T>(table), rows, dim, slots, ids, indices.NumElements(),
                                  Data<G>(values), hyper.flat<float>().data(), &parallel);
    OP_REQUIRES(context, bad < 0, IndexError(bad, ids[bad < 0 ? 0 : bad], rows));
  }

 private:
  // Gives a locked variable memory of its own where a read shares it.
  template <typename V>
  static absl::Status Own(OpKernelContext* context, tensorflow::Var* variable) {
    if (variable->copy_on_read_mode.load()) return absl::OkStatus();
    return tensorflow::PrepareToUpdateVariable<Device, V>(context, variable->tensor(), false);
  }

  bool copy_on_read_;
};

#define REGISTER(T, G, Id)                                     \
  REGISTER_KERNEL_BUILDER(Name("Largeout>RowUpdate")           \
                              .Device(tensorflow::DEVICE_CPU)  \
                              .TypeConstraint<T>("dtype")      \
                              .TypeConstraint<G>("Tvalues")    \
                              .TypeConstraint<Id>("Tindices"), \
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
