// The embedding ops as TensorFlow sees them: names, shapes, documentation. Kernels: embedding_cpu_op.cc, embedding_gpu_op.cc.
#include "embedding/op/embedding_shapes_op.h"

namespace largeout {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Of a lookup in a table of this shape, and of the gradient of its weights.
absl::Status LookupShape(InferenceContext* c, ShapeHandle table) {
  ShapeHandle leading, output;
  TF_RETURN_IF_ERROR(LeadingShape(c, 1, &leading));
  TF_RETURN_IF_ERROR(c->WithRank(table, 2, &table));
  TF_RETURN_IF_ERROR(c->Concatenate(leading, c->Vector(c->Dim(table, 1)), &output));
  c->set_output(0, output);
  return absl::OkStatus();
}

absl::Status WeightsGradShape(InferenceContext* c, ShapeHandle table) {
  ShapeHandle leading;
  TF_RETURN_IF_ERROR(LeadingShape(c, 1, &leading));
  TF_RETURN_IF_ERROR(c->WithRank(table, 2, &table));
  DimensionHandle dim = c->Dim(table, 1);
  TF_RETURN_IF_ERROR(CheckGrad(c, c->input(4), leading, &dim));
  c->set_output(0, c->input(1));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("Largeout>EmbeddingLookup")
    .Input("table: resource")
    .Input("ids: Tids")
    .Input("row_splits: int64")
    .Input("weights: float")
    .Output("output: dtype")
    .LARGEOUT_EMBEDDING_ATTRIBUTES
    .SetIsStateful()  // it reads a variable: two lookups with an update between them must not be merged
    .SetShapeFn([](InferenceContext* c) { return LookupShape(c, TableShape(c, 0)); })
    .Doc(R"(Rows of a table, alone or combined over bags of ids. The table is read in place, by its handle.

table: A variable [rows, dim] of type dtype.
ids: Without combiner any shape; with one, [..., k] (combined over the last axis), or [n] with row_splits.
row_splits: [0], or [bags + 1] from 0 to n, never decreasing: bag b is ids[row_splits[b] : row_splits[b + 1]].
weights: [0], or the shape of ids: a factor of every row.
output: ids.shape + [dim], [..., dim] or [bags, dim]. sum w x; mean: divided by sum w; sqrtn: by sqrt(sum w^2). Sums are
  float32. Zero for empty bags and where the divisor is zero.
out_of_range: "error": an id outside [0, rows) is an error. "zero": it is dropped, from the divisor too.
late_errors: On a GPU nothing waits to learn whether ids or row_splits are bad: such ids are dropped, bags are cut short, and
  a later call of the op raises the error, which names the value. Gradients of such a lookup leave the check to it. (A CPU
  knows at once.)
)");

REGISTER_OP("Largeout>EmbeddingGrad")
    .Input("ids: Tids")
    .Input("row_splits: int64")
    .Input("weights: float")
    .Input("grad: dtype")
    .Input("num_rows: int64")
    .Output("unique_ids: int64")
    .Output("rows: dtype")
    .LARGEOUT_EMBEDDING_ATTRIBUTES
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle leading, scalar;
      TF_RETURN_IF_ERROR(LeadingShape(c, 0, &leading));
      DimensionHandle dim = c->UnknownDim();
      TF_RETURN_IF_ERROR(CheckGrad(c, c->input(3), leading, &dim));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 0, &scalar));
      const DimensionHandle unique = c->UnknownDim();
      c->set_output(0, c->Vector(unique));
      c->set_output(1, c->Matrix(unique, dim));
      return absl::OkStatus();
    })
    .Doc(R"(The gradient of EmbeddingLookup to its table: the rows that the ids touch, each once.

grad: The gradient of the lookup's output, of its shape.
num_rows: The rows of the table.
unique_ids: [u] ascending.
rows: [u, dim]: sum of factor * grad over the occurrences of the id, in float32, in the order in which they occur (on a GPU
  the occurrences of frequent ids are summed in pieces of fixed size; every run gives the same bits).

On a GPU it waits for the device: u is the shape of its outputs. EmbeddingUpdate, which has none, does not.
)");

REGISTER_OP("Largeout>EmbeddingWeightsGrad")
    .Input("table: resource")
    .Input("ids: Tids")
    .Input("row_splits: int64")
    .Input("weights: float")
    .Input("grad: dtype")
    .Output("weights_grad: float")
    .LARGEOUT_EMBEDDING_ATTRIBUTES
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return WeightsGradShape(c, TableShape(c, 0)); })
    .Doc(R"(The gradient of EmbeddingLookup to its weights.

weights_grad: ids.shape. Zero for ids out of range and where the divisor is zero.
)");

REGISTER_OP("Largeout>EmbeddingCombine")
    .Input("table: dtype")
    .Input("ids: Tids")
    .Input("row_splits: int64")
    .Input("weights: float")
    .Output("output: dtype")
    .LARGEOUT_EMBEDDING_ATTRIBUTES
    .SetShapeFn([](InferenceContext* c) { return LookupShape(c, c->input(0)); })
    .Doc(R"(EmbeddingLookup in a tensor: rows that have been brought together, alone or combined over bags of ids.

table: [rows, dim].
)");

REGISTER_OP("Largeout>EmbeddingCombineGrad")
    .Input("ids: Tids")
    .Input("row_splits: int64")
    .Input("weights: float")
    .Input("grad: dtype")
    .Input("num_rows: int64")
    .Output("rows: dtype")
    .LARGEOUT_EMBEDDING_ATTRIBUTES
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle leading, scalar;
      TF_RETURN_IF_ERROR(LeadingShape(c, 0, &leading));
      DimensionHandle dim = c->UnknownDim(), rows;
      TF_RETURN_IF_ERROR(CheckGrad(c, c->input(3), leading, &dim));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 0, &scalar));
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(4, &rows));
      c->set_output(0, c->Matrix(rows, dim));
      return absl::OkStatus();
    })
    .Doc(R"(The gradient of EmbeddingCombine to its table: EmbeddingGrad as an array. On a GPU nothing waits.

rows: [num_rows, dim], zeros where no id is.
)");

REGISTER_OP("Largeout>EmbeddingCombineWeightsGrad")
    .Input("table: dtype")
    .Input("ids: Tids")
    .Input("row_splits: int64")
    .Input("weights: float")
    .Input("grad: dtype")
    .Output("weights_grad: float")
    .LARGEOUT_EMBEDDING_ATTRIBUTES
    .SetShapeFn([](InferenceContext* c) { return WeightsGradShape(c, c->input(0)); })
    .Doc(R"(The gradient of EmbeddingCombine to its weights.

weights_grad: ids.shape. Zero for ids out of range and where the divisor is zero.
)");

}  // namespace largeout
