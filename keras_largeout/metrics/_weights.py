"""One value for each row, from what Keras gives: sample weights, masks, groups."""

import tensorflow as tf


def per_row(values, rows, dtype=tf.float64):
    """Return `[n]`: values of the shape of the rows, or of its first axes, one after the other.

    Args:
        values: a tensor of numbers.
        rows: int32, the shape of the rows.
        dtype: of the result. Defaults to `tf.float64`.
    """
    values = tf.cast(values, dtype)
    missing = tf.maximum(tf.size(rows) - tf.rank(values), 0)
    values = tf.reshape(values, tf.concat([tf.shape(values), tf.ones([missing], tf.int32)], 0))
    # An axis of length 1 at the end may be one more than the rows have.
    values = tf.reshape(values, tf.shape(values)[: tf.size(rows)])
    return tf.reshape(tf.broadcast_to(values, rows), [-1])
