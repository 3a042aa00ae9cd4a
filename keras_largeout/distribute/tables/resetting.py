"""Gives rows of a table back the values that they had at first, with their optimizer slots."""

import numpy as np
import tensorflow as tf

from keras_largeout.distribute.replicas.devices import on
from keras_largeout.distribute.tables import chunks

# So many first values are kept; a row takes those of its index modulo their number.
_KEPT_ROWS = 1024


class RowReset:
    """Resets rows in the graph of a step: a row that another id gets must not begin as the last one ended.

    Args:
        table: `ShardedTable` of two axes.
        initializer: Keras initializer of the rows.
        start, stop: ints, the rows of the table that it may reset; of a `StackedTable` those of one section.
    """

    def __init__(self, table, initializer, start, stop):
        self.table, self.start = table, start
        with tf.init_scope():
            draw = chunks.initial_rows(initializer, (stop - start, *table.shape[1:]), table.array.dtype)
            self._first = np.asarray(draw(0, min(stop - start, _KEPT_ROWS)))

    def __call__(self, rows):
        """Resets `rows`: different int64 numbers `[n]`, counted from `start`.

        Where a strategy has several replicas, one call for all of them, outside of replicas.
        """
        first = tf.gather(self._first, rows % len(self._first))
        for key, held, values in self._held(rows + self.start, first):
            columns = self.table.array.columns_of(key)
            for array in self.table.array.arrays():
                part = array.parts[key]
                part.prepare(held)
                for component in part.components:
                    with on(component):
                        _write(component, held, values, array.fill, columns)

    def _held(self, rows, values):
        """`(key of a part, its rows, their values)` for each part of the table."""
        table = self.table
        if table.placement.columns is not None or table.is_whole:
            return [(key, rows, values) for key in table.array.parts]
        partition = table.exchange.partition(rows, "error")
        values = tf.scatter_nd(partition.inverse[:, None], values, tf.shape(values))
        return [(key, partition.local[run], values[run]) for key, run in table.exchange.runs(partition)]


def _write(variable, rows, values, fill, columns):
    if fill is not None:
        values = tf.fill(tf.concat([tf.shape(rows), variable.shape[1:]], 0), fill)
    elif columns is not None:
        values = values[:, columns[0] : columns[1]]
    tf.raw_ops.ResourceScatterUpdate(
        resource=variable.handle, indices=rows, updates=tf.cast(values, variable.dtype)
    )
