"""The state that row updates add to a Keras optimizer: slots of tables, and rows kept while accumulating."""

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.distribute.replicas.devices import components, on, plain_variable
from keras_largeout.distribute.tables.row_span import RowSpan
from keras_largeout.optimizers.row_slices import RowSlices, native


class RowAccumulator:
    """The row gradients of the batches so far: as many rows as they had, whatever the size of the weight."""

    def __init__(self, variable):
        row_shape = tuple(variable.shape)[1:]
        self.variable = variable
        if hasattr(variable, "new_slot"):
            variable.kept = self  # it follows the rows when they move
        with tf.init_scope(), on(components(native(variable))[0]):
            self.indices = plain_variable(tf.zeros([0], tf.int64), shape=[None], trainable=False)
            values = tf.zeros([0, *row_shape])
            self.values = plain_variable(values, shape=[None, *row_shape], trainable=False)

    def rows(self):
        return RowSlices(self.indices.value(), self.values.value())

    def keep(self, rows):
        """Appends rows to those kept."""
        with on(self.indices):
            self.indices.assign(tf.concat([self.indices, tf.cast(rows.indices, tf.int64)], axis=0))
            self.values.assign(tf.concat([self.values, tf.cast(rows.values, tf.float32)], axis=0))

    def clear(self):
        self.set(tf.zeros([0], tf.int64), tf.zeros([0, *self.values.shape[1:]]))

    def set(self, indices, values):
        with on(self.indices):
            self.indices.assign(indices)
            self.values.assign(values)


class RowSlots:
    """Slots of tables, and the `RowAccumulator` of each weight by its index.

    Keys in a weights file, the same on any number of devices: `table{number}_{slot}` and a chunk of rows,
    tables numbered in the order of the weights; `accumulated{number}_indices`, `_values`, logical rows. The
    stacks of one family have one number, and their tables go by name, `table{number}_{table}_{slot}`,
    whatever stack they are in.
    """

    def __init__(self):
        self._arrays = set()  # ids of the arrays that have slots of this optimizer
        self._numbers = {}  # id of a table's array or family, or of a weight that is none -> number
        self.slots = {}
        self.accumulators = {}

    def _number(self, variable):
        owner = getattr(variable, "array", variable)
        family = owner.table.family if owner is not variable else None
        return self._numbers.setdefault(id(owner if family is None else family), len(self._numbers))

    def _spans(self, kind, variable):
        """`(key in a file, first row, end)` of each table that lies in the same array as `variable`."""
        key = f"{kind}{self._number(variable)}"
        sections = variable.array.table.sections if hasattr(variable, "array") else ()
        if not sections:
            return [(key, 0, variable.array.shape[0] if hasattr(variable, "array") else variable.shape[0])]
        return [(f"{key}_{section.name}", section.start, section.stop) for section in sections]

    def add_table(self, variable, name, initializer, per_row):
        """Makes the slot `name` beside a part of a table, and returns it."""
        initializer = keras.initializers.get(initializer)
        fill = initializer.value if isinstance(initializer, keras.initializers.Constant) else 0.0
        if id(variable.array) not in self._arrays:  # another optimizer may have trained it
            self._arrays.add(id(variable.array))
            variable.array.forget_slots()
        slot = variable.new_slot(name, fill=fill, per_row=per_row)
        for key, start, stop in self._spans("table", variable):
            self.slots[f"{key}_{name}"] = RowSpan(slot.array, start, stop)
        return slot

    def add_accumulators(self, variables):
        for index, variable in enumerate(variables):
            if len(variable.shape) > 0:
                self.accumulators[index] = RowAccumulator(variable)

    def save(self, store):
        for key, slot in self.slots.items():
            slot.save(store, key)
        for accumulators in self._by_table():
            indices, values = _join(accumulators)
            for key, start, stop in self._spans("accumulated", accumulators[0].variable):
                here = (indices >= start) & (indices < stop)
                store[f"{key}_indices"], store[f"{key}_values"] = indices[here] - start, values[here]

    def load(self, store):
        """Reads what `save` wrote. A file without accumulated rows leaves none."""
        for key, slot in self.slots.items():
            slot.load(store, key)
        for accumulators in self._by_table():
            spans = self._spans("accumulated", accumulators[0].variable)
            if any(f"{key}_indices" not in store for key, _, _ in spans):
                continue
            indices = [np.array(store[f"{key}_indices"], "int64") + start for key, start, _ in spans]
            indices = np.concatenate(indices)
            values = np.concatenate([np.array(store[f"{key}_values"], "float32") for key, _, _ in spans])
            for accumulator in accumulators:
                here, local = _local(accumulator.variable, indices)
                columns = _columns(accumulator.variable)
                accumulator.set(local, values[here] if columns is None else values[here, slice(*columns)])

    def _by_table(self):
        """The accumulators of the parts of each table together."""
        tables = {}
        for accumulator in self.accumulators.values():
            owner = getattr(accumulator.variable, "array", accumulator.variable)
            tables.setdefault(id(owner), []).append(accumulator)
        return tables.values()


def _join(accumulators):
    """The logical rows that the parts of one table keep, and their values."""
    rows = [_logical(a.variable, a.indices.numpy()) for a in accumulators]
    values = [a.values.numpy() for a in accumulators]
    if _columns(accumulators[0].variable) is None:
        return np.concatenate(rows), np.concatenate(values)
    # Each part has some columns of the same rows.
    unique, places = np.unique(np.concatenate(rows), return_inverse=True)
    joined = np.zeros((len(unique), accumulators[0].variable.array.shape[1]), "float32")
    places = np.split(places, np.cumsum([len(r) for r in rows])[:-1])
    for accumulator, place, piece in zip(accumulators, places, values):
        np.add.at(joined[:, slice(*_columns(accumulator.variable))], place, piece)
    return unique, joined


def _columns(variable):
    """The columns that this weight has of its table's rows; None for all of them."""
    return variable.array.columns_of(variable.part) if hasattr(variable, "array") else None


def _logical(variable, indices):
    """The rows of the table that the rows `indices` of this weight are."""
    return variable.array.logical(variable.part, indices) if hasattr(variable, "array") else indices


def _local(variable, rows):
    """Which of `rows` this weight has, and their indices there."""
    if not hasattr(variable, "array"):
        return slice(None), rows
    return variable.array.held(variable.part, rows)
