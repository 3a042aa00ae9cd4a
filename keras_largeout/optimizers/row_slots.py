"""The state that row updates add to a Keras optimizer: slots of tables, and rows kept while accumulating."""

import re

import numpy as np
import tensorflow as tf

from keras_largeout.files.verified_loading import may_have_other_rows
from keras_largeout.optimizers.row_slices import RowSlices
from keras_largeout.optimizers.weight import native, weight_of
from keras_largeout.replicas.collectives import all_gather
from keras_largeout.replicas.devices import device_scope, plain_variable
from keras_largeout.tables.row_range import RowRange
from keras_largeout.tables.shard import ShardVariable

# A chunk of rows of a slot, or what servers have said of them: the slot's key, and the rest.
_SLOT_OF_A_TABLE = re.compile(r"(table\d+_.*)_(rows_\d{6,}|on_servers)")


class RowAccumulator:
    """The row gradients of the batches so far: as many rows as they had, whatever the size of the weight."""

    def __init__(self, weight):
        row_shape = tuple(weight.variable.shape)[1:]
        self.weight = weight
        if weight.is_table:
            weight.variable.kept = self  # it follows the rows when they move
        with tf.init_scope(), device_scope(weight.copies[0]):
            self.indices = plain_variable(tf.zeros([0], tf.int64), shape=[None], trainable=False)
            values = tf.zeros([0, *row_shape])
            self.values = plain_variable(values, shape=[None, *row_shape], trainable=False)

    def rows(self):
        return RowSlices(self.indices.value(), self.values.value())

    def keep(self, rows):
        """Appends rows to those kept."""
        with device_scope(self.indices):
            self.indices.assign(tf.concat([self.indices, tf.cast(rows.indices, tf.int64)], axis=0))
            self.values.assign(tf.concat([self.values, tf.cast(rows.values, tf.float32)], axis=0))

    def drop(self, indices):
        """Drops what is kept of the rows `indices`: different int64 numbers `[n]`."""
        with device_scope(self.indices):
            dropped = tf.concat([tf.sort(indices), [-1]], axis=0)
            stays = tf.gather(dropped, tf.searchsorted(dropped[:-1], self.indices)) != self.indices
            self.set(tf.boolean_mask(self.indices, stays), tf.boolean_mask(self.values, stays))

    def clear(self):
        self.set(tf.zeros([0], tf.int64), tf.zeros([0, *self.values.shape[1:]]))

    def set(self, indices, values):
        with device_scope(self.indices):
            self.indices.assign(indices)
            self.values.assign(values)


class RowSlots:
    """The weights of an optimizer, their slots, and the `RowAccumulator` of each by its index.

    Keys in a weights file, the same on any number of devices: `table{number}_{slot}` and a chunk of rows,
    tables numbered in the order of the weights; `accumulated{number}_indices`, `_values`, logical rows. The
    stacks of one family have one number, and their tables go by name, `table{number}_{table}_{slot}`,
    whatever stack they are in.

    Args:
        variables: those that the optimizer trains.
    """

    def __init__(self, variables=()):
        self.weights = [weight_of(variable) for variable in variables]
        owners = {}
        for weight in self.weights:
            weight.number = owners.setdefault(id(weight.owner), len(owners))
        self.accumulators = {}
        self._found = self._by_variable()
        self._numbers = {}  # id of a table's array or family, or of a weight that is not a table -> number

    def get(self, variable):
        """Return the `Weight` of a variable, or of its copy on one device; None for an unknown one."""
        asked = native(variable)
        found = self._found.get(id(asked))
        # Weights may have been moved to other devices, and an `id` of then may be that of another one now.
        if found is None or all(asked is not v for v in (found.native, *found.copies)):
            self._found = self._by_variable()
        return self._found.get(id(asked))

    def _by_variable(self):
        # Keras hands a mirrored variable to an update as the copy of one device.
        return {id(v): weight for weight in self.weights for v in (weight.native, *weight.copies)}

    def __getitem__(self, variable):
        """Return the weight of `variable`. Raises ValueError for an unknown one."""
        weight = self.get(variable)
        if weight is None:
            raise ValueError(
                f"Unknown variable: {getattr(variable, 'path', variable.name)}. An optimizer updates those "
                "that it was built with: make a new one for others."
            )
        return weight

    def add_accumulators(self):
        for index, weight in enumerate(self.weights):
            if len(weight.variable.shape) > 0:
                self.accumulators[index] = weight.kept = RowAccumulator(weight)

    def _keys(self, kind, weight):
        """Return `(key in a file, first row, end)` of what is saved of the owner of `weight`."""
        family = weight.owner.table.family if weight.is_table else None
        saved_as_one = weight.owner if family is None else family
        number = self._numbers.setdefault(id(saved_as_one), len(self._numbers))
        return [(f"{kind}{number}{suffix}", start, stop) for suffix, start, stop in weight.spans()]

    @property
    def parts(self):
        """The slots of tables in memory: `ShardVariable`s."""
        slots = [slot for weight in self.weights if weight.is_table for slot in weight.slots.values()]
        return [slot for slot in slots if isinstance(slot, ShardVariable)]

    @property
    def slots(self):
        """dict from keys in a file to the `RowRange`s of tables' slots."""
        return {
            f"{key}_{name}": RowRange(slot.array, start, stop)
            for weight in self.weights
            if weight.is_table
            for name, slot in weight.slots.items()
            for key, start, stop in self._keys("table", weight)
        }

    @property
    def has_rows(self):
        """True if `save` writes anything."""
        return bool(self.slots or self.accumulators)

    def save(self, store):
        for key, slot in self.slots.items():
            slot.save(store, key)
        for accumulators in self._by_owner():
            indices, values = _join(accumulators)
            for key, start, stop in self._keys("accumulated", accumulators[0].weight):
                here = (indices >= start) & (indices < stop)
                store[f"{key}_indices"], store[f"{key}_values"] = indices[here] - start, values[here]

    def check(self, store, name):
        """Raises ValueError unless `load` could read `store`; `name` is the optimizer's."""
        known = {f"_{slot}" for weight in self.weights if weight.is_table for slot in weight.slots}
        foreign = sorted(key for key in slots_in(store) if not key.endswith(tuple(known)))
        if foreign:
            raise ValueError(
                f"The weights file is of another optimizer than {name!r}, whose slots of tables are "
                f"{sorted(slot[1:] for slot in known)}. Received: {foreign}"
            )
        for key, slot in self.slots.items():
            slot.check(store, key)
        for accumulators in self._by_owner():
            shape = tuple(accumulators[0].weight.owner.shape)
            for key, start, stop in self._keys("accumulated", accumulators[0].weight):
                if f"{key}_indices" in store:
                    indices = np.asarray(store[f"{key}_indices"])
                    _check_accumulated(
                        key, indices, np.shape(store[f"{key}_values"]), (stop - start, *shape[1:])
                    )

    def load(self, store):
        """Reads what `save` wrote. A file without accumulated rows leaves none."""
        for key, slot in self.slots.items():
            slot.load(store, key)
        for accumulators in self._by_owner():
            keys = self._keys("accumulated", accumulators[0].weight)
            if any(f"{key}_indices" not in store for key, _, _ in keys):
                continue
            indices, values = [], []
            for key, start, stop in keys:
                rows = np.array(store[f"{key}_indices"], "int64") + start
                here = rows < stop  # a table that is resized may have lost the others
                indices.append(rows[here])
                values.append(np.array(store[f"{key}_values"], "float32")[here])
            indices, values = np.concatenate(indices), np.concatenate(values)
            for accumulator in accumulators:
                here, local = accumulator.weight.held(indices)
                columns = accumulator.weight.columns
                accumulator.set(local, values[here] if columns is None else values[here, slice(*columns)])

    def _by_owner(self):
        """Return the accumulators of the parts of each table together."""
        owners = {}
        for accumulator in self.accumulators.values():
            owners.setdefault(id(accumulator.weight.owner), []).append(accumulator)
        return owners.values()


def slots_in(store):
    """Return the keys of the slots of tables that are saved in `store`, as a set."""
    return {match[1] for key in store.keys() if (match := _SLOT_OF_A_TABLE.fullmatch(key))}  # noqa: SIM118


def _check_accumulated(key, indices, shape, expected):
    rows, *inner = expected
    known = (indices >= 0) & ((indices < rows) | may_have_other_rows())
    if shape != (*indices.shape, *inner) or not np.all(known):
        raise ValueError(
            f"The weights file does not fit: the accumulated rows {key!r} must be some of {rows}, of the "
            f"shape {tuple(inner)} each. Received: values of the shape {shape} at {indices.shape} indices"
        )


def _join(accumulators):
    """Return the logical rows that the parts of one table keep, and their values."""
    copies = [a for a in accumulators if a.weight.on_every_host]
    own = [a for a in accumulators if not a.weight.on_every_host]
    rows, values = _join_here(own) if own else ([], [])
    table = accumulators[0].weight.owner.table if own else None
    if table is not None and not table.hosts.is_alone:
        with tf.init_scope():
            found = all_gather(table.hosts, tf.constant(rows, tf.int64), tf.constant(values, tf.float32))
        rows, values = (tensor.numpy() for tensor in found)
        if accumulators[0].weight.columns is not None:  # each host has some columns of the same rows
            rows, values = _summed(rows, values)
    if not copies:
        return rows, values
    of_copies = _join_here(copies)
    if not own:
        return of_copies
    return tuple(np.concatenate(both) for both in zip((rows, values), of_copies))


def _join_here(accumulators):
    """Join the rows of this process. Rows of a part with some of the columns are zero in the others."""
    weights = [a.weight for a in accumulators]
    rows = np.concatenate([a.weight.logical(a.indices.numpy()) for a in accumulators])
    values = [a.values.numpy() for a in accumulators]
    if weights[0].columns is None:
        return rows, np.concatenate(values)
    whole = np.zeros((len(rows), weights[0].owner.shape[1]), "float32")
    stop = 0
    for weight, piece in zip(weights, values):
        start, stop = stop, stop + len(piece)
        whole[start:stop, slice(*weight.columns)] = piece
    return _summed(rows, whole)


def _summed(rows, values):
    """Return every row once, its values summed."""
    unique, places = np.unique(rows, return_inverse=True)
    sums = np.zeros((len(unique), *values.shape[1:]), "float32")
    np.add.at(sums, places, values)
    return unique, sums
