"""Micro-batches: a batch in parts that are almost equally long, none of them empty where the batch is not."""

import tensorflow as tf


class MicroBatch:
    """A part of a batch.

    Attributes:
        values: list of its tensors, dense, ragged or sparse.
        share: floating scalar, the part of the batch's examples that it has.
    """

    def __init__(self, values, rows=None, share=1.0):
        self.values, self.share, self._rows = values, share, rows

    def real(self, value):
        """Return the rows of a result that are of the batch: a part of a batch that is too short has one of
        another.

        (A layer that keeps statistics, such as BatchNormalization, would make NaN of no rows.)
        """
        if self._rows is None or value is None:
            return value
        return _rows_of(value, 0, self._rows[1] - self._rows[0])

    def filled(self, gradient, value):
        """Return the gradient of `value`, a result of this part, from that of the results of all parts,
        joined.
        """
        if self._rows is None:
            return gradient
        mine = gradient[self._rows[0] : self._rows[1]]
        missing = tf.shape(value)[0] - tf.shape(mine)[0]
        return tf.pad(mine, [[0, missing], *([0, 0] for _ in range(len(value.shape) - 1))])


def microbatches(values, number):
    """Return the `MicroBatch`es of a batch.

    Args:
        values: list of tensors with one row per example.
        number: int.
    """
    if number == 1 or not values:
        return [MicroBatch(values)]
    rows = _length(values[0])
    parts = []
    for m in range(number):
        start, stop = rows * m // number, rows * (m + 1) // number
        share = tf.math.divide_no_nan(tf.cast(stop - start, tf.float32), tf.cast(rows, tf.float32))
        end = tf.minimum(tf.maximum(stop, start + 1), rows)
        parts.append(MicroBatch([_rows_of(value, start, end) for value in values], (start, stop), share))
    return parts


def concat_microbatches(values):
    """Return tensors of any kind, one below the other."""
    if isinstance(values[0], tf.SparseTensor):
        return tf.sparse.concat(0, values)
    return tf.concat(values, axis=0)


def _length(value):
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int32)
    if isinstance(value, tf.SparseTensor):
        return tf.cast(value.dense_shape[0], tf.int32)
    return tf.shape(value)[0]


def _rows_of(value, start, stop):
    if isinstance(value, tf.SparseTensor):
        first = tf.cast(tf.concat([[start], tf.zeros([len(value.shape) - 1], tf.int32)], 0), tf.int64)
        size = tf.concat([[tf.cast(stop - start, tf.int64)], value.dense_shape[1:]], 0)
        return tf.sparse.slice(value, first, size)
    return value[start:stop]
