"""`ShardVariable`: the rows of a table that are in one place, as a weight that Keras can own."""

import keras
import numpy as np
import tensorflow as tf

from keras_largeout._keras import LazyTfVariable, move_variable
from keras_largeout.ops._gradients import row_gradient, with_gradient
from keras_largeout.ops.embedding.update import embedding_update
from keras_largeout.ops.row_update import row_update
from keras_largeout.replicas.devices import device_scope, per_device_variables, replica_copy
from keras_largeout.tables import chunks


class ShardVariable(LazyTfVariable):
    """One part of a `ShardedArray`: a shard on one device, or the rows that every device has a copy of.

    It is created, read and written in chunks (`tables/chunks.py`), is not cast by mixed precision
    (`autocast=False`: a cast would be a second table), and makes its own optimizer slots beside it
    (`new_slot`).

    Args:
        array: the `ShardedArray` whose part it is.
        part: its key among the array's parts.
        shape: tuple of ints.
        dtype: dtype name.
        name: str.
        trainable: bool.
        device: device name, or None for TensorFlow's choice.
        mirrored: whether every device of the strategy has a copy.

    Attributes:
        kept: where an optimizer accumulates gradients, the `RowAccumulator` of this part; else None.
        can_prefetch: whether steps are faster where `prefetch` has said which rows they will use.
        fuses_updates: whether there is a way `update_by_lookup`.
        has_places: whether a row stays where it is, so that its place tells which row it is.
    """

    kept = None
    can_prefetch = False
    fuses_updates = True
    has_places = True
    _made = None  # the `tf.Variable`

    def __init__(self, array, part, shape, dtype, name, trainable, device=None, mirrored=False):
        self.array, self.part = array, part
        self.device, self.mirrored = device, mirrored
        super().__init__(shape=tuple(shape), dtype=dtype, name=name, trainable=trainable, autocast=False)

    def make(self):
        self._made = chunks.create(
            tuple(self.shape),
            self.dtype,
            name=self.name,
            trainable=self.trainable,
            device=self.device,
            mirrored=self.mirrored,
        )
        return self._made

    def when_made(self):
        self.array.part_created()

    @property
    def initialized(self):
        """False only while Keras builds a model symbolically and has not created its variables yet."""
        return self._made is not None

    @property
    def value(self):
        """The `tf.Variable`; while `initialized` is False, zeros of the right shape for shape inference."""
        return super().value if self.initialized else tf.zeros(self.shape, self.dtype)

    @property
    def path(self):
        """Keras's path. The name of an optimizer slot begins with the path of its weight, as in Keras."""
        if self.array.fill is None:
            return super().path
        scope = super().path.rpartition("/")[0]
        values = self.array.table.array
        named = f"{values.parts[self.part].path.replace('/', '_')}{self.array.name.removeprefix(values.name)}"
        return f"{scope}/{named}" if scope else named

    @property
    def copies(self):
        """The `tf.Variable`s: one per device where the part is mirrored, else one."""
        return per_device_variables(self._made)

    def device_scope(self):
        """Return a context in which ops run on the device that updates the rows: gradients are summed
        there.
        """
        return device_scope(self.copies[0])

    def move(self, device):
        """Move the rows of this part and its slots to another device. (Rows in host memory or files stay.)

        Raises:
            ValueError: the table has parts on several devices.
        """
        home, old = self.array.table, self._made
        if home.is_offloaded:
            return
        if len(home.devices) > 1:
            raise ValueError(
                "A table must not be cut over several devices to be put on one. "
                f"Received: {self.path!r}, a part of a table on {home.devices}"
            )
        self.device, home.devices, home.memories = device, (device,), (device,)
        if old is None:  # it is made there
            return
        move_variable(self, self.make())
        for start, stop in chunks.chunk_ranges(tuple(self.shape), tf.as_dtype(self.dtype).size):
            rows = np.arange(start, stop)
            self.write_at(rows, chunks.read_at(old, rows))
        for slot in self.slots():
            slot.move(device)

    # Single rows, by their indices here: `MappedShard` and `CachedShard` have other ways.

    def read_at(self, indices):
        """Return the rows `indices` (int array) as a NumPy array."""
        return chunks.read_at(self.copies[0], indices)

    def write_at(self, indices, rows):
        """Overwrites the rows `indices` (int array), in place, in every copy."""
        for copy in self.copies:
            chunks.write_at(copy, indices, rows)

    def written(self, indices):
        """Return those of `indices` (int array) whose rows have memory: all of them, except in files."""
        return indices

    def gather(self, indices):
        """Return the rows `indices` (int64 tensor) as a step looks them up, where they are;
        differentiable.
        """
        source = replica_copy(self.value)
        with device_scope(source):
            if self.array.table.is_whole or not self.initialized:
                return tf.gather(source, indices)
            # TensorFlow's own gradient reshapes the indices, which then travel a second time.
            rows, shape = tf.gather(source, indices), source.shape.as_list()
            return with_gradient(lambda grad: [row_gradient(shape, indices, grad)], rows, [], [source])

    def overwrite(self, indices, rows):
        """Overwrites the rows `indices` (a tensor) in a step, in place, in every copy."""
        for copy in self.copies:
            with device_scope(copy):
                tf.raw_ops.ResourceScatterUpdate(
                    resource=copy.handle, indices=indices, updates=tf.cast(rows, copy.dtype)
                )

    def update_rows(self, rule, slots, indices, values, hyper, rounding=None):
        """Updates rows and their slots in a step, in place, in every copy: see `ops.row_update`.

        Args:
            slots: the parts of the slots that are beside this one.
        """
        update_copies(rule, self.copies, [slot.copies for slot in slots], indices, values, hyper, rounding)

    def update_by_lookup(self, rule, slots, lookup, hyper, rounding=None):
        """Update rows by the gradient of a lookup, a `LookupGradient`, of a part without copies."""
        update_by_lookup(rule, self.copies, [slot.copies for slot in slots], lookup, hyper, rounding)

    def prefetch(self, indices):
        """Prefetch the rows that the next steps will use. The current steps use the rows of the last call.

        Args:
            indices: int64 array, different ones, ascending.

        Returns:
            None, or a function without arguments, to be called when these steps are about to begin.
        """

    def remove(self):
        """Remove this part of a slot, which nothing uses any longer."""

    def new_slot(self, name, fill=0.0, per_row=False):
        """Return an optimizer slot beside this part: float32, its shape or `[rows]`, every value `fill`."""
        return self.array.slot(name, fill, per_row).parts[self.part]

    def slots(self):
        """Return the optimizer slots that were made beside this part."""
        return [slot.parts[self.part] for slot in self.array.arrays()[1:]]

    def assign(self, value):
        """Overwrites all rows: chunk by chunk, or in the graph of a `tf.function` at once.

        Raises:
            ValueError: `value` has another shape.
        """
        if not self.initialized:
            return super().assign(value)
        if isinstance(value, keras.Variable):
            value = value.value
        if tuple(value.shape) != tuple(self.shape):
            raise ValueError(
                f"`value` must have the shape of the weight, {tuple(self.shape)}. "
                f"Received: value.shape={tuple(value.shape)}"
            )
        if not tf.executing_eagerly():
            self.overwrite(tf.range(self.shape[0], dtype=tf.int64), tf.convert_to_tensor(value))
            return self
        for start, stop in chunks.chunk_ranges(tuple(self.shape), tf.as_dtype(self.dtype).size):
            rows = (
                chunks.read_at(per_device_variables(value)[0], np.arange(start, stop))
                if isinstance(value, tf.Variable)
                else value[start:stop]
            )
            self.write_at(np.arange(start, stop), rows)
        return self

    def numpy(self):
        """Return all rows as a NumPy array (one copy of them)."""
        out = np.empty(tuple(self.shape), tf.as_dtype(self.dtype).as_numpy_dtype)
        for start, stop in chunks.chunk_ranges(tuple(self.shape), tf.as_dtype(self.dtype).size):
            out[start:stop] = self.read_at(np.arange(start, stop))
        return out

    def __array__(self, dtype=None, copy=None):
        return self.numpy().astype(dtype, copy=False) if dtype is not None else self.numpy()

    def __repr__(self):
        return f"<ShardVariable path={self.path}, shape={tuple(self.shape)}, dtype={self.dtype}>"


def update_copies(rule, copies, slots, indices, values, hyper, rounding=None):
    """Run one `row_update` on each device that has the rows: the owner, or every device with a copy.

    Args:
        copies: list of `tf.Variable`s.
        slots: for each slot a list of `tf.Variable`s, those beside the copies.
    """
    for copy, *own_slots in zip(copies, *slots):
        with device_scope(copy):
            row_update(rule, copy, own_slots, indices, values, hyper, rounding=rounding)


def update_by_lookup(rule, copies, slots, lookup, hyper, rounding=None):
    """Update rows by the gradient of a lookup, a `LookupGradient`, in one pass."""
    for copy, *own_slots in zip(copies, *slots):
        with device_scope(copy):
            embedding_update(rule, copy, own_slots, lookup, hyper, rounding)


def refuse_files(shards):
    """Raise ValueError where one of the `ShardVariable`s is a part of a table in files."""
    for shard in shards:
        folder = shard.array.table.folder
        if folder is not None:
            raise ValueError(
                "`storage` of a table in a tf.train.Checkpoint must be 'device' or 'host': a checkpoint has "
                "all rows in memory. Save this model by `model.save` or `kl.callbacks.BackupAndRestore`, "
                f"which go over the rows in pieces. Received: {shard.path!r} with its rows in {folder.path}"
            )


def outside_tables(variables):
    """Return a list of the variables that are neither a part of a table nor of a table's slot."""
    return [variable for variable in variables if not isinstance(variable, ShardVariable)]
