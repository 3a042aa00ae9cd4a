"""One value for each row, from what Keras gives: sample weights, masks, groups."""

import tensorflow as tf


def per_row(values, rows, dtype=tf.float64):
    """Return `[n]`: values of the shape of the rows, or of its first axes, one after the other.

    Args:
        values: a tensor of numbers.
        rows: int32, the shape of the rows.
        dtype: of the result. Defaults to `tf.float64`.

    Raises:
        ValueError: there are several values for each row.
    """
    values, axes = tf.cast(values, dtype), rows.shape[0]
    rank = values.shape.rank
    if None not in (axes, rank) and rank > axes and values.shape[-1] not in (1, None):
        raise ValueError(
            "`sample_weight` must be one weight per row. (Where each target has a weight, give the metric to "
            "`compile` in `metrics`, not in `weighted_metrics`.) "
            f"Received: shape {values.shape} for rows of {axes} axes"
        )
    missing = tf.maximum(tf.size(rows) - tf.rank(values), 0)
    values = tf.reshape(values, tf.concat([tf.shape(values), tf.ones([missing], tf.int32)], 0))
    # An axis of length 1 at the end may be one more than the rows have.
    values = tf.reshape(values, tf.shape(values)[: tf.size(rows)])
    return tf.reshape(tf.broadcast_to(values, rows), [-1])
