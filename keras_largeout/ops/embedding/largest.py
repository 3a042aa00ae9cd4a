"""The combiner "max": the largest value of every column over the rows of a bag, in stock ops."""

import tensorflow as tf

from keras_largeout.ops.labels import on_the_host


def largest_of_bags(rows, kept, row_splits=None):
    """Return the largest value of each column over the rows of each bag; zeros for a bag without rows.

    The gradient of a value goes to the row that has it. Rows that tie share it equally: that is the gradient
    of `tf.math.unsorted_segment_max`.

    Args:
        rows: floats `[..., rows of a bag, dim]`; with `row_splits` `[n, dim]`.
        kept: bool, the shape of `rows` without its last axis: False leaves a row out.
        row_splits: None, or integers `[bags + 1]`: bag `b` is `rows[row_splits[b]:row_splits[b + 1]]`.

    Returns:
        `[..., dim]`, or `[bags, dim]`, of the dtype of `rows`.
    """
    # Segments for bags of one size, too: a GPU waits for the shape of the gradient of `tf.reduce_max`.
    shape, dim = tf.shape(kept), rows.shape[-1]
    places = tf.range(tf.size(kept))
    if row_splits is None:
        leading, static = shape[:-1], kept.shape[:-1]
        owner = places // tf.maximum(shape[-1], 1)
        with on_the_host():
            bags = tf.reduce_prod(leading)
    else:  # a search finds the bag of each row: `tf.repeat` would wait for the GPU
        row_splits = tf.convert_to_tensor(row_splits)
        bags, static = tf.size(row_splits) - 1, tf.TensorShape([None])
        leading = [bags]
        owner = tf.searchsorted(row_splits, tf.cast(places, row_splits.dtype), side="right") - 1
    values = tf.cast(rows, tf.float32)  # a GPU has no segment maximum of bfloat16
    values = tf.reshape(tf.where(kept[..., None], values, values.dtype.min), [-1, dim])
    largest = tf.math.unsorted_segment_max(values, owner, bags)
    largest = tf.where(largest == values.dtype.min, 0.0, largest)  # no row: the maximum of nothing
    largest = tf.reshape(largest, tf.concat([leading, [dim]], 0))
    return tf.cast(tf.ensure_shape(largest, static.concatenate([dim])), rows.dtype)
