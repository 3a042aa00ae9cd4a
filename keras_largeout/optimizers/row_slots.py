"""The state that row updates add to a Keras optimizer: slots of tables, and rows kept while accumulating."""

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.distribute.table import load_rows, save_rows
from keras_largeout.optimizers.row_slices import RowSlices


class RowAccumulator:
    """The row gradients of the batches so far: as many rows as they had, whatever the size of the table."""

    def __init__(self, row_shape):
        with tf.init_scope():
            self.indices = tf.Variable(tf.zeros([0], tf.int64), shape=[None], trainable=False)
            self.values = tf.Variable(tf.zeros([0, *row_shape]), shape=[None, *row_shape], trainable=False)

    def with_rows(self, rows):
        """What was kept, and `rows` after it."""
        return RowSlices(
            tf.concat([self.indices, tf.cast(rows.indices, tf.int64)], axis=0),
            tf.concat([self.values, tf.cast(rows.values, tf.float32)], axis=0),
        )

    def keep(self, rows):
        self.set(*self.with_rows(rows))

    def clear(self):
        self.set(tf.zeros([0], tf.int64), tf.zeros([0, *self.values.shape[1:]]))

    def set(self, indices, values):
        self.indices.assign(indices)
        self.values.assign(values)


class RowSlots:
    """Slots of tables by their key in a weights file, and a `RowAccumulator` by index of the variable.

    Keys: `table{index of the variable}_{slot}` and a chunk of rows; `accumulated{index}_indices`, `_values`.
    """

    def __init__(self):
        self.tables = {}
        self.accumulators = {}

    def add_table(self, index, variable, name, initializer, per_row):
        """Makes the slot `name` beside a table, and returns it."""
        initializer = keras.initializers.get(initializer)
        fill = initializer.value if isinstance(initializer, keras.initializers.Constant) else 0.0
        slot = variable.new_slot(name, fill=fill, per_row=per_row)
        self.tables[f"table{index}_{name}"] = slot
        return slot

    def add_accumulators(self, variables):
        for index, variable in enumerate(variables):
            if len(variable.shape) > 0:
                self.accumulators[index] = RowAccumulator(tuple(variable.shape)[1:])

    def save(self, store):
        for key, slot in self.tables.items():
            save_rows(store, key, slot)
        for index, accumulator in self.accumulators.items():
            store[f"accumulated{index}_indices"] = accumulator.indices.numpy()
            store[f"accumulated{index}_values"] = accumulator.values.numpy()

    def load(self, store):
        """Reads what `save` wrote. A file without accumulated rows leaves none."""
        for key, slot in self.tables.items():
            load_rows(store, key, slot)
        for index, accumulator in self.accumulators.items():
            if f"accumulated{index}_indices" in store:
                accumulator.set(
                    np.array(store[f"accumulated{index}_indices"], "int64"),
                    np.array(store[f"accumulated{index}_values"], "float32"),
                )
