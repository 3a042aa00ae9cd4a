"""The base of all readers of tables: Arrow batches as dictionaries of NumPy columns, and malformed rows."""

import contextlib
import os

import numpy as np

from keras_largeout.datasets import _columns

#: The key of a block's numbers of rows: where each row stands in its source, counted from 0.
ROW = None


class RowReader:
    """One source of rows: a file or a table. What is read of it, a `TabularFiles` says.

    Args:
        source: str, or a pyarrow Table.
        rows: the `TabularFiles`.

    Attributes:
        name: str, of the source, for people.
        bytes_read: int, about, by the latest `read`.
        skipped: int, the rows that were left out.
        first_skipped: str, what was wrong with the first of them.
    """

    #: Whether columns have types; whether those of an Arrow batch are memory that others see, too.
    has_types, shares_memory = True, False

    def __init__(self, source, rows):
        self.source, self.rows, self.name = source, rows, source
        self.bytes_read, self.skipped, self.first_skipped = 0, 0, None

    def read(self, first, stop, block_rows):
        """Iterate over rows `first` to `stop` (None: the last): blocks of at most about `block_rows`.

        A block is `{name: column}`; at `ROW` are the numbers of its rows.
        """
        raise NotImplementedError

    def groups(self):
        """Return the numbers of rows of the parts that can be read without the others; None: unknown."""
        raise NotImplementedError

    def size(self):
        """Return the bytes of the source."""
        raise NotImplementedError

    def check_columns(self):
        """Raises ValueError where a wanted column is missing, or has a type that its use does not take."""
        raise NotImplementedError

    def list_kinds(self):
        """Return `{name: kind of the values}` of the columns of lists."""
        return {}

    def place(self, row):
        """Return where the row is that came as number `row`, counted from 0, for people."""
        raise NotImplementedError

    def cast(self, kind, column):
        """Return an Arrow column of numbers, ids or times in the type of its kind, as `_columns.cast`."""
        return _columns.cast(kind, column)

    def require(self, names):
        """Raises ValueError where a wanted column is not among `names`."""
        missing = [name for name in self.rows.kinds if name not in names]
        if missing:
            raise ValueError(f"{self.name} must have the columns {missing}. Received: {list(names)}")

    def check_schema(self, schema):
        """Raises ValueError where a column has a type that its use does not take."""
        for name, kind in self.rows.kinds.items():
            found = schema.field(name).type
            if not _columns.accepts(kind, found):
                raise ValueError(f"{self.name}: {_columns.refusal(kind, name, found)}")
            expected = self.rows.list_kinds.get(name)
            if expected and _columns.kind_of_values(found) != expected:
                raise ValueError(
                    f"{self.name}: {name!r} must have lists of the same kind as in the first file, "
                    f"{expected}. Received: type {found}"
                )

    def kinds_of_lists(self, schema):
        return {name: _columns.kind_of_values(schema.field(name).type) for name in self.rows.lists}

    @contextlib.contextmanager
    def naming_errors(self, format, *errors):
        """A context that raises a ValueError with the name of the source in the place of such errors."""
        try:
            yield
        except errors as error:
            raise ValueError(f"{self.name} cannot be read as {format}: {error}") from None

    def block(self, batch, first):
        """Return the columns of an Arrow batch. Malformed rows are left out, or refused.

        Args:
            batch: a RecordBatch.
            first: int, the number of its first row.
        """
        columns, bad = {}, {}
        for name, kind in self.rows.kinds.items():
            columns[name], wrong = self._convert(name, kind, batch.column(name))
            bad = wrong | bad
            if self.shares_memory:
                columns[name] = _columns.owned(columns[name])
        for row in sorted(bad):
            self.malformed(bad[row], lambda k=first + row: self.place(k))
        rows = np.arange(len(batch))
        columns[ROW] = rows + first
        if not bad:
            return columns
        good = np.setdiff1d(rows, list(bad))
        return {name: column[good] for name, column in columns.items()}

    def malformed(self, why, place):
        """Skip or refuse a row. `place()` says where it is: finding that may take time."""
        if self.skipped:
            self.skipped += 1
            return
        text = f"{self.name}, {place()}: {why}"
        if self.rows.on_malformed == "error":
            raise ValueError(text)
        self.skipped, self.first_skipped = 1, text

    def _convert(self, name, kind, column):
        """Return a NumPy column or `Lists`; and `{row: what is wrong}`."""
        import pyarrow as pa

        wrong = {}
        if kind == "category":
            return _columns.strings(column), wrong
        if kind == "list":
            try:
                values = _columns.lists(column)
            except pa.ArrowInvalid as error:
                raise ValueError(f"{self.name}: {name!r} must have int64 values: {error}") from None
        else:
            arrow, wrong = self._cast_each(name, kind, column)
            column, values = arrow, _columns.filled(kind, arrow)
        if name == self.rows.target and column.null_count:
            missing = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist()
            wrong = dict.fromkeys(missing, f"the target {name!r} is missing") | wrong
        return values, wrong

    def _cast_each(self, name, kind, column):
        """Return an Arrow column with null for what cannot be cast; and `{row: what is wrong}`."""
        import pyarrow as pa

        try:
            return self.cast(kind, column), {}
        except pa.ArrowInvalid:
            pass
        found, wrong, a_type = [], {}, None
        for row, value in enumerate(column):
            try:
                one = self.cast(kind, pa.array([value.as_py()], column.type))
                a_type = one.type
                found.append(one[0].as_py())
            except pa.ArrowInvalid:
                found.append(None)
                rule = _columns.VALUE_RULES[kind]
                wrong[row] = f"{name!r} must be {rule}. Received: {value.as_py()!r}"
        return pa.array(found, a_type or self.cast(kind, pa.array([None], column.type)).type), wrong


class WholeFileReader(RowReader):
    """A file whose rows are not counted before they are read, from its beginning."""

    def groups(self):
        return None

    def size(self):
        return os.path.getsize(self.source)

    def parsed(self, block_rows):
        """Iterate over RecordBatches, and keep `bytes_read`."""
        raise NotImplementedError

    def read(self, first=0, stop=None, block_rows=None):
        """Iterate over the whole file, whatever `first` and `stop` say. Skipped rows have no number."""
        seen = numbered = self.bytes_read = 0
        for batch in self.parsed(block_rows):
            block = self.block(batch, seen)
            seen += len(batch)
            block[ROW] = np.arange(numbered, numbered + len(block[ROW]))
            numbered += len(block[ROW])
            yield block
        self.bytes_read = self.size()
