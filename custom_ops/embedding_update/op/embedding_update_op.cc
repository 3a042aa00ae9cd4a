// EmbeddingUpdate as TensorFlow sees it: name, shapes, documentation. Its kernel: embedding_update_kernel_op.h.
#include "embedding/op/embedding_shapes_op.h"
#include "row_update/op/row_rule_op.h"

namespace largeout {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status EmbeddingUpdateShape(InferenceContext* c) {
  int slots;
  ShapeHandle table, leading;
  TF_RETURN_IF_ERROR(RowRuleShape(c, &slots, 4, &table));
  TF_RETURN_IF_ERROR(RoundingShape(c, 6 + slots));
  TF_RETURN_IF_ERROR(c->WithRank(table, 2, &table));
  TF_RETURN_IF_ERROR(LeadingShape(c, 1 + slots, &leading));
  DimensionHandle dim = c->Dim(table, 1);
  return CheckGrad(c, c->input(4 + slots), leading, &dim);
}

}  // namespace

REGISTER_OP("Largeout>EmbeddingUpdate")
    .Input("variable: resource")
    .Input("slots: N * resource")
    .Input("ids: Tids")
    .Input("row_splits: int64")
    .Input("weights: float")
    .Input("grad: dtype")
    .Input("hyper: float")
    .Input("rounding: int64")
    .LARGEOUT_RULE_ATTRIBUTE.LARGEOUT_EMBEDDING_ATTRIBUTES.Attr("N: int >= 0")
    .SetIsStateful()
    .SetShapeFn(EmbeddingUpdateShape)
    .Doc(
        R"(EmbeddingGrad, and then RowUpdate with what it gives, in one pass: the gradient of the rows is never in memory.

variable: The table, [rows, dim] of type dtype. Updated in place, as slots are.
slots: float32 variables of the shape of variable (row_wise_adagrad: [rows]).
ids, row_splits, weights: As in the lookup, EmbeddingLookup.
grad: The gradient of the lookup's output, of its shape.
hyper, rounding: As in RowUpdate.
late_errors: On a GPU nothing waits for the device: bad ids are dropped, and the lookup says so.
)");

}  // namespace largeout
