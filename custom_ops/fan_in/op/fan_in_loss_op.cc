// The losses of fan_in as TensorFlow sees them: names, shapes, documentation. Kernels:
// fan_in_loss_op.h.
#include <string>

#include "fan_in/op/fan_in_shapes_op.h"

namespace largeout {
namespace {

// labels, row_splits, label_weights, classes at 1 .. 4, the layer at 5.
absl::Status LossShapes(InferenceContext* c, FanInShapes* s, FanInLoss* loss) {
  TF_RETURN_IF_ERROR(FanInLayerShapes(c, 5, s));
  ShapeHandle labels;
  DimensionHandle splits;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &labels));
  TF_RETURN_IF_ERROR(c->Add(s->batch, 1, &splits));
  TF_RETURN_IF_ERROR(VectorShape(c, 2, splits, "row_splits"));
  TF_RETURN_IF_ERROR(VectorShape(c, 3, c->Dim(labels, 0), "label_weights", true));
  TF_RETURN_IF_ERROR(VectorShape(c, 4, c->MakeDim(2), "classes"));
  std::string name;
  TF_RETURN_IF_ERROR(c->GetAttr("loss", &name));
  FindFanInLoss(name.c_str(), loss);
  return absl::OkStatus();
}

// grad_loss, lse, mass, active at `at`.
absl::Status SavedShapes(InferenceContext* c, int at, const FanInShapes& s, FanInLoss loss) {
  const DimensionHandle of_softmax = loss == FanInLoss::kSoftmax ? s.batch : c->MakeDim(0);
  TF_RETURN_IF_ERROR(VectorShape(c, at, s.batch, "grad_loss"));
  TF_RETURN_IF_ERROR(VectorShape(c, at + 1, of_softmax, "lse"));
  TF_RETURN_IF_ERROR(VectorShape(c, at + 2, of_softmax, "mass"));
  return VectorShape(c, at + 3, loss == FanInLoss::kSquaredHinge ? c->UnknownDim() : c->MakeDim(0), "active");
}

// The rule's number of slots and length of hyper.
absl::Status RuleShapes(InferenceContext* c, const FanInShapes& s, int slots_at) {
  std::string name;
  int count;
  TF_RETURN_IF_ERROR(c->GetAttr("rule", &name));
  TF_RETURN_IF_ERROR(c->GetAttr("N", &count));
  FanInRule rule;
  FindFanInRule(name.c_str(), &rule);
  const FanInRuleInfo& info = kFanInRuleInfo[static_cast<int>(rule)];
  const int want = info.slots * (s.use_bias ? 2 : 1);
  if (count != want) {
    return absl::InvalidArgumentError(
        absl::StrCat("`slots` of rule `", name, "` must be ", want, " variables. Received: ", count));
  }
  for (int i = 0; i < count; ++i) {
    ShapeHandle slot = TableShape(c, slots_at + i);
    const ShapeHandle shape = i < info.slots ? c->Matrix(s.classes, s.fan_in) : c->Vector(s.classes);
    TF_RETURN_IF_ERROR(c->Merge(slot, shape, &slot));
  }
  TF_RETURN_IF_ERROR(VectorShape(c, slots_at + count, c->MakeDim(info.hyper), "hyper"));
  return VectorShape(c, slots_at + count + 1, c->MakeDim(2), "seed");
}

}  // namespace

#define LARGEOUT_LOSS_INPUTS         \
  Input("inputs: Tinputs")           \
      .Input("labels: Tlabels")      \
      .Input("row_splits: int64")    \
      .Input("label_weights: float") \
      .Input("classes: int64")       \
      .Input("weights: resource")    \
      .Input("indices: resource")    \
      .Input("bias: resource")
#define LARGEOUT_LOSS_ATTRS                                         \
  Attr("loss: {'squared_hinge', 'binary_crossentropy', 'softmax'}") \
      .Attr("Tlabels: {int32, int64}")                              \
      .LARGEOUT_FAN_IN_ATTRS
#define LARGEOUT_SAVED_INPUTS \
  Input("grad_loss: float").Input("lse: float").Input("mass: float").Input("active: uint8")
#define LARGEOUT_UPDATE_INPUTS Input("slots: N * resource").Input("hyper: float").Input("seed: int64")

REGISTER_OP("Largeout>FanInLoss")
    .LARGEOUT_LOSS_INPUTS.LARGEOUT_UPDATE_INPUTS.Input("trigger: float")
    .Output("loss_per_example: float")
    .Output("lse: float")
    .Output("mass: float")
    .Output("active: uint8")
    .LARGEOUT_LATE_ATTRIBUTE.Attr("rule: {'none', 'sgd', 'adagrad', 'adam', 'lazy_adam'}")
    .Attr("N: int >= 0")
    .Attr("input_gradient: bool = true")
    .Attr("weight_gradient: bool = true")
    .LARGEOUT_LOSS_ATTRS
    .SetShapeFn([](InferenceContext* c) {
      FanInShapes s;
      FanInLoss loss;
      TF_RETURN_IF_ERROR(LossShapes(c, &s, &loss));
      TF_RETURN_IF_ERROR(RuleShapes(c, s, 8));
      const DimensionHandle of_softmax = loss == FanInLoss::kSoftmax ? s.batch : c->MakeDim(0);
      c->set_output(0, c->Vector(s.batch));
      c->set_output(1, c->Vector(of_softmax));
      c->set_output(2, c->Vector(of_softmax));
      c->set_output(3, c->Vector(loss == FanInLoss::kSquaredHinge ? c->UnknownDim() : c->MakeDim(0)));
      return absl::OkStatus();
    })
    .Doc(R"(The losses of a batch over fixed fan-in classes, summed over classes; fan_in.h defines them.

labels: [L]: ids of all examples one after the other; -1: no label. Duplicates of an example count once.
row_splits: [B + 1]: labels row_splits[b] .. row_splits[b + 1] are those of example b.
label_weights: [L], the weight of the positive term, or [0] for all 1.
classes: (class of row 0 of weights, number of all classes). Labels of classes that are not here are skipped.
slots: Not read here, nor hyper, seed and trigger: what the gradient passes to FanInStep.
loss_per_example: [B].
lse: [B], logsumexp of the logits (softmax; else [0]).
mass: [B], sum of the weights of the labels that are here (softmax; else [0]).
active: a bit for every block of examples and class that has a gradient (squared hinge; else [0]).
)");

REGISTER_OP("Largeout>FanInLossGrad")
    .LARGEOUT_LOSS_INPUTS.LARGEOUT_SAVED_INPUTS.Output("d_inputs: Tinputs")
    .Output("d_weights: dtype")
    .Output("d_bias: float")
    .LARGEOUT_LATE_ATTRIBUTE.Attr("input_gradient: bool = true")
    .Attr("weight_gradient: bool = true")
    .LARGEOUT_LOSS_ATTRS
    .SetShapeFn([](InferenceContext* c) {
      FanInShapes s;
      FanInLoss loss;
      TF_RETURN_IF_ERROR(LossShapes(c, &s, &loss));
      TF_RETURN_IF_ERROR(SavedShapes(c, 8, s, loss));
      bool weight_gradient;
      TF_RETURN_IF_ERROR(c->GetAttr("weight_gradient", &weight_gradient));
      SetFanInGradients(c, s, weight_gradient);
      return SetFanInInputGradient(c, s);
    })
    .Doc(R"(The gradient of FanInLoss, that of weights and bias written whole.

grad_loss: [B], the gradient of the losses.
lse: [B], over all classes wherever they are; mass: likewise; active: from FanInLoss.
d_weights: [C, K], and d_bias: [C]; without rows where weight_gradient is false.
)");

REGISTER_OP("Largeout>FanInStep")
    .LARGEOUT_LOSS_INPUTS.LARGEOUT_SAVED_INPUTS.LARGEOUT_UPDATE_INPUTS.Output("d_inputs: Tinputs")
    .LARGEOUT_LATE_ATTRIBUTE.Attr("rule: {'sgd', 'adagrad', 'adam', 'lazy_adam'}")
    .Attr("N: int >= 0")
    .Attr("input_gradient: bool = true")
    .LARGEOUT_LOSS_ATTRS
    .SetShapeFn([](InferenceContext* c) {
      FanInShapes s;
      FanInLoss loss;
      TF_RETURN_IF_ERROR(LossShapes(c, &s, &loss));
      TF_RETURN_IF_ERROR(SavedShapes(c, 8, s, loss));
      TF_RETURN_IF_ERROR(RuleShapes(c, s, 12));
      return SetFanInInputGradient(c, s);
    })
    .Doc(
        R"(The gradient of FanInLoss with an optimizer step on weights and bias, in place, chunk by chunk of the classes.

slots: The rule's float32 variables [C, K], then (with use_bias) as many [C] of the bias.
hyper: The rule's numbers, in the order of row_update.h.
seed: [2]: (seed, step) of the stochastic rounding of bfloat16 weights.
)");

REGISTER_OP("Largeout>FanInCandidateGrad")
    .LARGEOUT_LOSS_INPUTS.LARGEOUT_SAVED_INPUTS.Input("candidates: int32")
    .Input("first_row: int64")
    .Output("gradient: float")
    .LARGEOUT_LOSS_ATTRS
    .SetShapeFn([](InferenceContext* c) {
      FanInShapes s;
      FanInLoss loss;
      ShapeHandle candidates, scalar;
      TF_RETURN_IF_ERROR(LossShapes(c, &s, &loss));
      TF_RETURN_IF_ERROR(SavedShapes(c, 8, s, loss));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(12), 2, &candidates));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(13), 0, &scalar));
      c->set_output(0, candidates);
      return absl::OkStatus();
    })
    .Doc(R"(The gradient that weights of connections to candidates would have.

candidates: [n, M]: inputs for the classes of rows first_row .. first_row + n of weights.
gradient: [n, M].
)");

}  // namespace largeout
