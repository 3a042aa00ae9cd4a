"""Parquet files, Arrow files and tables in memory: typed columns, read a part at a time."""

import contextlib
import os

from keras_largeout.datasets._row_reader import RowReader

_BUFFER = 1 << 18  # bytes of each column that are read at once
_TABLE_GROUP = 65_536  # rows
_MAGIC = b"ARROW1"  # begins a file, not a stream


class _ColumnarReader(RowReader):
    """`kind` names the format, for people."""

    kind = "a table"

    def read(self, first, stop, block_rows):
        total = max(1, sum(self.groups()))
        at = first
        with self._readable():
            for batch in self._batches(first, stop, block_rows):
                yield self.block(batch, at)
                at += len(batch)
                self.bytes_read = self.size() * (at - first) // total

    def place(self, row):
        return f"row {row + 1}"

    def size(self):
        return os.path.getsize(self.source)

    def groups(self):
        if self.source not in self.rows.known_groups:
            self.rows.known_groups[self.source] = self._groups()
        return self.rows.known_groups[self.source]

    def check_columns(self):
        with self._readable():
            self._check(self._schema())

    def list_kinds(self):
        """Return `{name: kind of the values}` of the columns of lists."""
        with self._readable():
            schema = self._schema()
        return self.kinds_of_lists(schema)

    def _readable(self):
        import pyarrow as pa

        return self.naming_errors(self.kind, pa.ArrowInvalid, OSError)

    def _batches(self, first, stop, block_rows):
        """Iterate over RecordBatches of the rows `first` to `stop`, with the wanted columns."""
        raise NotImplementedError

    def _groups(self):
        raise NotImplementedError

    def _schema(self):
        raise NotImplementedError

    def _check(self, schema):
        self.require(schema.names)
        self.check_schema(schema)

    def _spanned(self, first, stop):
        """Return the numbers of the groups that hold these rows, and the first row of the first one."""
        begin, chosen, begins = 0, [], 0
        for number, rows in enumerate(self.groups()):
            if begin < stop and begin + rows > first:
                begins = begins if chosen else begin
                chosen.append(number)
            begin += rows
        return chosen, begins


def _cut(batches, skipped, rows):
    """Yield the `rows` rows of RecordBatches that follow the first `skipped` ones."""
    for batch in batches:
        part = batch.slice(skipped, rows) if skipped or len(batch) > rows else batch
        skipped, rows = max(0, skipped - len(batch)), rows - len(part)
        if len(part):
            yield part
        if not rows:
            return


class ParquetReader(_ColumnarReader):
    kind, _metadata = "Parquet", None

    def _open(self):
        from pyarrow import parquet

        file = parquet.ParquetFile(self.source, metadata=self._metadata, buffer_size=_BUFFER)
        self._metadata = file.metadata
        return file

    def _schema(self):
        with self._open() as file:
            return file.schema_arrow

    def _groups(self):
        with self._readable(), self._open() as file:
            metadata = file.metadata
            return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    def _batches(self, first, stop, block_rows):
        groups, begin = self._spanned(first, stop)
        with self._open() as file:
            self._check(file.schema_arrow)
            batches = file.iter_batches(block_rows, row_groups=groups, columns=list(self.rows.kinds))
            yield from _cut(batches, first - begin, stop - first)


class ArrowReader(_ColumnarReader):
    """A file of Arrow's IPC format, also called Feather, or of its stream. It is mapped into memory."""

    kind, shares_memory = "Arrow", True

    def _schema(self):
        with self._open() as file:
            return file.schema

    @contextlib.contextmanager
    def _open(self, names=()):
        """Open the file or the stream. Of a file, only the columns `names` will be read."""
        import pyarrow as pa
        from pyarrow import ipc

        with pa.memory_map(self.source) as mapped:
            if mapped.read(len(_MAGIC)) != _MAGIC:
                mapped.seek(0)
                yield ipc.open_stream(mapped)
                return
            fields = [i for i, name in enumerate(ipc.open_file(mapped).schema.names) if name in names]
            yield ipc.open_file(mapped, options=ipc.IpcReadOptions(included_fields=fields))

    def _record_batches(self, names, groups=None):
        """Yield the RecordBatches with these numbers, or all, with these columns."""
        with self._open(names) as file:
            if hasattr(file, "get_batch"):
                chosen = range(file.num_record_batches) if groups is None else groups
                yield from map(file.get_batch, chosen)
            else:
                yield from (batch for i, batch in enumerate(file) if groups is None or i in groups)

    def _groups(self):
        with self._readable():
            return [len(batch) for batch in self._record_batches(list(self.rows.kinds)[:1])]

    def _batches(self, first, stop, block_rows):
        groups, begin = self._spanned(first, stop)
        self._check(self._schema())
        whole = self._record_batches(list(self.rows.kinds), groups)
        for part in _cut(whole, first - begin, stop - first):
            for at in range(0, len(part), block_rows):
                yield part.slice(at, block_rows)


class TableReader(_ColumnarReader):
    """A pyarrow Table."""

    shares_memory = True

    def __init__(self, table, rows):
        super().__init__(table, rows)
        self.name = "the table"

    def size(self):
        return self.source.nbytes

    def _schema(self):
        return self.source.schema

    def groups(self):
        rows = len(self.source)
        return [min(_TABLE_GROUP, rows - first) for first in range(0, rows, _TABLE_GROUP)]

    def _batches(self, first, stop, block_rows):
        table = self.source.select(list(self.rows.kinds)).slice(first, stop - first)
        for at in range(0, len(table), block_rows):
            yield from table.slice(at, block_rows).combine_chunks().to_batches()
