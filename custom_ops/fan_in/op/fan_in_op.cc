// Logits and top-k of fan_in as TensorFlow sees them: names, shapes, documentation. Kernels:
// fan_in_logits_op.h.
#include "fan_in/op/fan_in_shapes_op.h"

namespace largeout {

REGISTER_OP("Largeout>FanInLogits")
    .Input("inputs: Tinputs")
    .Input("weights: resource")
    .Input("indices: resource")
    .Input("bias: resource")
    .Output("logits: float")
    .LARGEOUT_LATE_ATTRIBUTE.LARGEOUT_FAN_IN_ATTRS
    .SetShapeFn([](InferenceContext* c) {
      FanInShapes s;
      TF_RETURN_IF_ERROR(FanInLayerShapes(c, 1, &s));
      c->set_output(0, c->Matrix(s.batch, s.classes));
      return absl::OkStatus();
    })
    .Doc(R"(logits[b, c] = bias[c] + sum over k of weights[c, k] * inputs[b, indices[c, k]].

inputs: [B, I].
weights: A variable [C, K] of type dtype.
indices: A variable [C, K] of type Tindices, values in [0, I).
bias: A variable float32 [C]; without use_bias any handle, which is not read. So in all ops of the family.
late_errors: On a GPU nothing waits to learn whether indices are bad: such a class is left out, and a later call of the op
  raises. Gradients and steps leave it to the forward op. On a CPU every call raises at once.
)");

REGISTER_OP("Largeout>FanInLogitsGrad")
    .Input("inputs: Tinputs")
    .Input("weights: resource")
    .Input("indices: resource")
    .Input("bias: resource")
    .Input("d_logits: float")
    .Output("d_inputs: Tinputs")
    .Output("d_weights: dtype")
    .Output("d_bias: float")
    .Attr("input_gradient: bool = true")
    .LARGEOUT_LATE_ATTRIBUTE.LARGEOUT_FAN_IN_ATTRS
    .SetShapeFn([](InferenceContext* c) {
      FanInShapes s;
      TF_RETURN_IF_ERROR(FanInLayerShapes(c, 1, &s));
      ShapeHandle logits = c->input(4);
      TF_RETURN_IF_ERROR(c->Merge(logits, c->Matrix(s.batch, s.classes), &logits));
      SetFanInGradients(c, s);
      return SetFanInInputGradient(c, s);
    })
    .Doc(R"(The gradient of FanInLogits.

d_logits: [B, C].
d_inputs: [B, I]; without input_gradient [0, 0].
d_weights: [C, K].
d_bias: [C]; without use_bias [0].
)");

REGISTER_OP("Largeout>FanInTopK")
    .Input("inputs: Tinputs")
    .Input("k: int32")
    .Input("weights: resource")
    .Input("indices: resource")
    .Input("bias: resource")
    .Output("scores: float")
    .Output("ids: out_type")
    .Attr("out_type: {int32, int64} = DT_INT32")
    .LARGEOUT_FAN_IN_ATTRS
    .SetShapeFn([](InferenceContext* c) {
      FanInShapes s;
      ShapeHandle scalar;
      DimensionHandle k;
      TF_RETURN_IF_ERROR(FanInLayerShapes(c, 2, &s));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &scalar));
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &k));
      c->set_output(0, c->Matrix(s.batch, k));
      c->set_output(1, c->Matrix(s.batch, k));
      return absl::OkStatus();
    })
    .Doc(R"(The k largest logits of every example, without ever holding all of them.

k: In [0, C].
scores: [B, k] descending.
ids: [B, k], rows of weights; of equal scores the smaller one comes first, NaN last.
)");

}  // namespace largeout
