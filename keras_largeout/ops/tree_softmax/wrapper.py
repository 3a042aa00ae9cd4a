"""Softmax over a tree: loss with gradients of touched rows only, and exact top-k."""

from typing import NamedTuple

import tensorflow as tf

from keras_largeout.ops import _gradients
from keras_largeout.ops._library import ops
from keras_largeout.ops._operands import integer_targets, operand, operands
from keras_largeout.ops.tree_softmax.reference import tree_softmax_reference, tree_top_k_reference
from keras_largeout.ops.tree_softmax.update import open_step, tree_softmax_update

__all__ = [
    "TreeArrays",
    "tree_softmax_loss",
    "tree_softmax_reference",
    "tree_softmax_top_k",
    "tree_top_k_reference",
]

MAX_SAVED_BYTES = 256 << 20


class TreeArrays(NamedTuple):
    """The int32 tensors that describe a tree of N nodes over V classes; R = V + N - 1 rows.

    Nodes are numbered breadth first, the root is 0. `keras_largeout.trees.Tree.arrays()` gives the values.

    Attributes:
        class_row: `[V]`, the row of each class.
        node_start: `[N + 1]`; the children of node n are rows `node_start[n] .. node_start[n + 1]`.
        node_row: `[N]`, the row of a node in its parent; -1 for the root.
        node_parent: `[N]`; -1 for the root.
        row_hint: `[ceil(R / 16)]`, the node that holds row `16 * i`.
        row_child: `[R]`, the class id of a row, or `~node`.
    """

    class_row: tf.Tensor
    node_start: tf.Tensor
    node_row: tf.Tensor
    node_parent: tf.Tensor
    row_hint: tf.Tensor
    row_child: tf.Tensor


def tree_softmax_loss(
    hidden,
    targets,
    table,
    bias,
    tree,
    weights=None,
    max_saved_bytes=MAX_SAVED_BYTES,
    forest=False,
    num_classes=0,
):
    """Return cross-entropy `-log p(target | hidden)` where p is the product of one softmax per node of a
    tree.

    log p(class) is the sum over the path from the root of (logit of the row - logsumexp of the node's rows),
    with logit = `hidden . table[row] + bias[row]`. Only nodes on the paths of the targets are computed. Table
    and bias are used by their handles, in place; their gradients are `tf.IndexedSlices` with all rows of the
    touched nodes, each once, ascending. The same bits come out for any number of threads.

    Args:
        hidden: Floating tensor `[tokens, dim]`, float32 or bfloat16 (other types are cast to float32). If
            bfloat16, products of wide nodes are of bfloat16 with float32 sums on GPUs and on processors with
            AVX512-BF16.
        targets: Integer tensor `[tokens]`, class ids.
        table: `tf.Variable` (or `keras.Variable` that holds one) `[R, dim]`, float32 or bfloat16; or a
            tensor: rows that were fetched from elsewhere.
        bias: `None`, or a variable (or tensor) `[R]`, float32.
        tree: `TreeArrays` of tensors (or variables) that describe the tree.
        weights: `None`, or a tensor `[tokens]`, cast to float32: loss = weight * cross-entropy. A token of
            weight 0 is skipped: nothing is computed for it, and its target may be anything. Differentiable,
            except that the gradient of a weight of 0 is 0.
        max_saved_bytes: Softmax probabilities are kept for the backward pass up to this size, and computed
            again beyond it; it also bounds what the backward pass then holds at a time.
        forest: `tree` is the part of a tree that one device has (`trees.parts`): several nodes may have no
            parent, and the table more rows than are used. The loss is that below the node where a path
            begins.
        num_classes: What an error calls the number of classes where `tree` is the top of a larger one.

    Returns:
        float32 tensor `[tokens]`.

    Raises:
        TypeError: `table` or `bias` is neither variable nor tensor.
        ValueError: A wrong dtype, or shapes that are known to be wrong.
        tf.errors.InvalidArgumentError: A target that is no class (it is named), or shapes that turn out to be
            wrong.

    References:
        [Morin and Bengio, 2005](https://proceedings.mlr.press/r5/morin05a.html), section 3 (paths through a
        tree of decisions); [Goodman, 2001](https://arxiv.org/abs/cs/0108006), section 2 (classes of words).
    """
    return tree_softmax_pairs(
        hidden, targets, table, bias, tree, weights, max_saved_bytes, forest, num_classes
    )[0]


def tree_softmax_pairs(
    hidden,
    targets,
    table,
    bias,
    tree,
    weights=None,
    max_saved_bytes=MAX_SAVED_BYTES,
    forest=False,
    num_classes=0,
):
    """Return what `tree_softmax_loss` returns for these arguments, and what it took.

    Returns:
        The losses, float32 `[tokens]`, and how many (token, node) pairs were computed, an int32 scalar.
    """
    hidden, table, bias = operands(hidden, table, bias, tensors=True)
    targets = integer_targets(targets)
    for variable in (table, bias):
        if isinstance(variable, tf.Variable):
            _gradients.watch(variable)
    outputs = ops.largeout_tree_softmax_loss(
        hidden,
        targets,
        tf.zeros([0], tf.float32) if weights is None else tf.cast(weights, tf.float32),
        operand(table),
        operand(table if bias is None else bias),
        *tree[:5],
        dtype=table.dtype,
        use_bias=bias is not None,
        max_saved_bytes=max_saved_bytes,
        forest=forest,
        num_classes=num_classes,
    )
    return outputs.loss, tf.size(outputs.pair_token)


def tree_softmax_top_k(hidden, table, bias, tree, k, dtype=tf.int32):
    """Return the `k` most probable classes of every row of `hidden`, exact.

    Best-first search over the nodes, which ends when no open node is as probable as the k-th class found.

    Args:
        hidden: Floating tensor `[queries, dim]`.
        table: Variable `[R, dim]`, float32 or bfloat16.
        bias: `None`, or a variable `[R]`, float32.
        tree: `TreeArrays`; `node_start` and `row_child` are used.
        k: Integer (or int32 scalar tensor), from 0 to the number of classes.
        dtype: int32 or int64, the type of the ids.

    Returns:
        `log_probs`, float32 `[queries, k]`, descending, and `ids`, `[queries, k]`. Of classes that are
        equally probable the smaller id comes first. Where `hidden` holds NaN the log probabilities are NaN,
        and the ids are classes without meaning.

    Raises:
        TypeError: `table` or `bias` is no variable.
        ValueError: A wrong dtype, or shapes that are known to be wrong.
        tf.errors.InvalidArgumentError: `k` exceeds the number of classes, or shapes that turn out to be
            wrong.
    """
    hidden, table, bias = operands(hidden, table, bias)
    return tuple(
        ops.largeout_tree_top_k(
            hidden,
            tf.cast(k, tf.int32),
            operand(table),
            operand(table if bias is None else bias),
            tree.node_start,
            tree.row_child,
            dtype=table.dtype,
            out_type=dtype,
            use_bias=bias is not None,
        )
    )


@tf.RegisterGradient("Largeout>TreeSoftmaxLoss")
def _tree_softmax_gradient(op, grad_loss, *_):
    hidden, _, weights, table, bias = op.inputs[:5]
    node_start, node_parent = op.inputs[6], op.inputs[8]
    options = {name: op.get_attr(name) for name in ("use_bias", "max_saved_bytes")}
    use_bias = options["use_bias"]
    grad_loss = tf.convert_to_tensor(grad_loss)
    step = open_step()
    with _gradients.colocated_with(table):
        if step is None:
            d_hidden, rows, row_grads, bias_grads = ops.largeout_tree_softmax_grad(
                hidden,
                weights,
                grad_loss,
                table,
                bias,
                node_start,
                node_parent,
                *op.outputs[1:],
                dtype=op.get_attr("dtype"),
                **options,
            )
        else:
            d_hidden, rows, bias_grads = tree_softmax_update(
                step, bias, hidden, weights, grad_loss, node_start, node_parent, op.outputs[1:], **options
            )
        is_handle = table.dtype == tf.resource
        shape = tf.raw_ops.VariableShape(input=table, out_type=tf.int64) if is_handle else tf.shape(table)
    d_weights = None
    if weights.shape != [0]:
        d_weights = grad_loss * tf.math.divide_no_nan(op.outputs[0], weights)
    return (
        d_hidden,
        None,
        d_weights,
        _gradients.row_gradient(shape, rows, row_grads) if step is None else None,
        _gradients.row_gradient(shape[:1], rows, bias_grads) if use_bias else None,
        *[None] * 5,
    )
