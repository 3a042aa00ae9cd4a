"""`MappedShard`: rows of a table whose memory is a file; `MappedSlot`: what is beside them."""

import functools
import math
import os

import numpy as np
import tensorflow as tf

from keras_largeout.ops._gradients import row_gradient, with_gradient
from keras_largeout.ops.records import gather_records, prefetch_rows, record_update, write_records
from keras_largeout.replicas.devices import device_scope
from keras_largeout.tables.shard import ShardVariable
from keras_largeout.tables.storage.records import Records, content_of

#: Bytes that a disk must have free beyond what a step writes for the first time: other files grow too.
_LEAST_FREE = 64 << 20
_PAGE = 4096


class MappedShard(ShardVariable):
    """A part of a table in a file. A row has its first values until it is written for the first time.

    Looking up writes nothing.

    Args:
        folder: `TableFolder`.
        **kwargs: as for `ShardVariable`, not `mirrored`.

    Attributes:
        records: the `Records` of the file.
    """

    can_prefetch = True
    fuses_updates = False

    def __init__(self, folder, shape, **kwargs):
        self._folder, self._dim = folder, math.prod(shape[1:])
        super().__init__(shape=shape, **kwargs)

    def make(self):
        shape, device = (self.shape[0], self._dim), self.device or "CPU:0"
        self.records = Records(
            self._folder, self.name, *shape, self.dtype, device, self.trainable, self._refusal
        )
        self._made = self.records.variable
        return self._made

    def prefetch(self, indices):
        with tf.init_scope(), device_scope(self._made):
            prefetch_rows(self._made, tf.constant(indices, tf.int64))

    def read_at(self, indices):
        with tf.init_scope(), device_scope(self._made):
            return self.rows(tf.constant(indices, tf.int64)).numpy()

    def write_at(self, indices, rows):
        with tf.init_scope():
            self.overwrite(tf.constant(indices, tf.int64), rows)

    def written(self, indices):
        with tf.init_scope(), device_scope(self._made):
            _, written = gather_records(self._made, tf.constant(indices, tf.int64), self.dtype, 0)
        return indices[written.numpy()]

    def numpy(self):
        """Raises ValueError: rows in files are read in pieces."""
        raise ValueError(self._refusal)

    @property
    def _refusal(self):
        return (
            f"The weight {self.path!r} must be read in pieces: its rows are in files, and may not fit "
            "memory. `layer.table.array.read((start, stop))` reads some, `layer.table.numpy()` all of them; "
            "`model.save` and `kl.callbacks.BackupAndRestore` save them. For a penalty give the layer an "
            "`embeddings_regularizer`, which acts on the rows of the batch. (EarlyStopping must have "
            "restore_best_weights=False.) Received: a request for all of its rows as one array or tensor"
        )

    def gather(self, indices):
        with device_scope(self._made):
            rows = self.rows(indices)
            shape = tuple(self.shape)

            def gradient(upstream):
                values = tf.ensure_shape(upstream, [None, *shape[1:]])
                return [row_gradient(tf.constant(shape, tf.int64), indices, values)]

            return with_gradient(gradient, rows, [], [self._made])

    def overwrite(self, indices, rows):
        with device_scope(self._made):
            indices = self.prepare(indices)
            records = tf.gather(self._made, indices)
            rows = tf.reshape(tf.cast(rows, self.dtype), [-1, self._dim])
            write_records(self._made, indices, content_of(rows, records[:, self.records.begin :]))

    def update_rows(self, rule, slots, indices, values, hyper, rounding=None):
        with device_scope(self._made):
            indices = self.prepare(indices)
            values = tf.reshape(values, [-1, self._dim])
            record_update(rule, self._made, indices, values, hyper, self.dtype, self._dim, rounding)

    def prepare(self, indices):
        """Give rows and slots that were never written their first values. Call it before they are written.

        Returns:
            `indices`, for what writes.
        """
        self._folder.check_writable()
        indices = self.records.checked(indices)
        _, written = gather_records(self._made, indices, self.dtype, 0)
        new = tf.cast(tf.boolean_mask(indices, ~written), tf.int64)

        def write():
            pages = 1 + -(-4 * self.records.words // _PAGE)
            check = functools.partial(_check_free, self._folder.path, pages)  # TensorFlow keeps it for good
            free = tf.numpy_function(check, [tf.size(new)], tf.int64)
            with tf.control_dependencies([free]):
                behind = self.records.behind_row()
                behind = tf.broadcast_to(behind, [tf.size(new), len(behind)])
                write_records(self._made, new, content_of(self._first(new), behind))
            return tf.size(new)

        tf.cond(tf.size(new) > 0, write, lambda: 0)
        return indices

    def records_at(self, indices):
        """Return whole records as they are in the file, and which of them were ever written."""
        _, written = gather_records(self._made, indices, self.dtype, self._dim)
        return tf.gather(self._made, indices), written

    def rows(self, indices):
        """Return the rows `indices` (int64 tensor), first values in those never written; it has no
        gradient.
        """
        indices = self._folder.while_open(indices)
        rows, written = gather_records(self._made, indices, self.dtype, self._dim)
        if not self.array.first.are_zero:  # as a new file is
            missing = tf.where(~written)

            def filled():
                first = self._first(tf.cast(tf.gather(indices, missing[:, 0]), tf.int64))
                return tf.tensor_scatter_nd_update(rows, missing, first)

            rows = tf.cond(tf.size(missing) > 0, filled, lambda: rows)
        return tf.reshape(rows, [-1, *tuple(self.shape)[1:]])

    def _first(self, indices):
        """Return the first values of rows, `[n, dim]`."""
        logical = self.array.logical_tensor(self.part, indices)
        return tf.reshape(self.array.first(logical), [-1, self._dim])


def _check_free(folder, pages, new):
    """Raises OSError before the disk is full: then a write into the mapping would end the process.

    Args:
        folder: str, a path on the disk.
        pages: int, that a record can touch.
        new: int, records that are written for the first time.
    """
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    needed = _LEAST_FREE + int(new) * _PAGE * pages
    if free < needed:
        raise OSError(
            f"The disk of {folder} is full: a step needs {needed:,} bytes. Received: {free:,} free bytes. "
            "The rows of this step were not written"
        )
    return np.int64(free)


class MappedSlot:
    """An optimizer slot beside the rows of a `MappedShard`: some words of each record.

    It has the methods of a `ShardVariable` for single rows.

    Args:
        array: the `ShardedArray` of the slot.
        part: its key among the array's parts.
        shape: tuple of ints.
        name: str.
        **kwargs: as for `ShardVariable`.
    """

    def __init__(self, array, part, shape, name, dtype, **kwargs):
        self.array, self.part, self.shape, self.name, self.dtype = array, part, tuple(shape), name, dtype
        self._values = array.table.array.parts[part]
        self._words = math.prod(shape[1:])
        self._values.records.claim(name, self._words, array.fill)
        array.part_created()

    @property
    def value(self):
        """The `tf.Variable` of the records."""
        return self._values.value

    @property
    def copies(self):
        return self._values.copies

    def read_at(self, indices):
        with tf.init_scope(), device_scope(self.value):
            begin, end = self._values.records.place(self.name)
            records, written = self._values.records_at(tf.constant(indices, tf.int64))
            values = tf.where(written[:, None], records[:, begin:end], self.array.fill)
            return tf.reshape(values, [-1, *self.shape[1:]]).numpy()

    def write_at(self, indices, rows):
        with tf.init_scope():
            self.overwrite(tf.constant(indices, tf.int64), rows)

    def overwrite(self, indices, rows):
        """Overwrites the slot of the rows `indices` (a tensor), in place."""
        begin, end = self._values.records.place(self.name)
        with device_scope(self.value):
            indices = self._values.prepare(indices)
            records = tf.gather(self.value, indices)
            rows = tf.reshape(tf.cast(rows, tf.float32), [-1, self._words])
            write_records(
                self.value, indices, tf.concat([records[:, 1:begin], rows, records[:, end:]], axis=1)
            )

    def remove(self):
        """Remove the slot, which no optimizer uses any longer."""
        self._values.records.release(self.name)
