// The ops of tree_softmax as TensorFlow sees them: names, shapes, documentation. Kernels:
// tree_softmax_cpu_op.cc.
#include "tree_softmax/op/tree_softmax_op.h"

#include "common/op/shapes_op.h"
#include "common/op/table_op.h"

namespace largeout {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// class_row [V], node_start [N + 1], node_row [N], node_parent [N], row_hint [ceil(R / 16)], R = V + N - 1.
// A forest has fewer rows than that.
absl::Status Arrays(InferenceContext* c, int at, DimensionHandle rows) {
  ShapeHandle classes, nodes;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(at), 1, &classes));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(at + 2), 1, &nodes));
  DimensionHandle starts, hints, all;
  bool forest;
  TF_RETURN_IF_ERROR(c->GetAttr("forest", &forest));
  TF_RETURN_IF_ERROR(c->Add(c->Dim(nodes, 0), 1, &starts));
  TF_RETURN_IF_ERROR(VectorShape(c, at + 1, starts, "node_start"));
  TF_RETURN_IF_ERROR(VectorShape(c, at + 3, c->Dim(nodes, 0), "node_parent"));
  if (forest) return VectorShape(c, at + 4, c->UnknownDim(), "row_hint");
  TF_RETURN_IF_ERROR(c->Add(c->Dim(classes, 0), c->Dim(nodes, 0), &all));
  TF_RETURN_IF_ERROR(c->Subtract(all, 1, &all));
  if (c->ValueKnown(all) && c->ValueKnown(rows) && c->Value(all) != c->Value(rows)) {
    return absl::InvalidArgumentError(absl::StrCat("`table` must have classes + nodes - 1 = ", c->Value(all),
                                                   " rows. Received: ", c->Value(rows)));
  }
  if (!c->ValueKnown(all)) return VectorShape(c, at + 4, c->UnknownDim(), "row_hint");
  hints = c->MakeDim(c->Value(all) / 16 + (c->Value(all) % 16 != 0));
  return VectorShape(c, at + 4, hints, "row_hint");
}

}  // namespace

REGISTER_OP("Largeout>TreeSoftmaxLoss")
    .Input("hidden: Thidden")
    .Input("targets: Ttargets")
    .Input("weights: float")
    .Input("table: Ttable")
    .Input("bias: Tbias")
    .Input("class_row: int32")
    .Input("node_start: int32")
    .Input("node_row: int32")
    .Input("node_parent: int32")
    .Input("row_hint: int32")
    .Output("loss: float")
    .Output("pair_token: int32")
    .Output("pair_row: int32")
    .Output("group_node: int32")
    .Output("group_start: int32")
    .Output("pair_lse: float")
    .Output("probs: float")
    .Attr("dtype: {float, bfloat16}")
    .Attr("Thidden: {float, bfloat16}")
    .Attr("Ttable: {resource, float, bfloat16} = DT_RESOURCE")
    .Attr("Tbias: {resource, float, bfloat16} = DT_RESOURCE")
    .Attr("Ttargets: {int32, int64}")
    .Attr("use_bias: bool")
    .Attr("max_saved_bytes: int >= 0 = 268435456")
    .Attr("forest: bool = false")
    .Attr("num_classes: int >= 0 = 0")
    .SetIsStateful()  // it reads variables: two with an update between them must not be merged
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle hidden;
      DimensionHandle rows, dim;
      TF_RETURN_IF_ERROR(HiddenAndTable(c, 0, 3, &hidden, &rows, &dim));
      TF_RETURN_IF_ERROR(VectorShape(c, 1, c->Dim(hidden, 0), "targets"));
      TF_RETURN_IF_ERROR(VectorShape(c, 2, c->Dim(hidden, 0), "weights", true));
      TF_RETURN_IF_ERROR(Arrays(c, 5, rows));
      const DimensionHandle pairs = c->UnknownDim();
      c->set_output(0, c->Vector(c->Dim(hidden, 0)));
      c->set_output(1, c->Vector(pairs));
      c->set_output(2, c->Vector(pairs));
      c->set_output(3, c->Vector(c->UnknownDim()));
      c->set_output(4, c->Vector(c->UnknownDim()));
      c->set_output(5, c->Vector(pairs));
      c->set_output(6, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(
        R"(Cross-entropy of a softmax over a tree: one small softmax per node between the root and the target.

hidden: [T, d].
targets: [T] class ids.
weights: [T], or [0] for all 1. A token of weight 0 is skipped: its target may be anything.
table: A variable [R, d] of type dtype, or a tensor; R = classes + nodes - 1.
bias: A variable float32 [R], or a tensor; without use_bias anything, which is not read.
class_row: [V], and so on: the arrays of the tree, nodes numbered breadth first.
loss: [T], weight * -log p(target).
pair_token: [P], and the other outputs: saved for TreeSoftmaxGrad; tree_softmax.h describes them.
max_saved_bytes: probs is empty, and the gradient computes them anew, where it would be larger.
forest: Several nodes may have no parent (-1), and the table more rows than the arrays use: the part of a tree that one
  device has. The probability of a class is then that under the node at which its path begins.
num_classes: What an error calls the number of classes, where the arrays are the top of a larger tree; 0: that of class_row.
)");

REGISTER_OP("Largeout>TreeSoftmaxGrad")
    .Input("hidden: Thidden")
    .Input("weights: float")
    .Input("grad_loss: float")
    .Input("table: Ttable")
    .Input("bias: Tbias")
    .Input("node_start: int32")
    .Input("node_parent: int32")
    .Input("pair_token: int32")
    .Input("pair_row: int32")
    .Input("group_node: int32")
    .Input("group_start: int32")
    .Input("pair_lse: float")
    .Input("probs: float")
    .Output("d_hidden: Thidden")
    .Output("rows: int64")
    .Output("row_grads: dtype")
    .Output("bias_grads: float")
    .Attr("dtype: {float, bfloat16}")
    .Attr("Thidden: {float, bfloat16}")
    .Attr("Ttable: {resource, float, bfloat16} = DT_RESOURCE")
    .Attr("Tbias: {resource, float, bfloat16} = DT_RESOURCE")
    .Attr("use_bias: bool")
    .Attr("max_saved_bytes: int >= 0 = 268435456")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle hidden;
      DimensionHandle rows, dim;
      TF_RETURN_IF_ERROR(HiddenAndTable(c, 0, 3, &hidden, &rows, &dim));
      TF_RETURN_IF_ERROR(VectorShape(c, 1, c->Dim(hidden, 0), "weights", true));
      TF_RETURN_IF_ERROR(VectorShape(c, 2, c->Dim(hidden, 0), "grad_loss"));
      TF_RETURN_IF_ERROR(SavedShapes(c, 5));
      bool use_bias;
      TF_RETURN_IF_ERROR(c->GetAttr("use_bias", &use_bias));
      const DimensionHandle unique = c->UnknownDim();
      c->set_output(0, c->Matrix(c->Dim(hidden, 0), dim));
      c->set_output(1, c->Vector(unique));
      c->set_output(2, c->Matrix(unique, dim));
      c->set_output(3, use_bias ? c->Vector(unique) : c->Vector(0));
      return absl::OkStatus();
    })
    .Doc(R"(The gradient of TreeSoftmaxLoss.

grad_loss: [T], the gradient of the loss.
pair_token: [P], and the others: outputs of TreeSoftmaxLoss.
d_hidden: [T, d], zero for skipped tokens.
rows: [U] ascending: all rows of the nodes that the batch passes.
row_grads: [U, d], the gradients of the rows of the table.
bias_grads: [U], those of the bias; [0] without use_bias.
max_saved_bytes: Bounds the probabilities that are held at a time where they were not saved.
)");

REGISTER_OP("Largeout>TreeTopK")
    .Input("hidden: Thidden")
    .Input("k: int32")
    .Input("table: resource")
    .Input("bias: resource")
    .Input("node_start: int32")
    .Input("row_child: int32")
    .Output("log_probs: float")
    .Output("ids: out_type")
    .Attr("dtype: {float, bfloat16}")
    .Attr("Thidden: {float, bfloat16}")
    .Attr("out_type: {int32, int64} = DT_INT32")
    .Attr("use_bias: bool")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle hidden, starts, scalar;
      DimensionHandle rows, dim, k;
      TF_RETURN_IF_ERROR(HiddenAndTable(c, 0, 2, &hidden, &rows, &dim));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &scalar));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 1, &starts));
      TF_RETURN_IF_ERROR(VectorShape(c, 5, rows, "row_child"));
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &k));
      c->set_output(0, c->Matrix(c->Dim(hidden, 0), k));
      c->set_output(1, c->Matrix(c->Dim(hidden, 0), k));
      return absl::OkStatus();
    })
    .Doc(R"(The k most probable classes of a softmax over a tree, exact, by best-first search.

hidden: [T, d].
k: Not more than the number of classes.
row_child: [R]: the class id of a row, or ~node.
log_probs: [T, k] descending.
ids: [T, k]; of equal log probabilities the smaller id comes first.
)");

}  // namespace largeout
