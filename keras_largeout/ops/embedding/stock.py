"""Embedding lookup in stock TensorFlow ops, for exported models and for shape inference."""

import tensorflow as tf

from keras_largeout.ops.embedding.wrapper import Lookup
from keras_largeout.ops.rows import gather


def stock_embedding_lookup(table, ids, weights=None, combiner=None, num_rows=None):
    """Return `ops.embedding.embedding_lookup` without custom ops, for dense, ragged and sparse ids.

    Ids outside the table give zeros: a server should not fail a whole batch for one unknown id.

    Args:
        table: `tf.Variable` or tensor `[rows, dim]`.
        ids, weights, combiner: as there.
        num_rows: int, the rows of a table whose shape does not tell.

    Returns:
        As there.
    """
    return StockLookup(table, combiner, "zero", num_rows or table.shape[0])(ids, weights)


class StockLookup(Lookup):
    """`Lookup` in stock ops; `num_rows` are the rows of the table, whose shape may not tell."""

    def combined(self, ids, weights, row_splits=None):
        ids = tf.convert_to_tensor(ids)
        inside = (ids >= 0) & (ids < self.num_rows)
        factors = tf.cast(inside, tf.float32)
        if weights is not None:
            factors *= tf.cast(weights, tf.float32)
        rows = tf.cast(gather(self.table, tf.where(inside, ids, 0)), tf.float32) * factors[..., None]
        if self.combiner is not None:
            total = _bag_sum(row_splits)
            divisor = {
                "sum": lambda: 1.0,
                "mean": lambda: total(factors[..., None]),
                "sqrtn": lambda: tf.sqrt(total(factors[..., None] ** 2)),
            }[self.combiner]()
            rows = tf.math.divide_no_nan(total(rows), divisor)
        return tf.cast(rows, self.table.dtype)


def _bag_sum(row_splits):
    """Return a function that sums `[..., ids of a bag, dim]` over the ids of each bag."""
    if row_splits is None:
        return lambda values: tf.reduce_sum(values, axis=-2)
    bags = tf.size(row_splits) - 1
    owner = tf.repeat(tf.range(bags), row_splits[1:] - row_splits[:-1])
    return lambda values: tf.math.unsorted_segment_sum(values, owner, bags)
