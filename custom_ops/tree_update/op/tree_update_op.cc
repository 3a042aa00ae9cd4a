// TreeSoftmaxUpdate as TensorFlow sees it: name, shapes, documentation. Its kernel: tree_update_kernel_op.h.
#include "common/op/shapes_op.h"
#include "row_update/op/row_rule_op.h"
#include "tree_softmax/op/tree_softmax_op.h"

namespace largeout {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status TreeSoftmaxUpdateShape(InferenceContext* c) {
  int slots;
  ShapeHandle table, hidden;
  TF_RETURN_IF_ERROR(RowRuleShape(c, &slots, 4, &table));
  TF_RETURN_IF_ERROR(c->WithRank(table, 2, &table));
  const int at =
      1 + slots;  // bias, hidden, weights, grad_loss, hyper, node_start, node_parent, six saved, rounding
  DimensionHandle dim, rows = c->Dim(table, 0);
  bool use_bias;
  TF_RETURN_IF_ERROR(c->GetAttr("use_bias", &use_bias));
  if (use_bias) {
    ShapeHandle bias;
    TF_RETURN_IF_ERROR(c->WithRank(TableShape(c, at), 1, &bias));
    TF_RETURN_IF_ERROR(c->Merge(rows, c->Dim(bias, 0), &rows));
  }
  TF_RETURN_IF_ERROR(c->WithRank(c->input(at + 1), 2, &hidden));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(hidden, 1), c->Dim(table, 1), &dim));
  TF_RETURN_IF_ERROR(VectorShape(c, at + 2, c->Dim(hidden, 0), "weights", true));
  TF_RETURN_IF_ERROR(VectorShape(c, at + 3, c->Dim(hidden, 0), "grad_loss"));
  TF_RETURN_IF_ERROR(SavedShapes(c, at + 5));
  TF_RETURN_IF_ERROR(RoundingShape(c, at + 13));
  const DimensionHandle touched = c->UnknownDim();
  c->set_output(0, c->Matrix(c->Dim(hidden, 0), dim));
  c->set_output(1, c->Vector(touched));
  c->set_output(2, use_bias ? c->Vector(touched) : c->Vector(0));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("Largeout>TreeSoftmaxUpdate")
    .Input("variable: resource")
    .Input("slots: N * resource")
    .Input("bias: resource")
    .Input("hidden: Thidden")
    .Input("weights: float")
    .Input("grad_loss: float")
    .Input("hyper: float")
    .Input("node_start: int32")
    .Input("node_parent: int32")
    .Input("pair_token: int32")
    .Input("pair_row: int32")
    .Input("group_node: int32")
    .Input("group_start: int32")
    .Input("pair_lse: float")
    .Input("probs: float")
    .Input("rounding: int64")
    .Output("d_hidden: Thidden")
    .Output("rows: int64")
    .Output("bias_grads: float")
    .LARGEOUT_RULE_ATTRIBUTE.Attr("dtype: {float, bfloat16}")
    .Attr("Thidden: {float, bfloat16}")
    .Attr("use_bias: bool")
    .Attr("max_saved_bytes: int >= 0 = 268435456")
    .Attr("N: int >= 0")
    .SetIsStateful()
    .SetShapeFn(TreeSoftmaxUpdateShape)
    .Doc(
        R"(TreeSoftmaxGrad, and then RowUpdate of the table with what it gives, in one pass: the gradient of the rows is never in memory.

variable: The table, [R, d] of type dtype. Updated in place, as slots are.
slots: float32 variables of the shape of variable (row_wise_adagrad: [R]).
bias: A variable float32 [R], which is only read; without use_bias anything.
hidden: [T, d], and the others: as in TreeSoftmaxGrad.
hyper, rounding: As in RowUpdate.
d_hidden: [T, d], zero for skipped tokens.
rows: [U] ascending: all rows of the nodes that the batch passes.
bias_grads: [U], the gradients of the bias; [0] without use_bias.
)");

}  // namespace largeout
