"""Rows of a table, by stock ops: of a variable, a tensor, or of what has its own `gather`."""

import tensorflow as tf


def gather(table, rows):
    """Return the rows `rows` (integers of any shape) of a table."""
    return table.gather(rows) if hasattr(table, "gather") else tf.gather(table, rows)


def unit_rows(rows):
    """Return rows, float `[..., dim]`, divided by their lengths, or by 1e-6 where they are shorter."""
    return tf.cast(tf.math.l2_normalize(tf.cast(rows, tf.float32), axis=-1), rows.dtype)
