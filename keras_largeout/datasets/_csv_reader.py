"""One CSV file, block by block, by pyarrow."""

import contextlib
import io
import os

from keras_largeout.datasets import _columns
from keras_largeout.datasets._row_reader import WholeFileReader

_COMPRESSED = (".gz", ".bz2")
_TAIL = 1 << 20  # bytes, longer than any row


class CsvReader(WholeFileReader):
    has_types = False

    def __init__(self, file, rows):
        super().__init__(file, rows)
        self._stream = None
        self._header = int(rows.columns is None)
        self._left_out = []  # rows that are in no block
        self._refused = None

    def place(self, row):
        for left_out in self._left_out:
            row += left_out <= row
        return self._line(row)

    def _line(self, row):
        """Return where row `row` of the file is. Empty lines are no rows, and what is named is the line."""
        import pyarrow as pa

        following = row + self._header
        with io.BufferedReader(pa.input_stream(self.source, compression="detect")) as file:
            for number, line in enumerate(file, 1):
                following -= bool(line.strip(b"\r\n"))
                if following < 0:
                    return f"line {number}"
        raise AssertionError("the file has more rows than lines")

    def cast(self, kind, column):
        return _columns.cast_text(kind, column)

    def parsed(self, block_rows):
        import pyarrow as pa
        from pyarrow import csv

        if self.size() == 0 and self.rows.columns is not None:
            return
        kinds = self.rows.kinds
        compressed = self.source.endswith(_COMPRESSED)
        try:
            with contextlib.nullcontext() if compressed else pa.OSFile(self.source) as self._stream:
                for batch in csv.open_csv(
                    self.source if compressed else self._stream,
                    # Threads would know no line numbers.
                    csv.ReadOptions(use_threads=False, column_names=self.rows.columns),
                    csv.ParseOptions(
                        delimiter=self.rows.delimiter,
                        invalid_row_handler=self._wrong_count,
                    ),
                    csv.ConvertOptions(
                        check_utf8=False,
                        column_types={
                            name: pa.binary() if kind == "category" else pa.string()
                            for name, kind in kinds.items()
                        },
                        include_columns=list(kinds),
                        strings_can_be_null=False,
                    ),
                ):
                    self.bytes_read = self._stream.tell() if self._stream else 0
                    yield batch
        except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
            raise ValueError(self._refused or f"{self.source} cannot be read as CSV: {error}") from None
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
        with open(self.source, "rb") as file:
            file.seek(max(0, os.path.getsize(self.source) - _TAIL))
            tail = file.read()
        last = tail[tail.rfind(b"\n") + 1 :]
        if last.count(b'"') % 2:
            raise ValueError(f"{self.source} ends in the middle of a row, in a quoted value: {last[-60:]!r}")

    def check_columns(self):
        """Raises ValueError where the file lacks a wanted column. Whatever else is wrong, a pass finds."""
        import pyarrow as pa
        from pyarrow import csv

        names, rows = self.rows.columns, self.rows
        if names is None:
            parse = csv.ParseOptions(delimiter=rows.delimiter, invalid_row_handler=lambda _: "skip")
            try:
                with pa.input_stream(self.source, compression="detect") as file:
                    names = csv.open_csv(file, csv.ReadOptions(use_threads=False), parse).schema.names
            except (pa.ArrowInvalid, OSError):
                return
        self.require(names)
