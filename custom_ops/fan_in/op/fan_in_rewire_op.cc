// Connections, pruning and regrowth of fan_in as TensorFlow sees them: names, shapes, documentation. Kernels:
// fan_in_rewire_cpu_op.cc.
#include "common/op/tf_op.h"
#include "fan_in/fan_in_rewire.h"

namespace largeout {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace {

absl::Status Scalars(InferenceContext* c, int first, int last) {
  ShapeHandle scalar;
  for (int i = first; i <= last; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &scalar));
  return absl::OkStatus();
}

absl::Status Pair(InferenceContext* c, int at) {
  ShapeHandle pair = c->input(at);
  return c->Merge(pair, c->Vector(2), &pair);
}

}  // namespace

REGISTER_OP("Largeout>FanInConnections")
    .Input("num_rows: int64")
    .Input("fan_in: int64")
    .Input("num_inputs: int64")
    .Input("first_class: int64")
    .Input("seed: int64")
    .Output("indices: dtype")
    .Attr("dtype: {uint16, uint32}")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(Scalars(c, 0, 3));
      TF_RETURN_IF_ERROR(Pair(c, 4));
      DimensionHandle rows, fan_in;
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(0, &rows));
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &fan_in));
      c->set_output(0, c->Matrix(rows, fan_in));
      return absl::OkStatus();
    })
    .Doc(R"(Different inputs for each class, uniform.

seed: [2].
indices: [num_rows, fan_in], for the classes first_class .. first_class + num_rows; in [0, num_inputs).
)");

REGISTER_OP("Largeout>FanInCandidates")
    .Input("indices: resource")
    .Input("num_inputs: int64")
    .Input("rows: int64")
    .Input("first_class: int64")
    .Input("count: int64")
    .Input("seed: int64")
    .Output("candidates: int32")
    .Attr("Tindices: {uint16, uint32}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle indices;
      DimensionHandle count;
      TF_RETURN_IF_ERROR(c->WithRank(TableShape(c, 0), 2, &indices));
      TF_RETURN_IF_ERROR(Scalars(c, 1, 1));
      TF_RETURN_IF_ERROR(Pair(c, 2));
      TF_RETURN_IF_ERROR(Scalars(c, 3, 4));
      TF_RETURN_IF_ERROR(Pair(c, 5));
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(4, &count));
      c->set_output(0, c->Matrix(c->UnknownDim(), count));
      return absl::OkStatus();
    })
    .Doc(R"(Different inputs for each class, uniform among those to which it is not connected.

indices: A variable [C, K].
rows: [2]: (first row, how many).
first_class: The class of row 0.
candidates: [how many, count].
)");

REGISTER_OP("Largeout>FanInKeyCounts")
    .Input("weights: resource")
    .Input("prefix: int64")
    .Input("seed: int64")
    .Input("first_class: int64")
    .Output("counts: int64")
    .Attr("dtype: {float, bfloat16}")
    .Attr("digit: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle weights;
      TF_RETURN_IF_ERROR(c->WithRank(TableShape(c, 0), 2, &weights));
      TF_RETURN_IF_ERROR(Scalars(c, 1, 1));
      TF_RETURN_IF_ERROR(Pair(c, 2));
      TF_RETURN_IF_ERROR(Scalars(c, 3, 3));
      c->set_output(0, c->Vector(1 << kFanInDigitBits));
      return absl::OkStatus();
    })
    .Doc(R"(Of the connections whose pruning keys begin with given digits, how many continue with which digit.

weights: A variable [C, K].
prefix: The digits 0 .. digit - 1 (9 bits each), joined.
counts: [512].
)");

REGISTER_OP("Largeout>FanInRewire")
    .Input("weights: resource")
    .Input("indices: resource")
    .Input("slots: N * resource")
    .Input("num_inputs: int64")
    .Input("rows: int64")
    .Input("first_class: int64")
    .Input("count: int64")
    .Input("threshold: int64")
    .Input("seed: int64")
    .Input("candidates: int32")
    .Input("scores: float")
    .Output("changes: int64")
    .Attr("dtype: {float, bfloat16}")
    .Attr("Tindices: {uint16, uint32}")
    .Attr("N: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int slots;
      TF_RETURN_IF_ERROR(c->GetAttr("N", &slots));
      ShapeHandle weights;
      TF_RETURN_IF_ERROR(c->WithRank(TableShape(c, 0), 2, &weights));
      for (int i = 1; i < 2 + slots; ++i) TF_RETURN_IF_ERROR(c->Merge(weights, TableShape(c, i), &weights));
      TF_RETURN_IF_ERROR(Scalars(c, 2 + slots, 2 + slots));
      TF_RETURN_IF_ERROR(Pair(c, 3 + slots));
      TF_RETURN_IF_ERROR(Scalars(c, 4 + slots, 6 + slots));
      TF_RETURN_IF_ERROR(Pair(c, 7 + slots));
      ShapeHandle candidates;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(8 + slots), 2, &candidates));
      TF_RETURN_IF_ERROR(c->Merge(candidates, c->input(9 + slots), &candidates));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"(Prunes the weakest connections of classes and regrows as many, in place; see fan_in_rewire.h.

weights: A variable [C, K].
indices: A variable [C, K].
slots: float32 variables [C, K].
rows: [2]: (first row, how many).
first_class: The class of row 0.
count: Prune so many connections of every class; -1: those whose key is at most threshold.
seed: [2].
candidates: [how many, M]; M = 0: regrow at random.
scores: [how many, M].
changes: How many connections changed.
)");

REGISTER_OP("Largeout>FanInDegrees")
    .Input("indices: resource")
    .Input("num_inputs: int64")
    .Output("degrees: int64")
    .Attr("Tindices: {uint16, uint32}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle indices;
      DimensionHandle inputs;
      TF_RETURN_IF_ERROR(c->WithRank(TableShape(c, 0), 2, &indices));
      TF_RETURN_IF_ERROR(Scalars(c, 1, 1));
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &inputs));
      c->set_output(0, c->Vector(inputs));
      return absl::OkStatus();
    })
    .Doc(R"(How many connections every input has.

indices: A variable [C, K].
degrees: [num_inputs].
)");

}  // namespace largeout
