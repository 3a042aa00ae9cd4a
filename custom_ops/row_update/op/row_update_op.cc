// RowUpdate as TensorFlow sees it: name, shapes, documentation. Its kernel: row_update_kernel_op.h.
#include <string>

#include "common/op/tf_op.h"
#include "row_update/row_update.h"

namespace largeout {

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
  reads share their memory, and an update copies a variable while a read of it is in use.
)");

}  // namespace largeout
