"""Rows of a table, by stock ops: of a variable, a tensor, or of what has its own `gather`."""

import tensorflow as tf


def gather(table, rows):
    """Return the rows `rows` (integers of any shape) of a table."""
    return table.gather(rows) if hasattr(table, "gather") else tf.gather(table, rows)
