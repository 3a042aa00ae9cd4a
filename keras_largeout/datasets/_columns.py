"""Columns of Arrow as NumPy: which types a use of a column accepts, and what its values become.

A *kind* is a use of a column: "category", "id", "time", "number" or "list".
"""

import functools

import numpy as np

MISSING_ID = -1
MISSING_TIME = np.iinfo(np.int64).min  # as NumPy's NaT
# What stands for a missing number, id or time in CSV files.
_MISSING = ("", "NA", "N/A", "#N/A", "NaN", "nan", "NULL", "null", "None", "none")
#: The argument of `TabularFiles` for each kind, and the columns that it takes. An error recommends the first
#: one that takes a column.
_USES = {
    "list": ("`lists`", "lists of integers, floats or strings"),
    "time": ("`times`", "dates or timestamps"),
    "id": ("`ids`", "integers"),
    "category": ("`categories`", "strings or integers"),
    "number": ("`numbers` and `target`", "numbers"),
}
#: What is said of a single value.
VALUE_RULES = {"id": "an integer", "time": "a date or a time", "number": "a number"}
#: Nanoseconds over units of Arrow's timestamps, per second.
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class Lists:
    """A column of lists, one a row.

    Args:
        values: array `[n]`, the elements of all lists.
        splits: int64 `[rows + 1]`: row i has `values[splits[i] : splits[i + 1]]`.
    """

    def __init__(self, values, splits):
        self.values, self.splits = values, splits

    def __len__(self):
        return len(self.splits) - 1

    def __getitem__(self, rows):
        """Return the lists of a slice, without a copy of values, or of an array of numbers of rows."""
        if isinstance(rows, slice):
            first, stop, _ = rows.indices(len(self))
            splits = self.splits[first : max(first, stop) + 1]
            return Lists(self.values[splits[0] : splits[-1]], splits - splits[0])
        lengths = np.diff(self.splits)[rows]
        splits = _splits(lengths)
        at = np.repeat(self.splits[rows] - splits[:-1], lengths) + np.arange(splits[-1])
        return Lists(self.values[at], splits)


def concat(columns):
    """Return several columns, arrays or `Lists`, as one."""
    if isinstance(columns[0], Lists):
        lengths = np.concatenate([np.diff(column.splits) for column in columns])
        return Lists(np.concatenate([column.values for column in columns]), _splits(lengths))
    return np.concatenate(columns)


def owned(column):
    """Return a column in memory that nobody else has: TensorFlow may write into what it was given.

    An array that NumPy made itself is writeable, one that Arrow has is not.
    """
    if isinstance(column, Lists):
        return Lists(owned(column.values), column.splits)
    return column if column.flags.writeable else column.copy()


def kind_of_values(arrow_type):
    """Return the kind that a list's values have: "id" (int64), "number" (float32), "category" (bytes)."""
    import pyarrow as pa

    inner = _plain(arrow_type.value_type)
    if pa.types.is_integer(inner):
        return "id"
    return "number" if pa.types.is_floating(inner) else "category"


def accepts(kind, arrow_type):
    """Return whether a column of this type can be used as `kind`."""
    import pyarrow as pa

    types, arrow_type = pa.types, _plain(arrow_type)
    if kind == "list":
        inner = _plain(arrow_type.value_type) if _is_list(arrow_type) else pa.null()
        return types.is_integer(inner) or types.is_floating(inner) or _is_text(inner)
    if kind == "time":
        return types.is_date(arrow_type) or types.is_timestamp(arrow_type)
    if kind == "id":
        return types.is_integer(arrow_type)
    if kind == "category":
        return types.is_integer(arrow_type) or types.is_boolean(arrow_type) or _is_text(arrow_type)
    numeric = (
        types.is_integer,
        types.is_floating,
        types.is_decimal,
        types.is_boolean,
        types.is_null,
        _is_text,
    )
    return any(check(arrow_type) for check in numeric)


def refusal(kind, name, arrow_type):
    """Return what is wrong with a column that cannot be used as `kind`, and which argument takes it."""
    argument, rule = _USES[kind]
    others = [_USES[other][0] for other in _USES if accepts(other, arrow_type)]
    other = f", a column for {others[0].split()[0]}" if others else ""
    return f"{argument} must name columns of {rule}. Received: {name!r} of type {arrow_type}{other}"


def cast(kind, column):
    """Return an Arrow column of numbers, ids or times in the type of its kind; missing values are null.

    Raises:
        pyarrow.ArrowInvalid: a value that is not of the kind.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _decoded(column)
    if _is_bytes(column.type):
        column = pc.cast(column, pa.string())
    if kind == "number":
        return pc.cast(column, pa.float32(), safe=False)
    if kind == "id":
        return pc.cast(column, pa.int64())
    if pa.types.is_timestamp(column.type):
        return column
    if not _is_text(column.type):
        return pc.cast(column, pa.timestamp("s"))
    try:
        return pc.cast(column, pa.timestamp("us"))
    except pa.ArrowInvalid:  # with the offset of a zone
        return pc.cast(column, pa.timestamp("us", "UTC"))


def cast_text(kind, column):
    """Return what `cast` does, of a CSV file's column of strings."""
    import pyarrow as pa
    import pyarrow.compute as pc

    missing = pc.is_in(column, value_set=_missing())
    return cast(kind, pc.if_else(missing, pa.scalar(None, column.type), column))


def filled(kind, column):
    """Return what `cast` gave as a NumPy array, with the kind's value for what is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind == "number":  # null becomes NaN
        return column.to_numpy(zero_copy_only=False)
    per_second = _PER_SECOND[column.type.unit] if kind == "time" else 1
    values = pc.cast(column, pa.int64())
    missing = MISSING_TIME if kind == "time" else MISSING_ID
    numbers = (pc.fill_null(values, missing) if values.null_count else values).to_numpy()
    if per_second == 1:
        return numbers
    return np.where(numbers == MISSING_TIME, MISSING_TIME, numbers // per_second)


def strings(column):
    """Return a column of strings or integers as an array of bytes objects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _decoded(column)
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.string())
    if not pa.types.is_binary(column.type):
        column = pc.cast(column, pa.binary())
    if column.null_count:
        column = pc.fill_null(column, b"")
    return column.to_numpy(zero_copy_only=False)


def lists(column):
    """Return a column of lists as `Lists`. A missing list is empty.

    Raises:
        pyarrow.ArrowInvalid: an unsigned integer that is no int64.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = kind_of_values(column.type)
    if column.null_count or pa.types.is_fixed_size_list(column.type):
        splits = _splits(pc.fill_null(pc.list_value_length(column), 0).to_numpy())
        values = column.flatten()  # without the places of missing lists
    else:
        offsets = column.offsets.to_numpy()
        splits = offsets - np.int64(offsets[0])
        values = column.values[offsets[0] : offsets[-1]]
    values = strings(values) if kind == "category" else filled(kind, cast(kind, values))
    return Lists(values, splits)


def _splits(lengths):
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return splits


def _decoded(column):
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return column
    views = pa.string_view(), pa.binary_view()  # of polars; Arrow cannot take rows from them
    if column.type.value_type in views:
        column = pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(pa.binary()))
    return column.dictionary_decode()


def _plain(arrow_type):
    import pyarrow as pa

    return arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type


def _is_list(arrow_type):
    import pyarrow as pa

    return any(
        check(arrow_type) for check in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    )


def _is_text(arrow_type):
    import pyarrow as pa

    names = ("string", "large_string", "string_view")
    return _is_bytes(arrow_type) or any(getattr(pa.types, f"is_{name}")(arrow_type) for name in names)


def _is_bytes(arrow_type):
    import pyarrow as pa

    names = ("binary", "large_binary", "binary_view")
    return any(getattr(pa.types, f"is_{name}")(arrow_type) for name in names)


@functools.cache
def _missing():
    import pyarrow as pa

    return pa.array(_MISSING)
