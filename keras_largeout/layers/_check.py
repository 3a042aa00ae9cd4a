"""Checks that the layers share."""

import tensorflow as tf


def hidden_length(input_shape):
    """The length of the hidden vectors that a head of this input shape is built for.

    Raises:
        ValueError: it is not known, or these are no `[..., dim]`.
    """
    if len(input_shape) < 2 or input_shape[-1] is None:
        raise ValueError(
            "`inputs` must be hidden vectors of a known length, [..., dim]. "
            f"Received: inputs.shape={tuple(input_shape)}"
        )
    return int(input_shape[-1])


def hidden_vectors(head, hidden):
    """`hidden` in a type that the ops take.

    Raises:
        ValueError: `head` is not built, or `hidden` is not `[..., head.dim]`.
    """
    if not head.built:
        raise ValueError(
            f"The head {head.name!r} has no weights yet: call it on hidden vectors, or build it."
        )
    if hidden.shape[-1] != head.dim:
        raise ValueError(
            f"`hidden` must have the length of the head's rows, {head.dim}, on its last axis. "
            f"Received: hidden.shape={tuple(hidden.shape)}"
        )
    return hidden if hidden.dtype in (tf.float32, tf.bfloat16) else tf.cast(hidden, tf.float32)
