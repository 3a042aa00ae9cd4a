// RowUpdate as TensorFlow sees it: name, shapes, documentation. Its kernel: row_update_kernel_op.h.
#include "common/op/shapes_op.h"
#include "row_update/op/row_rule_op.h"

namespace largeout {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace {

absl::Status RowUpdateShape(InferenceContext* c) {
  int slots;
  ShapeHandle indices, values, table;
  DimensionHandle unused;
  TF_RETURN_IF_ERROR(RowRuleShape(c, &slots, 2, &table));
  TF_RETURN_IF_ERROR(RoundingShape(c, 4 + slots));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1 + slots), 1, &indices));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(2 + slots), 1, &values));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(indices, 0), c->Dim(values, 0), &unused));
  if (!c->RankKnown(table)) return absl::OkStatus();
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
    .Input("rounding: int64")
    .LARGEOUT_RULE_ATTRIBUTE.Attr("dtype: {float, bfloat16}")
    .Attr("Tvalues: {float, bfloat16}")
    .Attr("Tindices: {int32, int64}")
    .Attr("N: int >= 0")
    .Attr("copy_on_read: bool = true")
    .Attr("increasing: bool = false")
    .LARGEOUT_LATE_ATTRIBUTE.SetIsStateful()
    .SetShapeFn(RowUpdateShape)
    .Doc(R"(Updates rows of a variable and of its optimizer slots in place; see row_update.h for the rules.

variable: [rows, ...] of type dtype.
slots: float32 variables of the shape of variable (row_wise_adagrad: [rows]).
indices: [n], the rows; duplicates are summed first.
values: [n, ...], their gradients.
hyper: the rule's numbers, in the order of row_update.h.
rounding: [0]: rows of bfloat16 are rounded to nearest; or the RoundingNumbers of row_update.h: stochastically.
copy_on_read: From now on every read of these variables as a whole copies them: for tables, which nobody reads so. False:
  reads share their memory, and an update copies a variable while a read of it is in use.
late_errors: On a GPU nothing waits to learn whether indices are bad: such a call changes nothing, and a later call of the op
  raises the error, which names the value, and changes nothing either.
increasing: The promise that indices increase strictly: with late_errors a GPU sorts them otherwise. A broken one is an error.
)");

}  // namespace largeout
