"""Records: a row of a table and its optimizer slots side by side in a file, so that a cold row is one read.

A table of records is a float32 variable `[rows, words]`. The layout of one record:
`custom_ops/row_update/records.h`. Its memory is that of the host: these ops run on CPUs alone.
"""

import numpy as np
import tensorflow as tf

from keras_largeout.files.record_marks import record_marks
from keras_largeout.ops import _library
from keras_largeout.ops.row_update import rounding_input, row_update_reference


def record_words(dtype, dim):
    """Return the float32 words of a record's mark and row: where its slots begin.

    Each slot takes `dim` words more, or one word where the rule has a slot per row ("row_wise_adagrad").

    Args:
        dtype: dtype of the row: float32 or bfloat16.
        dim: int >= 0, the values of the row.

    Returns:
        An int.

    Example:

    >>> record_words("float32", 64), record_words("bfloat16", 5)
    (65, 4)
    """
    return 1 + -(-dim * tf.as_dtype(dtype).size // 4)


def record_update(rule, variable, indices, values, hyper, dtype, dim, rounding=None):
    """Updates the rows `indices` and their slots inside records, in place, as `row_update` does, to the bit.

    A mark that is set becomes that of the new record; what follows the slots stays as it is. Memory that is a
    file is never copied, also where a value that was read before shares it: that value changes too.

    Args:
        rule: one of `row_update.RULES`.
        variable: float32 variable `[rows, words]`; at least `record_words(dtype, dim)` words, and those of
            the slots of `rule`.
        indices: `[n]`, int32 or int64, in `[0, rows)`. Duplicates are summed first.
        values: `[n, dim]`, float32 or bfloat16: the gradients of the rows.
        hyper: float32 vector, made by `row_update.<rule>_hyper`.
        dtype: dtype of the rows: float32 or bfloat16.
        dim: int >= 1, the values of a row.
        rounding: as in `row_update`.

    Raises:
        tf.errors.InvalidArgumentError: for an index outside `[0, rows)`, naming it, for records of too few
            words, and for shapes that do not belong together. Nothing is changed then.
        tf.errors.FailedPreconditionError: where the memory is a file that was opened read-only.

    Example:

    >>> records = tf.Variable(tf.zeros([10, record_words("float32", 3) + 3]))  # one slot
    >>> record_update("adagrad", records, [7], tf.ones([1, 3]), adagrad_hyper(0.1, 1e-7), "float32", 3)
    """
    _library.ops.largeout_record_update(
        variable=variable.handle,
        indices=indices,
        values=values,
        hyper=hyper,
        rounding=rounding_input(rounding),
        rule=rule,
        dtype=tf.as_dtype(dtype),
        dim=dim,
    )


def write_records(variable, indices, contents):
    """Writes whole records, and their marks.

    Args:
        variable: float32 variable `[rows, words]`.
        indices: `[n]`, int32 or int64, in `[0, rows)`. Of a row that is named several times the last record
            stays.
        contents: float32 `[n, words - 1]`, what is behind the mark of each record: the row and its slots.

    Raises:
        tf.errors.InvalidArgumentError: for an index outside `[0, rows)`, naming it, and for contents of
            another shape. Nothing is written then.
        tf.errors.FailedPreconditionError: where the memory is a file that was opened read-only.

    Example:

    >>> records = tf.Variable(tf.zeros([10, 3]))
    >>> write_records(records, [7], [[0.5, 0.25]])
    """
    _library.ops.largeout_write_records(variable=variable.handle, indices=indices, contents=contents)


def gather_records(variable, indices, dtype, dim):
    """Return the rows `indices` of a table of records, and which of them were ever written.

    It has no gradient.

    Args:
        variable: float32 variable `[rows, words]`, at least `record_words(dtype, dim)` words.
        indices: `[n]`, int32 or int64, in `[0, rows)`, in any order, also several times the same.
        dtype: dtype of the rows: float32 or bfloat16.
        dim: int, the values of a row. 0: marks alone are read, and not compared with the records.

    Returns:
        `(rows, written)`: `[n, dim]` of `dtype`, and bool `[n]`. A row that was never written is what is
        there: zeros in a new file.

    Raises:
        tf.errors.InvalidArgumentError: for an index outside `[0, rows)`, naming it, and for records of too
            few words.
        tf.errors.DataLossError: where a record is not the one that was written, naming file and row.

    Example:

    >>> records = tf.Variable([[0.0, 0.0], [1.0, 0.5]])  # 1.0: written, without a digest
    >>> rows, written = gather_records(records, [1, 0], "float32", 1)  # [[0.5], [0.0]], [True, False]
    """
    return tuple(
        _library.ops.largeout_gather_records(
            variable=variable.handle, indices=indices, dtype=tf.as_dtype(dtype), dim=dim
        )
    )


tf.no_gradient("Largeout>GatherRecords")


def record_lookup(variable, ids, row_splits, combiner, out_of_range, dtype, dim):
    """Return `ops.embedding_lookup` in the rows of records, and whether all of them were ever written.

    It has no gradient.

    Args:
        variable: float32 variable `[rows, words]`, at least `record_words(dtype, dim)` words.
        ids: int32 or int64 tensor: any shape without combiner, `[..., k]` with one, `[n]` with `row_splits`.
        row_splits: int64 `[0]`, or `[bags + 1]`.
        combiner, out_of_range: as in `ops.embedding_lookup`.
        dtype: dtype of the rows: float32 or bfloat16.
        dim: int >= 1, the values of a row.

    Returns:
        `(output, written)`: as of `embedding_lookup`, and a bool scalar. `output` is right where `written`.

    Raises:
        tf.errors.InvalidArgumentError: for an id out of range with out_of_range="error", naming it, and for
            records of too few words.
        tf.errors.DataLossError: where a record is not the one that was written, naming file and row.

    Example:

    >>> records = tf.Variable([[1.0, 2.0], [1.0, 0.5]])
    >>> splits = tf.zeros([0], tf.int64)
    >>> record_lookup(records, tf.constant([[1, 0]]), splits, "sum", "error", "float32", 1)[0]  # [[2.5]]
    """
    return tuple(
        _library.ops.largeout_record_lookup(
            variable=variable.handle,
            ids=ids,
            row_splits=row_splits,
            weights=tf.zeros([0], tf.float32),
            combiner=combiner or "none",
            out_of_range=out_of_range,
            dtype=tf.as_dtype(dtype),
            dim=dim,
        )
    )


tf.no_gradient("Largeout>RecordLookup")


def prefetch_rows(variable, indices):
    """Asks the system for rows of a variable whose memory is a file, and does not wait for them.

    What uses them later finds them in memory. Where the memory is no file, nothing happens.

    Args:
        variable: variable `[rows, ...]` of any dtype.
        indices: `[n]`, int32 or int64, in `[0, rows)`. The disk likes them in ascending order.

    Raises:
        tf.errors.InvalidArgumentError: for an index outside `[0, rows)`, naming it.

    Example:

    >>> prefetch_rows(records, next_ids)
    >>> rows, written = gather_records(records, ids, "float32", 64)  # the next ids are on their way meanwhile
    """
    _library.ops.largeout_prefetch_rows(variable=variable.handle, indices=indices)


def remap_variable(variable, path, shape, read_only=False):
    """Makes another file the memory of a variable, without a copy: what the op MappedTable would return.

    (An assignment copies the whole table into memory, once the variable has had a sparse update.)

    Args:
        variable: variable of float32, bfloat16 or uint8.
        path: str, the file. It is made, and reads as zeros, where it is not there.
        shape: `[rank]`, int64: a shape that `variable` may have. An existing file must have just its bytes.
        read_only: whether the file must be there already, and is never written.

    Raises:
        tf.errors.FailedPreconditionError: for a file that is not there, or has other bytes.
        tf.errors.InvalidArgumentError: for a shape that `variable` may not have. It keeps its memory.

    Example:

    >>> remap_variable(records, "/data/table.2", [10_000_000, 193])
    """
    _library.ops.largeout_remap_variable(
        variable=variable.handle,
        path=path,
        shape=tf.cast(shape, tf.int64),
        dtype=tf.as_dtype(variable.dtype),
        read_only=read_only,
    )


def record_update_reference(rule, records, indices, values, hyper, dtype, dim, rounding=None):
    """Return what `record_update` does, in NumPy and out of place.

    Args:
        rule, indices, values, hyper, dtype, dim, rounding: As in `record_update`, as arrays.
        records: float32 array `[rows, words]`.

    Returns:
        The records after the update, a new array.
    """
    dtype, out = tf.as_dtype(dtype).as_numpy_dtype, np.array(records, order="C")
    row_bytes, begin = dim * np.dtype(dtype).itemsize, record_words(dtype, dim)
    width = 1 if rule == "row_wise_adagrad" else dim
    count = {"sgd": 0, "lazy_adam": 2, "ftrl": 2}.get(rule, 1)
    places = [slice(begin + k * width, begin + (k + 1) * width) for k in range(count)]
    slots = [out[:, place] for place in places]
    if rule == "row_wise_adagrad":
        slots = [slot[:, 0] for slot in slots]
    rows, _ = gather_records_reference(out, np.arange(len(out)), dtype, dim)
    rows, slots = row_update_reference(rule, rows, slots, indices, values, hyper, rounding)
    out.view(np.uint8)[:, 4 : 4 + row_bytes] = rows.view(np.uint8).reshape(len(out), row_bytes)
    for place, slot in zip(places, slots):
        out[:, place] = slot.reshape(len(out), width)
    marked = np.unique(indices)
    marked = marked[out[marked, 0].view(np.uint32) != 0]
    out[marked, 0] = record_marks(out[marked, 1:], marked)
    return out


def gather_records_reference(records, indices, dtype, dim):
    """Return what `gather_records` returns, in NumPy.

    Args:
        records: float32 array `[rows, words]`.
        indices, dtype, dim: As in `gather_records`, as arrays.

    Returns:
        `(rows, written)`, arrays.
    """
    dtype = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    found = np.ascontiguousarray(records[np.asarray(indices, np.int64)])
    rows = found.view(np.uint8)[:, 4 : 4 + dim * dtype.itemsize]
    rows = np.ascontiguousarray(rows).view(dtype) if dim else np.zeros((len(found), 0), dtype)
    return rows, found[:, 0].view(np.uint32) != 0
