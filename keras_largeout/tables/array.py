"""`ShardedArray`: a logical array `[rows, ...]` in parts, read, written and saved row by row."""

import copy
import functools

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.replicas import collectives
from keras_largeout.replicas.devices import device_scope
from keras_largeout.tables import chunks
from keras_largeout.tables.row_range import RowRange
from keras_largeout.tables.shard import ShardVariable
from keras_largeout.tables.storage.cached import CachedShard
from keras_largeout.tables.storage.mapped import MappedShard, MappedSlot

#: The key of the part that every device has a copy of; the other parts' keys are device indices.
HOT = "hot"


class ShardedArray:
    """A logical `[rows, dim]` or `[rows]` array whose rows are where a `Placement` says.

    Args:
        shape: tuple of ints.
        home: the `ShardedTable` that says where rows are: it has `placement`, `devices` and `memories`.
        initializer: Keras initializer of the logical array: drawn in chunks of logical rows, so that the
            values do not depend on the placement.
        dtype: dtype name.
        name: str.
        trainable: bool.
        fill: float, the first value of an optimizer slot's elements, which has no `initializer`; None for the
            array of a table.

    Attributes:
        first: `LazyInitializer` of rows in files, which are not written when the array is made; else None.
    """

    first = None

    def __init__(
        self, shape, home, initializer=None, dtype="float32", name="table", trainable=True, fill=None
    ):
        self.shape = tuple(int(n) for n in shape)
        self.dtype = keras.backend.standardize_dtype(dtype)
        self.name = name
        self.parts = {}
        self._home = home
        self.fill = fill
        initializer = keras.initializers.Constant(fill) if initializer is None else initializer
        self._initializer = self._agreed(keras.initializers.get(initializer))
        self._slots = {}
        placement, several = home.placement, len(home.devices) > 1
        make, make_part = {"array": self, "dtype": dtype, "trainable": trainable}, ShardVariable
        if home.folder is not None:
            self.first = home.lazy_initializer(
                self._initializer, self.shape, self.dtype, of_table=self.fill is None
            )
            make_part = MappedSlot if fill is not None else functools.partial(MappedShard, home.folder)
        make_hot = make_part
        if home.caches is not None:
            make_part = CachedShard
        # The rows get their values when every part has memory (which may be later: Keras builds some models
        # symbolically first) and this constructor is done.
        sizes = self._sizes_here()
        self._missing = 1 + (placement.num_hot > 0) + len(sizes)
        if placement.num_hot:
            hot = (placement.num_hot, *self.shape[1:])
            name = f"{self.name}_hot" if any(placement.sizes) else self.name
            where = {"device": home.hot_device} if home.hot_device else {"mirrored": several}
            self.parts[HOT] = make_hot(part=HOT, shape=hot, name=name, **where, **make)
        for index, size in sizes.items():
            shape, device = self._shard_shape(index, size), home.memories[index]
            name = f"{self.name}_{index}" if several else self.name
            if home.caches is not None:
                make["cache"] = home.caches.of_part(index, size)
            self.parts[index] = make_part(part=index, shape=shape, name=name, device=device, **make)
        self.part_created()

    def _sizes_here(self):
        """Return the sizes of the parts that this process makes, by device: those that are not empty.

        Where several hosts have the rows, each has a part: what all do together, all do for every table.
        """
        sizes, here = self.placement.sizes, self._home.here
        parts = {index: sizes[index] for index in here if sizes[index]}
        return parts or ({here[0]: 0} if any(sizes) and not self._home.hosts.is_alone else {})

    def _agreed(self, initializer):
        """Return the initializer with the seed of the first host, which may be drawn at random."""
        if not self._home.hosts.is_alone and isinstance(getattr(initializer, "seed", None), int):
            initializer = copy.copy(initializer)
            with self._home.hosts.naming_lost():
                initializer.seed = int(collectives.all_gather_scalar(self._home.hosts, initializer.seed)[0])
        return initializer

    def _shard_shape(self, index, size):
        columns = self.columns_of(index)
        if columns is None:
            return (size, *self.shape[1:])
        return (size, columns[1] - columns[0])

    def columns_of(self, key):
        """Return the columns `(start, stop)` that the part `key` has of its rows; None for all of them."""
        columns = self.placement.columns
        return None if columns is None or len(self.shape) == 1 else columns[key]

    @property
    def placement(self):
        return self._home.placement

    @property
    def table(self):
        """The `ShardedTable` that this array, or the array whose slot it is, belongs to."""
        return self._home

    @property
    def initialized(self):
        """False only while Keras builds a model symbolically and has not created its variables yet."""
        return self._missing == 0

    def part_created(self):
        """Note that a part has memory. After the last part the rows get their values."""
        self._missing -= 1
        if self._missing or self.first is not None:
            return
        with tf.init_scope():  # not in the graph of a train step that is being traced and makes its slots
            values = chunks.initial_rows(self._initializer, self.shape, self.dtype)
            if self._home.remote:
                self._fill_there(values)
            else:
                for start, stop in self.chunk_ranges():
                    self.write(start, values(start, stop))
        self._initializer = None

    def _fill_there(self, values):
        """Fill the parts on servers: each draws all rows and keeps its own. Indices cross the network,
        rows do not.
        """
        for start, stop in self.chunk_ranges():
            for part, here, there, columns in self._split(np.arange(start, stop)):
                with device_scope(part.copies[0]):
                    rows = values(start, stop)
                    rows = rows if columns is None else rows[:, columns[0] : columns[1]]
                    rows = rows if isinstance(here, slice) else tf.gather(rows, here)
                chunks.write_at(part.copies[0], there, rows)

    def chunk_ranges(self):
        return chunks.chunk_ranges(self.shape, tf.as_dtype(self.dtype).size)

    # Slots of the optimizer that trains this array: arrays like it, so that their rows move with its rows.

    def slot(self, name, fill, per_row):
        """Return the optimizer slot `name`: float32, of this shape or `[rows]`, whose rows are beside
        these.
        """
        if name not in self._slots:
            shape = self.shape[:1] if per_row else self.shape
            self._slots[name] = ShardedArray(
                shape, self._home, fill=fill, name=f"{self.name}_{name}", trainable=False
            )
        return self._slots[name]

    def forget_slots(self):
        """Forget the slots of an optimizer that no longer trains this array; `slot` makes new ones."""
        for slot in self._slots.values():
            for part in slot.parts.values():
                part.remove()
        self._slots = {}

    def arrays(self):
        """Return this array and its slots."""
        return [self, *self._slots.values()]

    # Rows.

    def write(self, start, rows):
        """Overwrites the logical rows from `start` on, in every part that has some of them."""
        if len(self.parts) == 1 and self._home.hosts.is_alone and self._is_identity():
            (part,) = self.parts.values()
            return part.write_at(np.arange(start, start + len(rows)), rows)
        rows = np.asarray(rows)
        for part, here, there, columns in self._split(np.arange(start, start + len(rows))):
            values = rows[here] if columns is None else rows[:, columns[0] : columns[1]]
            part.write_at(there, values)

    def read(self, rows, to_first=False):
        """Return the logical rows `rows` (ints, or a slice's `(start, stop)`) as a NumPy array.

        With `to_first` the first of several hosts gets those of all; the others, which must ask too, do not.
        """
        rows = np.arange(*rows) if isinstance(rows, tuple) else np.asarray(rows, np.int64)
        out = np.empty((len(rows), *self.shape[1:]), tf.as_dtype(self.dtype).as_numpy_dtype)
        for part, here, there, columns in self._split(rows):
            values = part.read_at(there)
            if columns is None:
                out[here] = values
            else:
                out[:, columns[0] : columns[1]] = values
        return out if self._home.hosts.is_alone else self._of_all_hosts(rows, out, to_first)

    def _of_all_hosts(self, rows, out, to_first):
        """Return `out`, of which each host has filled what is there: complete on every host, or on the
        first.
        """
        hosts, columns = self._home.hosts, self.placement.columns
        bring = collectives.gather_to_first if to_first else collectives.all_gather
        with tf.init_scope(), hosts.naming_lost():
            if columns is not None:
                mine = [out[:, slice(*columns[index])] for index in hosts.here]
                widest = max(stop - start for start, stop in columns)
                mine = [np.pad(part, [(0, 0), (0, widest - part.shape[1])]) for part in mine]
                (parts,) = bring(hosts, tf.constant(np.stack(mine)))
                for (start, stop), part in zip(columns, parts.numpy()):
                    out[:, start:stop] = part[:, : stop - start]
                return out
            owners, _ = self.placement.locate(rows)
            mine = np.flatnonzero((owners >= hosts.here[0]) & (owners <= hosts.here[-1]))
            values = out[mine] if out.dtype.kind != "u" else out[mine].astype("int64")
            places, values = bring(hosts, tf.constant(mine), tf.constant(values))
            out[places.numpy()] = values.numpy().astype(out.dtype)
        return out

    def scale(self, rows, factor):
        """Multiply the logical `rows` (int array) by a float, in the parts that this process has."""
        for part, _, local, _ in self._split(rows):
            local = part.written(local)
            if len(local):
                values = part.read_at(local)
                part.write_at(local, (values.astype("float32") * np.float32(factor)).astype(values.dtype))

    def _is_identity(self):
        return self.placement.columns is None and self.placement.kind in ("replicated", "range", "table")

    def _split(self, rows):
        """Yield `(part, which of rows, their local indices, columns or None)` of every part that has some."""
        if self.placement.columns is not None:
            for index, part in self.parts.items():
                yield part, slice(None), rows, self.columns_of(index)
            return
        owners, local = self.placement.locate(rows)
        for key, part in self.parts.items():
            here = np.flatnonzero(owners == (-1 if key == HOT else key))
            if len(here):
                yield part, here, local[here], None

    def logical(self, key, local):
        """Return the logical rows that the rows `local` of the part `key` are."""
        if self.placement.columns is not None:
            return np.asarray(local)
        start = 0 if key == HOT else self.placement.offsets[key]
        return self.placement.rows_at(start + np.asarray(local))

    def logical_tensor(self, key, local):
        """Locate rows in a graph, for placements that are a formula."""
        if key == HOT:
            return local
        return self.placement.tensor_of_rows(key, local)

    def numbering(self, key):
        """Return ints `(multiplier, addend, modulus)` that number the rows of the part `key`, as in
        `ops.row_update.rounding_numbers`.

        The numbers are logical rows where these are a formula, and else positions: no two rows of the array
        have the same.
        """
        if key == HOT:
            return 1, 0, 0
        placement = self.placement
        return (
            placement.formula_of_rows(key) if placement.has_formula else (1, int(placement.offsets[key]), 0)
        )

    def held(self, key, rows):
        """Return which of the logical `rows` the part `key` has, and their local indices."""
        for part, here, there, _ in self._split(np.asarray(rows, np.int64)):
            if part is self.parts[key]:
                return here, there
        return np.zeros(0, np.int64), np.zeros(0, np.int64)

    # All rows: chunk by chunk, and logical ones, so that what N devices wrote M devices read.

    def numpy(self):
        """Return the logical array, one copy of it."""
        return RowRange(self).numpy()

    def __array__(self, dtype=None, copy=None):
        return np.asarray(RowRange(self), dtype)

    def assign(self, value):
        """Overwrites the logical array. Raises ValueError for another shape."""
        RowRange(self).assign(value)

    def save(self, store, key):
        """Writes the rows to `store`: see `RowRange.save`."""
        RowRange(self).save(store, key)

    def load(self, store, key):
        """Reads back what `save` wrote, in place: see `RowRange.load`."""
        RowRange(self).load(store, key)
