"""Candidates for new connections of a class, drawn at random, and the gradients that they would have."""

import tensorflow as tf

from keras_largeout.ops import _library
from keras_largeout.ops.fan_in._arguments import (
    INDEX_DTYPES,
    handles,
    int64,
    loss_arguments,
    loss_op,
    variable,
)
from keras_largeout.ops.fan_in.reference import (
    fan_in_candidate_gradient_reference,
    fan_in_candidates_reference,
)

__all__ = [
    "fan_in_candidate_gradient",
    "fan_in_candidate_gradient_reference",
    "fan_in_candidates",
    "fan_in_candidates_reference",
]


def fan_in_candidates(indices, num_inputs, seed, count, first_row=0, num_rows=None, first_class=0):
    """Return `count` different inputs for each class, at random, to none of which it is connected.

    Args:
        indices: Variable `[C, K]`, uint16 or uint32.
        num_inputs: I.
        seed: int64 `[2]`.
        count: M, at most I - K.
        first_row, num_rows, first_class: As in `fan_in_rewire`.

    Returns:
        int32 `[num_rows, M]`.
    """
    indices = variable("indices", indices, INDEX_DTYPES)
    num_rows = indices.shape[0] - first_row if num_rows is None else num_rows
    return _library.ops.largeout_fan_in_candidates(
        indices=indices.handle,
        num_inputs=int64(num_inputs),
        rows=tf.stack([int64(first_row), int64(num_rows)]),
        first_class=int64(first_class),
        count=int64(count),
        seed=int64(seed),
        Tindices=indices.dtype,
    )


def fan_in_candidate_gradient(
    inputs,
    labels,
    row_splits,
    weights,
    indices,
    candidates,
    bias=None,
    label_weights=None,
    loss="squared_hinge",
    grad_loss=None,
    forward=None,
    first_row=0,
    first_class=0,
    num_classes=None,
):
    """Return the gradient of the loss for connections that do not exist (their weights would be zero).

    Args:
        inputs, labels, row_splits, weights, indices, bias, label_weights, loss, first_class, num_classes: As
            in `fan_in_loss`.
        candidates: int32 `[n, M]`: inputs for the classes of rows `first_row .. first_row + n`.
        grad_loss: float32 `[B]`, the gradient of the losses; `None`: ones.
        forward: The `FanInForward` of this batch, where it is at hand; it saves a forward pass.
        first_row: See `candidates`.

    Returns:
        float32 `[n, M]`: sum over b of dloss/dlogit[b, class] * inputs[b, candidate].
    """
    arguments = loss_arguments(
        inputs, labels, row_splits, weights, indices, bias, label_weights, loss, first_class, num_classes
    )
    if forward is None:
        forward = loss_op(arguments, loss)
    if grad_loss is None:
        grad_loss = tf.ones_like(forward.loss)
    return _library.ops.largeout_fan_in_candidate_grad(
        **handles(arguments),
        candidates=candidates,
        first_row=int64(first_row),
        grad_loss=grad_loss,
        lse=forward.lse,
        mass=forward.mass,
        active=forward.active,
        loss=loss,
    )
