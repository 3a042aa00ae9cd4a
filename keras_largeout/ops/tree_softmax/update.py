"""The gradient of a tree softmax and the optimizer's step on its table in one pass.

The op, and its reference in NumPy. Kernel: `custom_ops/tree_update/tree_update.h`.
"""

import threading

import numpy as np

from keras_largeout.ops import _library
from keras_largeout.ops.row_update import rounding_input, row_update_reference

_open = threading.local()


class TableStep:
    """The step that the backward pass of a tree softmax takes on the rows of its table.

    Within `with step:` the gradient of `tree_softmax_loss` is asked. The op that gives it then updates the
    rows and slots of `variable`; the table's own gradient is None, and `taken` is True.

    Args:
        rule, slots, hyper, rounding: As in `row_update`.
        variable: The table, a `tf.Variable` `[rows, dim]`.
    """

    def __init__(self, rule, variable, slots, hyper, rounding=None):
        self.rule, self.variable, self.slots = rule, variable, slots
        self.hyper, self.rounding = hyper, rounding
        self.taken = False

    def __enter__(self):
        _open.step = self
        return self

    def __exit__(self, *_):
        _open.step = None


def open_step():
    """Return the `TableStep` that the next gradient is to take, or None. It is asked once."""
    step = getattr(_open, "step", None)
    if step is None or step.taken:
        return None
    step.taken = True
    return step


def tree_softmax_update(step, bias, hidden, weights, grad_loss, node_start, node_parent, saved, **options):
    """Return `row_update` of a table by the gradient of a tree softmax, which is never in memory; the same
    bits.

    Args:
        step: `TableStep`.
        bias: The handle of a variable `[rows]`, or of any where there is none.
        hidden, weights, grad_loss, node_start, node_parent: As `Largeout>TreeSoftmaxGrad` takes them.
        saved: The outputs of `Largeout>TreeSoftmaxLoss` but for the loss.
        **options: `use_bias` and `max_saved_bytes`, as in the loss.

    Returns:
        `d_hidden` `[tokens, dim]`, `rows` int64 `[touched]`, ascending, and the gradients of their biases,
        float32 `[touched]` (`[0]` without biases).

    Raises:
        tf.errors.InvalidArgumentError: for shapes that do not belong together, and for saved tensors of
            another loss. Nothing is changed then.

    Source: FBGEMM's split table batched embeddings call it a backward pass with a fused optimizer.
    """
    return _library.ops.largeout_tree_softmax_update(
        variable=step.variable.handle,
        slots=[slot.handle for slot in step.slots],
        bias=bias,
        hidden=hidden,
        weights=weights,
        grad_loss=grad_loss,
        hyper=step.hyper,
        node_start=node_start,
        node_parent=node_parent,
        pair_token=saved[0],
        pair_row=saved[1],
        group_node=saved[2],
        group_start=saved[3],
        pair_lse=saved[4],
        probs=saved[5],
        rounding=rounding_input(step.rounding),
        rule=step.rule,
        dtype=step.variable.dtype,
        **options,
    )


def tree_softmax_update_reference(rule, variable, slots, rows, row_grads, hyper, rounding=None):
    """Return what `tree_softmax_update` does to a table, in NumPy and out of place.

    Args:
        rule, variable, slots, hyper, rounding: As in `row_update_reference`.
        rows, row_grads: The gradient of the table: of `tree_softmax_reference`, or another's.

    Returns:
        `(variable, slots)` after the update: new arrays of the same types.
    """
    sums = np.asarray(row_grads, np.float32).astype(variable.dtype)
    return row_update_reference(rule, variable, slots, rows, sums, hyper, rounding)
