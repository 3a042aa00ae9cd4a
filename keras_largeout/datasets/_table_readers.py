"""One CSV or Parquet file, block by block, by pyarrow.

What a reader reads, and what becomes of a malformed row, a `TabularFiles` says.
"""

import contextlib
import functools
import io
import os

import numpy as np

# What stands for a missing number in CSV files.
_MISSING = ("", "NA", "N/A", "#N/A", "NaN", "nan", "NULL", "null", "None", "none")
_PARQUET = (".parquet", ".pq")
_COMPRESSED = (".gz", ".bz2")
_TAIL = 1 << 20  # bytes, longer than any row


def check_pyarrow():
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "Reading tables needs pyarrow. Install it by: pip install keras-largeout[tables]"
        ) from error


def reader(file, rows):
    """Return the reader of a file: iterate over it for dictionaries of NumPy columns."""
    return (_Parquet if file.endswith(_PARQUET) else _Csv)(file, rows)


class _Reader:
    """
    Args:
        file: str.
        rows: the `TabularFiles`.

    Attributes:
        skipped: int, the rows that were left out.
        first_skipped: str, what was wrong with the first of them.
    """

    def __init__(self, file, rows):
        self.file, self.rows, self.skipped, self.first_skipped = file, rows, 0, None
        self._before = 0  # rows of the blocks before this one

    def position(self):
        """Return how many bytes of the file have been read, about."""
        raise NotImplementedError

    def place(self, row):
        """Return where the row is that came as number `row`, counted from 0, for people."""
        raise NotImplementedError

    def require(self, names):
        """Raises ValueError where a wanted column is not among `names`."""
        missing = [name for name in self.rows.wanted() if name not in names]
        if missing:
            raise ValueError(f"{self.file} must have the columns {missing}. Received: {list(names)}")

    def numbers(self, column):
        """Return an Arrow column as float32, where there are numbers for all of it.

        Raises:
            pyarrow.ArrowInvalid: there are not.
        """
        raise NotImplementedError

    def block(self, batch):
        """Return the columns of an Arrow batch. Malformed rows are left out, or refused."""
        floats, bad = {}, {}
        for name in (*self.rows.numbers, self.rows.target):
            if name is not None:
                floats[name], wrong = self._floats(name, batch.column(name))
                bad = wrong | bad
        columns = {name: _strings(batch.column(name)) for name in self.rows.categories} | floats
        for row in sorted(bad):
            self.malformed(bad[row], lambda k=self._before + row: self.place(k))
        self._before += len(batch)
        if not bad:
            return columns
        good = np.setdiff1d(np.arange(len(batch)), list(bad))
        return {name: column[good] for name, column in columns.items()}

    def malformed(self, why, place):
        """Skip or refuse a row. `place()` says where it is: finding that may take time."""
        if self.skipped:
            self.skipped += 1
            return
        text = f"{self.file}, {place()}: {why}"
        if self.rows.on_malformed == "error":
            raise ValueError(text)
        self.skipped, self.first_skipped = 1, text

    def _floats(self, name, column):
        """Return float32 with NaN for what is missing; and `{row: what is wrong}`."""
        import pyarrow as pa

        wrong = {}
        try:
            values = self.numbers(column)
        except pa.ArrowInvalid:
            found = []
            for row, value in enumerate(column):
                try:
                    found.append(self.numbers(pa.array([value.as_py()], column.type))[0].as_py())
                except pa.ArrowInvalid:
                    found.append(None)
                    wrong[row] = f"{name!r} must be a number. Received: {value.as_py()!r}"
            values = pa.array(found, pa.float32())
        if name == self.rows.target and values.null_count:
            missing = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)).tolist()
            wrong = dict.fromkeys(missing, f"the target {name!r} is missing") | wrong
        return values.to_numpy(zero_copy_only=False), wrong


class _Csv(_Reader):
    def __init__(self, file, rows):
        super().__init__(file, rows)
        self._stream = None
        self._header = int(rows.columns is None)
        self._left_out = []  # rows that are in no block
        self._refused = None

    def position(self):
        return 0 if self._stream is None or self._stream.closed else self._stream.tell()

    def place(self, row):
        for left_out in self._left_out:
            row += left_out <= row
        return self._line(row)

    def _line(self, row):
        """Return where row `row` of the file is. Empty lines are no rows, and what is named is the line."""
        import pyarrow as pa

        following = row + self._header
        with io.BufferedReader(pa.input_stream(self.file, compression="detect")) as file:
            for number, line in enumerate(file, 1):
                following -= bool(line.strip(b"\r\n"))
                if following < 0:
                    return f"line {number}"
        raise AssertionError("the file has more rows than lines")

    def numbers(self, column):
        import pyarrow as pa
        import pyarrow.compute as pc

        missing = pc.is_in(column, value_set=_missing())
        return pc.cast(pc.if_else(missing, pa.scalar(None, column.type), column), pa.float32())

    def __iter__(self):
        import pyarrow as pa
        from pyarrow import csv

        if os.path.getsize(self.file) == 0 and self.rows.columns is not None:
            return
        rows, wanted = self.rows, self.rows.wanted()
        texts = {name: pa.binary() for name in rows.categories}
        compressed = self.file.endswith(_COMPRESSED)
        self._stream = None if compressed else pa.OSFile(self.file)
        try:
            yield from map(
                self.block,
                csv.open_csv(
                    self.file if compressed else self._stream,
                    # Threads would know no line numbers.
                    csv.ReadOptions(use_threads=False, column_names=rows.columns),
                    csv.ParseOptions(
                        delimiter=rows.delimiter,
                        invalid_row_handler=self._wrong_count,
                    ),
                    csv.ConvertOptions(
                        check_utf8=False,
                        column_types={name: pa.string() for name in wanted} | texts,
                        include_columns=wanted,
                        strings_can_be_null=False,
                    ),
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
            raise ValueError(self._refused or f"{self.file} cannot be read as CSV: {error}") from None
        if not compressed:
            self._check_end()

    def _wrong_count(self, row):
        """Return the fate of a row with too few or too many values."""
        number = row.number - 1 - self._header
        self._left_out.append(number)
        try:
            why = f"a row must have {row.expected_columns} values. Received: {row.actual_columns}"
            self.malformed(why, lambda: self._line(number))
        except ValueError as error:
            self._refused = str(error)
            return "error"
        return "skip"

    def _check_end(self):
        """Check that a quoted last value ends with its quote: the parser would accept it without one."""
        with open(self.file, "rb") as file:
            file.seek(max(0, os.path.getsize(self.file) - _TAIL))
            tail = file.read()
        last = tail[tail.rfind(b"\n") + 1 :]
        if last.count(b'"') % 2:
            raise ValueError(f"{self.file} ends in the middle of a row, in a quoted value: {last[-60:]!r}")

    def check_columns(self):
        """Raises ValueError where the file lacks a wanted column. Whatever else is wrong, a pass finds."""
        import pyarrow as pa
        from pyarrow import csv

        names, rows = self.rows.columns, self.rows
        if names is None:
            parse = csv.ParseOptions(delimiter=rows.delimiter, invalid_row_handler=lambda _: "skip")
            try:
                with pa.input_stream(self.file, compression="detect") as file:
                    names = csv.open_csv(file, csv.ReadOptions(use_threads=False), parse).schema.names
            except (pa.ArrowInvalid, OSError):
                return
        self.require(names)


class _Parquet(_Reader):
    def __init__(self, file, rows):
        super().__init__(file, rows)
        self._rows_of_file = 0

    def position(self):
        return os.path.getsize(self.file) * self._before // max(1, self._rows_of_file)

    def place(self, row):
        return f"row {row + 1}"

    def numbers(self, column):
        import pyarrow as pa
        import pyarrow.compute as pc

        return pc.cast(column, pa.float32(), safe=False)

    def __iter__(self):
        import pyarrow as pa
        from pyarrow import parquet

        try:
            with parquet.ParquetFile(self.file) as file:
                self._check_columns(file.schema_arrow)
                self._rows_of_file = file.metadata.num_rows
                for batch in file.iter_batches(columns=self.rows.wanted()):
                    yield self.block(batch)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{self.file} cannot be read as Parquet: {error}") from None

    def check_columns(self):
        """Check the columns, as for CSV files."""
        import pyarrow as pa
        from pyarrow import parquet

        with contextlib.suppress(pa.ArrowInvalid, OSError), parquet.ParquetFile(self.file) as file:
            self._check_columns(file.schema_arrow)

    def _check_columns(self, schema):
        import pyarrow as pa

        self.require(schema.names)
        for name in self.rows.categories:
            kind = schema.field(name).type
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            types = pa.types
            if not any(
                check(kind)
                for check in (
                    types.is_integer,
                    types.is_boolean,
                    types.is_string,
                    types.is_large_string,
                    types.is_binary,
                    types.is_large_binary,
                )
            ):
                raise ValueError(
                    f"{self.file}: a category must be a column of strings or integers. "
                    f"Received: {name!r} of type {kind}"
                )


@functools.cache
def _missing():
    import pyarrow as pa

    return pa.array(_MISSING)


def _strings(column):
    """Return a column of strings or integers as an array of bytes objects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.string())
    if not pa.types.is_binary(column.type):
        column = pc.cast(column, pa.binary())
    if column.null_count:
        column = pc.fill_null(column, b"")
    return column.to_numpy(zero_copy_only=False)
