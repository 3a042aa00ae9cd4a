"""The gradient of a lookup and the optimizer's step on its table in one pass: the op, its reference in NumPy.

Kernel: `custom_ops/embedding_update/embedding_update.h`.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_largeout.ops import _library
from keras_largeout.ops.embedding.reference import embedding_gradient_reference
from keras_largeout.ops.row_update import rounding_input, row_update_reference


class LookupGradient(NamedTuple):
    """The operands of the gradient of a table: all that its `Largeout>EmbeddingGrad` gets.

    `ids`, `row_splits` (`[0]`: ids are dense) and `weights` (`[0]`: none) are those of the lookup, as its op
    takes them; `grad` is the gradient of its output.
    """

    ids: tf.Tensor
    row_splits: tf.Tensor
    weights: tf.Tensor
    grad: tf.Tensor
    combiner: str = "none"
    out_of_range: str = "error"
    late_errors: bool = False

    @classmethod
    def of(cls, gradient):
        """Return the `LookupGradient` of a gradient in a graph; None if it is not the gradient of a lookup.

        Where nobody else uses the gradient itself, TensorFlow's rewriting of graphs leaves out the op that
        makes it.
        """
        if not isinstance(gradient, tf.IndexedSlices) or not tf.is_symbolic_tensor(gradient.values):
            return None
        op = gradient.values.op
        if op.type != "Largeout>EmbeddingGrad" or gradient.indices is not op.outputs[0]:
            return None
        options = (op.get_attr(name).decode() for name in ("combiner", "out_of_range"))
        return cls(*op.inputs[:4], *options, op.get_attr("late_errors"))

    @property
    def tensors(self):
        return list(self[:4])


def embedding_update(rule, variable, slots, lookup, hyper, rounding=None):
    """Return `row_update` by the gradient of a lookup in `variable`, which is never in memory; the same bits.

    Args:
        rule, slots, hyper, rounding: As in `row_update`.
        variable: Variable `[rows, dim]` of float32 or bfloat16.
        lookup: `LookupGradient`.

    Returns:
        In a graph the operation.

    Raises:
        tf.errors.InvalidArgumentError: for an id outside `[0, rows)`, naming it, and for shapes that do not
            belong together. Nothing is changed then.

    Source: FBGEMM's split table batched embeddings call it a backward pass with a fused optimizer.
    """
    return _library.ops.largeout_embedding_update(
        variable=variable.handle,
        slots=[slot.handle for slot in slots],
        ids=lookup.ids,
        row_splits=lookup.row_splits,
        weights=lookup.weights,
        grad=lookup.grad,
        hyper=hyper,
        rounding=rounding_input(rounding),
        rule=rule,
        combiner=lookup.combiner,
        out_of_range=lookup.out_of_range,
        late_errors=lookup.late_errors,
    )


def embedding_update_reference(rule, variable, slots, ids, grad, hyper, rounding=None, **options):
    """Return what `embedding_update` does, in NumPy and out of place.

    Args:
        rule, variable, slots, hyper, rounding: As in `row_update_reference`.
        ids, grad, **options: As in `embedding_gradient_reference`.

    Returns:
        `(variable, slots)` after the update: new arrays of the same types.
    """
    rows, sums, _ = embedding_gradient_reference(variable, ids, grad, **options)
    sums = np.asarray(sums, np.float32).astype(variable.dtype)
    return row_update_reference(rule, variable, slots, rows, sums, hyper, rounding)
