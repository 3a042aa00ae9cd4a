"""`RowRange`: consecutive logical rows of a `ShardedArray`, such as one table of several stacked ones."""

import contextlib
import math
import warnings

import numpy as np
import tensorflow as tf

from keras_largeout.files.array_digests import saved_shapes
from keras_largeout.files.verified_loading import may_have_other_rows, only_checking
from keras_largeout.tables import chunks
from keras_largeout.tables.server_files import (
    check_there,
    load_there,
    save_there,
    saved_there,
)

#: Rows of more bytes are not made one array without a warning.
LARGE_BYTES = 1 << 30


class RowRange:
    """The logical rows `start .. stop` of an array, read, written and saved in chunks of rows.

    Nothing is read before it is asked for; `np.asarray` of a span reads all of it.

    Args:
        array: `ShardedArray`.
        start, stop: ints; all rows by default.

    Attributes:
        shape: tuple of ints, `(stop - start, ...)`.
        dtype: dtype name.
    """

    def __init__(self, array, start=0, stop=None):
        self.array, self.start = array, start
        self.shape = ((array.shape[0] if stop is None else stop) - start, *array.shape[1:])
        self.dtype = array.dtype

    def chunk_ranges(self):
        """Return `(start, stop)` of every chunk of rows, counted from the first row of the span."""
        return chunks.chunk_ranges(self.shape, tf.as_dtype(self.dtype).size)

    def read(self, start, stop, to_first=False):
        """Return the rows `start .. stop` of the span as a NumPy array; `to_first`: see
        `ShardedArray.read`.
        """
        return self.array.read((self.start + start, self.start + stop), to_first)

    def numpy(self):
        """Return all rows, one copy of them."""
        out = np.empty(self.shape, tf.as_dtype(self.dtype).as_numpy_dtype)
        for start, stop in self.chunk_ranges():
            out[start:stop] = self.read(start, stop)
        return out

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, key):
        """Return rows, and then columns, as of a NumPy array; only the rows that are asked for are read.

        Raises:
            IndexError: a row that is not there.
        """
        rows, *rest = key if isinstance(key, tuple) else (key,)
        if rows is Ellipsis or rows is None or len(rest) > len(self.shape) - 1:
            return self.numpy()[key]
        wanted = _row_numbers(rows, self.shape[0])
        numbers, places = np.unique(wanted, return_inverse=True)
        found = np.empty((len(numbers), *self.shape[1:]), tf.as_dtype(self.dtype).as_numpy_dtype)
        for first, last in _runs(numbers):
            found[first:last] = self.read(int(numbers[first]), int(numbers[last - 1]) + 1)
        found = found[places.reshape(wanted.shape)]
        return found[(slice(None),) * wanted.ndim + tuple(rest)] if rest else found

    def __array__(self, dtype=None, copy=None):
        size = math.prod(self.shape) * tf.as_dtype(self.dtype).size
        if size > LARGE_BYTES:
            warnings.warn(
                f"Rows of {self.array.name!r} are copied into one array of {size / 2**30:.1f} GiB. "
                "`read(start, stop)` reads some of them.",
                stacklevel=2,
            )
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def assign(self, value):
        """Overwrites all rows.

        Raises:
            ValueError: another shape.
        """
        if tuple(value.shape) != self.shape:
            raise ValueError(
                f"`value` must have the shape of the table, {self.shape}. "
                f"Received: value.shape={tuple(value.shape)}"
            )
        with self._overwriting():
            for start, stop in self.chunk_ranges():
                self.array.write(self.start + start, value[start:stop])

    def scale(self, factor):
        """Multiply all rows that this process has by a float, a chunk at a time.

        Rows in files that were never written keep their first values, and take up no disk.
        """
        for start, stop in self.chunk_ranges():
            self.array.scale(np.arange(self.start + start, self.start + stop), factor)

    def _overwriting(self):
        folder = self.array.table.folder
        if folder is None:
            return contextlib.nullcontext()
        return folder.overwriting(f"{self.array.name}:{self.start}")

    def save(self, store, key):
        """Writes the rows to `store`: `{key}_rows_000000`, `{key}_rows_000001`, ..., a chunk each.

        Inside `kl.distribute.server_files` servers write the rows, and `store` says where.

        Args:
            store: the mutable mapping that Keras hands to `save_own_variables`.
            key: str without "/".
        """
        if save_there(self, store, key):
            return
        hosts = self.array.table.hosts
        for index, (start, stop) in enumerate(self.chunk_ranges()):
            rows = self.read(start, stop, to_first=True)
            if not hosts.is_first:
                continue  # its rows went to the first host, which writes
            # HDF5 has no bfloat16; float32 holds every one of its values.
            store[chunks.key_of(key, index)] = rows.astype("float32") if self.dtype == "bfloat16" else rows

    def check(self, store, key):
        """Raises ValueError unless `load` could read these rows from `store`.

        Raises:
            OSError: a file of a server is missing or, in a pass that only checks, damaged.
        """
        said = saved_there(store, key)
        if said is not None:
            check_there(self, said, read=only_checking())
        saved = saved_shape(store, key)
        if saved is None and 0 not in self.shape:
            raise ValueError(
                f"The weights file holds no rows for `{key}`. Expected an array of shape {self.shape}. "
                "(Keras files weights by the class of their layer; other layers' come by `set_weights`.)"
            )
        fits = saved in (None, self.shape) or (may_have_other_rows() and saved[1:] == self.shape[1:])
        if not fits:
            raise ValueError(
                f"The weights file does not fit `{key}`: expected shape {self.shape}. "
                f"Received: shape {saved}."
            )

    def load(self, store, key):
        """Reads back what `save` wrote, whatever the chunks and the placement were, in place.

        Raises:
            ValueError: the store holds no such rows, or rows of another shape; nothing is then changed.
        """
        self.check(store, key)
        said = saved_there(store, key)
        if said is not None:
            return load_there(self, said)
        start = self.start
        with self._overwriting():
            for name in chunks.saved_chunks(store, key):
                rows = np.asarray(store[name])[: self.start + self.shape[0] - start]
                if len(rows):
                    self.array.write(start, rows)
                start += len(rows)

    def __repr__(self):
        return (
            f"<RowRange of {self.array.name}, rows {self.start} on, shape={self.shape}, dtype={self.dtype}>"
        )


def _row_numbers(key, rows):
    """Return what NumPy's subscript `key` asks for of so many rows: an array of numbers from 0 on."""
    if isinstance(key, slice):
        return np.arange(*key.indices(rows))
    key = np.asarray(key)
    if key.dtype == bool:
        if key.shape != (rows,):
            raise IndexError(f"A mask of rows must have the shape ({rows},). Received: shape {key.shape}")
        return np.flatnonzero(key)
    key = key.astype(np.int64, casting="same_kind") if key.size else key.astype(np.int64)
    if key.size and (key.min() < -rows or key.max() >= rows):
        raise IndexError(f"Rows must be in [-{rows}, {rows}). Received: {key.min()} .. {key.max()}")
    return np.where(key < 0, key + rows, key)


def _runs(numbers):
    """Return `(first, last)` of the runs of consecutive ones among ascending numbers."""
    if not len(numbers):
        return []
    cuts = np.flatnonzero(np.diff(numbers) > 1) + 1
    return zip([0, *cuts], [*cuts, len(numbers)])


def saved_shape(store, key):
    """Return the shape of the array that `RowRange.save` wrote to `store` as `key`; None where there is
    none.
    """
    said = saved_there(store, key)
    if said is not None:
        return tuple(said["shape"])
    names, known = chunks.saved_chunks(store, key), saved_shapes(store)
    shapes = [known[n] if n in known else np.shape(store[n]) for n in names]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if shapes else None
