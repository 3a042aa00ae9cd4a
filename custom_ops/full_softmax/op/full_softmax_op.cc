// The ops of full_softmax as TensorFlow sees them: names, shapes, documentation. Kernels:
// full_softmax_kernel_op.h.
#include "common/op/shapes_op.h"
#include "common/op/table_op.h"

namespace largeout {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

struct Shapes {
  ShapeHandle hidden;
  DimensionHandle tokens, rows, dim;
};

// hidden, targets, weights, table, bias at 0 .. 4.
absl::Status InputShapes(InferenceContext* c, Shapes* s) {
  TF_RETURN_IF_ERROR(HiddenAndTable(c, 0, 3, &s->hidden, &s->rows, &s->dim));
  s->tokens = c->Dim(s->hidden, 0);
  TF_RETURN_IF_ERROR(VectorShape(c, 1, s->tokens, "targets"));
  return VectorShape(c, 2, s->tokens, "weights", true);
}

// How many rows and biases a gradient has: none, where it is not wanted.
absl::Status GradientRows(InferenceContext* c, const Shapes& s, DimensionHandle* rows,
                          DimensionHandle* biases) {
  bool weight_gradient, use_bias;
  TF_RETURN_IF_ERROR(c->GetAttr("weight_gradient", &weight_gradient));
  TF_RETURN_IF_ERROR(c->GetAttr("use_bias", &use_bias));
  *rows = weight_gradient ? s.rows : c->MakeDim(0);
  *biases = weight_gradient && use_bias ? s.rows : c->MakeDim(0);
  return absl::OkStatus();
}

}  // namespace

#define LARGEOUT_FULL_SOFTMAX_INPUTS \
  Input("hidden: Thidden")           \
      .Input("targets: Ttargets")    \
      .Input("weights: float")       \
      .Input("table: Ttable")        \
      .Input("bias: Tbias")
#define LARGEOUT_FULL_SOFTMAX_ATTRS                              \
  Attr("dtype: {float, bfloat16}")                               \
      .Attr("Thidden: {float, bfloat16}")                        \
      .Attr("Ttable: {resource, float, bfloat16} = DT_RESOURCE") \
      .Attr("Tbias: {resource, float, bfloat16} = DT_RESOURCE")  \
      .Attr("Ttargets: {int32, int64}")                          \
      .Attr("use_bias: bool")                                    \
      .Attr("skip_target: bool = false")                         \
      .Attr("weight_gradient: bool = true")                      \
      .Attr("smoothing: float = 0.0")                            \
      .Attr("per_class: float = 0.0")                            \
      .Attr("z_loss: float = 0.0")                               \
      .LARGEOUT_LATE_ATTRIBUTE                                   \
      .SetIsStateful()  // they read variables: two with an update between them must not be merged

REGISTER_OP("Largeout>FullSoftmax")
    .LARGEOUT_FULL_SOFTMAX_INPUTS.Input("positive: float")
    .Output("lse: float")
    .Output("ce: float")
    .Output("sum: float")
    .Output("d_hidden: Thidden")
    .Output("d_table: dtype")
    .Output("d_bias: float")
    .LARGEOUT_FULL_SOFTMAX_ATTRS.Attr("scratch_bytes: int >= 0 = 134217728")
    .SetShapeFn([](InferenceContext* c) {
      Shapes s;
      TF_RETURN_IF_ERROR(InputShapes(c, &s));
      TF_RETURN_IF_ERROR(VectorShape(c, 5, s.tokens, "positive", true));
      for (int i = 0; i < 3; ++i) c->set_output(i, c->Vector(s.tokens));
      c->set_output(3, c->Matrix(c->UnknownDim(), s.dim));
      c->set_output(4, c->Matrix(c->UnknownDim(), s.dim));
      c->set_output(5, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(
        R"(What a loss needs of a softmax over all classes, logits being hidden . table^T + bias, which are never formed whole.

hidden: [T, d].
targets: [T], classes; -1: none.
weights: [T]: the gradients that the loss is going to ask for are computed at once, scaled by these; or [0]: they are not.
table: A variable [C, d] of type dtype, or a tensor.
bias: A variable float32 [C], or a tensor; without use_bias anything, which is not read.
lse: [T], the logsumexp of the logits.
ce: [T], lse minus the logit of the target: the cross-entropy; 0 where there is no target.
sum: [T], the sum of the logits.
d_hidden: [T, d], d_table: [C, d], d_bias: [C]: the gradients of the sum over t of weights[t] * ((1 - smoothing) * ce[t] +
  smoothing * lse[t] - per_class * sum[t] + z_loss * lse[t]^2), or with skip_target of weights[t] * log(1 + exp(lse[t] -
  positive[t])). Without rows where they are not computed.
positive: [T] with weights and skip_target, the logit of the target; else [0].
skip_target: The class of the target is left out: lse is that of the others; ce and sum are 0.
weight_gradient: Whether d_table and d_bias are wanted.
late_errors: On a GPU nothing waits to learn whether targets are bad: such ones are taken for none, and a later call of the op
  raises. The gradient leaves it to this op. On a CPU every call raises at once.
scratch_bytes: Of logits that are kept for the gradients.
)");

REGISTER_OP("Largeout>FullSoftmaxGrad")
    .LARGEOUT_FULL_SOFTMAX_INPUTS.Input("lse: float")
    .Input("grad_lse: float")
    .Input("grad_ce: float")
    .Input("grad_sum: float")
    .Input("expected_hidden: Thidden")
    .Input("expected_table: dtype")
    .Input("expected_bias: float")
    .Input("positive: float")
    .Output("d_hidden: Thidden")
    .Output("d_table: dtype")
    .Output("d_bias: float")
    .LARGEOUT_FULL_SOFTMAX_ATTRS
    .SetShapeFn([](InferenceContext* c) {
      Shapes s;
      DimensionHandle rows, biases;
      ShapeHandle expected;
      TF_RETURN_IF_ERROR(InputShapes(c, &s));
      TF_RETURN_IF_ERROR(GradientRows(c, s, &rows, &biases));
      const char* const names[] = {"lse", "grad_lse", "grad_ce", "grad_sum"};
      for (int i = 0; i < 4; ++i) TF_RETURN_IF_ERROR(VectorShape(c, 5 + i, s.tokens, names[i]));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(9), 2, &expected));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(10), 2, &expected));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(11), 1, &expected));
      TF_RETURN_IF_ERROR(VectorShape(c, 12, s.tokens, "positive", true));
      c->set_output(0, c->Matrix(s.tokens, s.dim));
      c->set_output(1, c->Matrix(rows, s.dim));
      c->set_output(2, c->Vector(biases));
      return absl::OkStatus();
    })
    .Doc(R"(The gradients of FullSoftmax.

lse: [T], from FullSoftmax; expected_hidden, expected_table and expected_bias: its gradients. They are scaled, where the gradients
  that are given are a multiple of what weights made it expect; otherwise everything is computed.
grad_lse: [T], grad_ce: [T], grad_sum: [T]: the gradients of its outputs.
positive: As in FullSoftmax.
d_hidden: [T, d], d_table: [C, d], d_bias: [C]; the last two without rows where weight_gradient is false.
)");

}  // namespace largeout
