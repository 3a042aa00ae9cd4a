"""`MappedShard`: rows of a table whose memory is a file."""

import contextlib
import os

import numpy as np
import tensorflow as tf

from keras_largeout.distribute.replicas.devices import on, plain_variable
from keras_largeout.distribute.tables.shard import ShardVariable
from keras_largeout.ops._library import ops

#: Bytes that a disk must have free beyond what a step writes for the first time: other files grow too.
_LEAST_FREE = 64 << 20
_PAGE = 4096


class MappedShard(ShardVariable):
    """A part of an array in a file. A row has its first values until it is written for the first time.

    Beside the rows a second file has a byte for each that says whether it was written; but for slots that
    begin at zero, as a new file does. Looking up writes nothing.

    Args:
        path: function from a name to the path of a file.
        **kwargs: as for `ShardVariable`, not `mirrored`.
    """

    def __init__(self, path, **kwargs):
        self._file_of, self._written = path, None
        super().__init__(**kwargs)

    def make(self):
        self._made = _mapped(self._file_of(self.name), self.shape, self.dtype, self.trainable, self.device)
        if self.array.fill is None or not self.array.first.are_zero:
            path = self._file_of(f"{self.name}.written")
            self._written = _mapped(path, self.shape[:1], "uint8", False, self.device)
        return self._made

    def read_at(self, local):
        with tf.init_scope():
            return self.gather(tf.constant(local, tf.int64)).numpy()

    def write_at(self, local, rows):
        super().write_at(local, rows)
        with tf.init_scope(), on(self._made):
            self._mark(tf.constant(local, tf.int64))

    def gather(self, local):
        with on(self._made):
            rows = self._rows(local)
        return rows

    def remove(self):
        """Removes the files: what is made under the same name begins anew."""
        for name in (self.name, f"{self.name}.written"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._file_of(name))

    def overwrite(self, local, rows):
        with on(self._made):
            self._prepare(local)
        super().overwrite(local, rows)

    def update_rows(self, rule, slots, indices, values, hyper):
        for part in (self, *slots):
            with on(self._made):
                part._prepare(indices)
        super().update_rows(rule, slots, indices, values, hyper)

    def _prepare(self, local):
        """Rows that were never written get their first values."""
        if self._written is None:
            return
        local = tf.cast(local, tf.int64)
        new = tf.boolean_mask(local, tf.gather(self._written, local) == 0)

        def write():
            free = tf.numpy_function(self._check_free, [tf.size(new)], tf.int64)
            with tf.control_dependencies([free]):
                first = self.array.first(self.array.logical_tensor(self.part, new))
                _scatter(self._made, new, first)
                self._mark(new)
            return tf.size(new)

        tf.cond(tf.size(new) > 0, write, lambda: 0)

    def _check_free(self, new):
        """Raises OSError before the disk is full: then a write into the mapping would end the process."""
        path = self._file_of(self.name)
        found = os.statvfs(path)
        free = found.f_bavail * found.f_frsize
        needed = _LEAST_FREE + int(new) * _PAGE * len(self.array.table.array.arrays())
        if free < needed:
            raise OSError(
                f"The disk of {path} is full: a step needs {needed:,} bytes. Received: {free:,} free bytes. "
                "The rows of this step were not written"
            )
        return np.int64(free)

    def _mark(self, local):
        if self._written is not None:
            _scatter(self._written, local, tf.ones(tf.shape(local), tf.uint8))

    def _rows(self, local):
        rows = tf.gather(self._made, local)
        if self.array.first.are_zero:
            return rows
        missing = tf.where(tf.gather(self._written, local) == 0)

        def first():
            logical = self.array.logical_tensor(self.part, tf.gather(local, missing[:, 0]))
            return tf.scatter_nd(missing, self.array.first(logical), tf.shape(rows, tf.int64))

        # What is there of a row that was not written is zero.
        added = tf.cond(tf.size(missing) > 0, first, lambda: tf.zeros_like(rows))
        return rows + tf.stop_gradient(added)


def _mapped(path, shape, dtype, trainable, device):
    def memory():
        return ops.largeout_mapped_table(path, tuple(shape), dtype=dtype)

    with tf.init_scope(), tf.device(device or "CPU:0"):
        return plain_variable(memory, dtype=dtype, trainable=trainable)


def _scatter(variable, local, rows):
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=local, updates=rows)
