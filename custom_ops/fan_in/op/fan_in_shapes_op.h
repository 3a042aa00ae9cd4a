// Shapes that the registrations of fan_in share.
#ifndef LARGEOUT_FAN_IN_FAN_IN_SHAPES_OP_H_
#define LARGEOUT_FAN_IN_FAN_IN_SHAPES_OP_H_

#include "common/op/shapes_op.h"
#include "fan_in/fan_in.h"

namespace largeout {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

struct FanInShapes {
  ShapeHandle inputs;
  DimensionHandle batch, columns, classes, fan_in;
  bool use_bias;
};

// inputs [B, I] at 0; weights [C, K], indices [C, K], bias [C] at `at`.
inline absl::Status FanInLayerShapes(InferenceContext* c, int at, FanInShapes* s) {
  ShapeHandle weights, bias;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &s->inputs));
  s->batch = c->Dim(s->inputs, 0), s->columns = c->Dim(s->inputs, 1);
  TF_RETURN_IF_ERROR(c->WithRank(TableShape(c, at), 2, &weights));
  if (!c->Merge(weights, TableShape(c, at + 1), &weights).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("`indices` must have the shape of `weights`. Received: shapes ",
                     c->DebugString(TableShape(c, at + 1)), " and ", c->DebugString(weights)));
  }
  s->classes = c->Dim(weights, 0), s->fan_in = c->Dim(weights, 1);
  TF_RETURN_IF_ERROR(c->GetAttr("use_bias", &s->use_bias));
  if (s->use_bias) {
    TF_RETURN_IF_ERROR(c->WithRank(TableShape(c, at + 2), 1, &bias));
    TF_RETURN_IF_ERROR(c->Merge(s->classes, c->Dim(bias, 0), &s->classes));
  }
  if (c->ValueKnown(s->fan_in) && c->ValueKnown(s->columns) && c->Value(s->fan_in) > c->Value(s->columns)) {
    return absl::InvalidArgumentError(
        absl::StrCat("`weights` must have at most as many connections a class as there are inputs, ",
                     c->Value(s->columns), ". Received: ", c->Value(s->fan_in)));
  }
  return absl::OkStatus();
}

inline absl::Status SetFanInInputGradient(InferenceContext* c, const FanInShapes& s) {
  bool input_gradient;
  TF_RETURN_IF_ERROR(c->GetAttr("input_gradient", &input_gradient));
  c->set_output(0, input_gradient ? c->Matrix(s.batch, s.columns) : c->Matrix(0, 0));
  return absl::OkStatus();
}

inline void SetFanInGradients(InferenceContext* c, const FanInShapes& s, bool wanted = true) {
  c->set_output(1, c->Matrix(wanted ? s.classes : c->MakeDim(0), s.fan_in));
  c->set_output(2, c->Vector(wanted && s.use_bias ? s.classes : c->MakeDim(0)));
}

#define LARGEOUT_FAN_IN_ATTRS             \
  Attr("dtype: {float, bfloat16}")        \
      .Attr("Tindices: {uint16, uint32}") \
      .Attr("Tinputs: {float, bfloat16}") \
      .Attr("use_bias: bool")             \
      .SetIsStateful()  // they read variables: two with an update between them must not be merged

}  // namespace largeout

#endif  // LARGEOUT_FAN_IN_FAN_IN_SHAPES_OP_H_
