"""Gives rows of a table back the values that they had at first, with all that an optimizer keeps of them."""

import weakref

import numpy as np
import tensorflow as tf

from keras_largeout.tables import chunks
from keras_largeout.tables.row_range import RowRange

# So many first values are kept; a row takes those of its index modulo their number.
_KEPT_ROWS = 1024


class RowReset:
    """Resets rows in the graph of a step: a row that another id gets must not begin as the last one ended.

    Their optimizer slots begin again with them, and their gradients that are being accumulated are dropped.

    Args:
        table: `ShardedTable` of two axes.
        initializer: Keras initializer of the rows.
        start, stop: ints, the rows of the table that it may reset; of a `StackedTable` those of one section.
    """

    def __init__(self, table, initializer, start, stop):
        self.table, self.start, self.stop = table, start, stop
        table.resets = [*table.resets, weakref.ref(self)]
        with tf.init_scope():
            draw = chunks.initial_rows(initializer, (stop - start, *table.shape[1:]), table.array.dtype)
            self._first = np.asarray(draw(0, min(stop - start, _KEPT_ROWS)))

    def __call__(self, rows):
        """Resets `rows`: different int64 numbers `[n]`, counted from `start`.

        Where a strategy has several replicas, one call for all of them, outside of replicas.
        """
        first = tf.gather(self._first, rows % len(self._first))
        held = list(self._held(rows + self.start, first))
        self._write(held, self.table.array.arrays())
        if not tf.executing_eagerly():
            self._calls_in_graph().append(held)

    def reset_new_slots(self):
        """Reset rows in the slots that an optimizer has made in this graph after a call in it."""
        if not tf.executing_eagerly():
            for held in self._calls_in_graph():
                self._write(held, self.table.array.arrays()[1:])

    def _calls_in_graph(self):
        """Return what the calls in this graph have reset, a list that belongs to the graph."""
        key = f"rows reset by keras_largeout {id(self)}"
        return tf.compat.v1.get_default_graph().get_collection_ref(key)

    def _write(self, held, arrays):
        for key, rows, values in held:
            columns = self.table.array.columns_of(key)
            kept = self.table.array.parts[key].kept
            if kept is not None:
                kept.drop(rows)
            for array in arrays:
                array.parts[key].overwrite(rows, _first_rows(array, key, rows, values, columns))

    def move(self, source, target):
        """Copy the rows `source` to `target`, eagerly. The other rows of `source` are reinitialized.

        Gradients that are being accumulated are dropped.

        Args:
            source, target: int64 arrays `[n]` of different numbers, counted from `start`.
        """
        for array in self.table.array.arrays():
            span = RowRange(array, self.start, self.stop)
            rows = span.numpy()
            rows[target] = rows[source]
            span.assign(rows)
        self(tf.constant(np.setdiff1d(source, target), tf.int64))
        for part in self.table.array.parts.values():
            if part.kept is not None:
                part.kept.clear()

    def _held(self, rows, values):
        """Return `(key of a part, its rows, their values)` for each part of the table."""
        table = self.table
        if table.placement.columns is not None or table.is_whole:
            return [(key, rows, values) for key in table.array.parts]
        partition = table.exchange.partition(rows, "error")
        values = tf.scatter_nd(partition.inverse[:, None], values, tf.shape(values))
        return [(key, partition.local[run], values[run]) for key, run in table.exchange.runs(partition)]


def _first_rows(array, key, rows, values, columns):
    """Return what the rows of a part of an array become: `values`, those of the table; a slot has its
    `fill`.
    """
    if array.fill is not None:
        return tf.fill(tf.concat([tf.shape(rows), array.parts[key].shape[1:]], 0), array.fill)
    return values if columns is None else values[:, columns[0] : columns[1]]
