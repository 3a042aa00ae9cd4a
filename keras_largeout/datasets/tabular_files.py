"""`TabularFiles`: tables in files of any size, or in memory, read as they are trained on."""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_largeout._checks import check_one_of, positive_int
from keras_largeout.datasets import _passes, _table_readers
from keras_largeout.datasets._batch_tensors import batches_of, counted_passes
from keras_largeout.datasets._row_reader import ROW

_WAYS = ("error", "skip")
_BLOCK_ROWS = 65_536  # of what is handed on in one piece
_READERS = 64  # that a pass keeps, each with what its file says of its parts


class TabularFiles:
    """Rows of files (CSV, Parquet, Arrow, TFRecord) as batches for `fit`: they may be larger than memory.

    A batch is a dictionary of the columns that were asked for, and the target. Needs pyarrow:
    `pip install keras-largeout[tables]`.

    Args:
        files: a path, a folder, a pattern such as `"logs/*.csv"`, a table, or a list of these. Parquet where
            the name ends in `.parquet` or `.pq`, Arrow's IPC file or stream (also called Feather) where it
            ends in `.arrow`, `.arrows`, `.feather` or `.ipc`, TFRecord where it ends in `.tfrecord` or
            `.tfrecords`, with or without `-00003-of-00010` and `.gz` behind it, and else CSV, which may be
            compressed (`.gz`, `.bz2`). A TFRecord file has a `tf.train.Example` a row, and each column is in
            one of its first 1,000. A table is an object in memory that has `__arrow_c_stream__`: a data frame
            of pandas or polars, a pyarrow Table.
        categories: list of names of columns: strings, by their bytes as they are, valid UTF-8 or not, to be
            hashed by a `CategoryHashing`. Integers of a typed file become their decimal digits; what is
            missing, the empty string. Defaults to `()`.
        numbers: list of names of columns: numbers, as float32. What is missing (null; in a CSV file an empty
            value, "NA", "NaN", "null" and the like) becomes NaN. Defaults to `()`.
        target: None, or the name of a column of numbers, in which none may be missing. A target that `ids` or
            `lists` name too has their type. Defaults to `None`.
        delimiter: str of one character, between the values of a CSV file. Defaults to `","`.
        columns: None where the first line of each CSV file names the columns; else their names. Defaults to
            `None`.
        on_malformed: what becomes of a row with too few or too many values, or with text for a number, or
            without a target: "error" or "skip". Skipped rows are counted, and a warning at the end of a pass
            names the first one. Defaults to `"error"`.
        ids: list of names of columns: integers, as int64. What is missing becomes -1. Defaults to `()`.
        times: list of names of columns: dates or timestamps (of a CSV file, in ISO 8601), as int64: seconds
            since 1970-01-01 00:00 UTC, rounded down. A time without a zone counts as UTC. What is missing
            becomes -2**63, NumPy's NaT. Defaults to `()`.
        lists: list of names of columns: lists of integers, floats or strings, as `tf.RaggedTensor` of int64,
            float32 or strings. CSV files have none. A missing list is empty; a missing element becomes -1,
            NaN or the empty string. Defaults to `()`.

    Attributes:
        files: list of str, in the order in which they are read; of a table, the pyarrow Table.
        bytes: int, the size of all files.
        bytes_read: int, how much of it the pass that is running has read, about.
        rows_read, rows_skipped: int, of the pass that is running, or of the last one.

    Raises:
        ImportError: there is no pyarrow.
        ValueError: an argument outside its range; no file; a column that the first file lacks, or whose type
            its use does not take. In a pass: such a column of another file; a malformed row, named by its
            file and line; a file that ends in the middle of a row. (Inside of `fit` it is a
            `tf.errors.InvalidArgumentError` with that text. A CSV file that was cut in the middle of the last
            value of a row cannot be told from a whole one.)

    Example:

    ```python
    logs = kl.datasets.TabularFiles("logs/*.csv", categories=["user", "ad"], target="clicked")
    model.fit(logs.dataset(4096, shuffle=100_000))
    ```
    """

    def __init__(
        self,
        files: Any,
        categories: Sequence[str] = (),
        numbers: Sequence[str] = (),
        target: str | None = None,
        delimiter: str = ",",
        columns: Sequence[str] | None = None,
        on_malformed: str = "error",
        ids: Sequence[str] = (),
        times: Sequence[str] = (),
        lists: Sequence[str] = (),
    ) -> None:
        _table_readers.check_pyarrow()
        check_one_of("on_malformed", on_malformed, _WAYS)
        if not isinstance(delimiter, str) or len(delimiter) != 1:
            raise ValueError(f"`delimiter` must be a single character. Received: delimiter={delimiter!r}")
        self.files = _table_readers.found(files)
        self.categories, self.numbers = _names("categories", categories), _names("numbers", numbers)
        self.ids, self.times, self.lists = _names("ids", ids), _names("times", times), _names("lists", lists)
        self.target = target
        self.delimiter, self.on_malformed = delimiter, on_malformed
        self.columns = None if columns is None else _names("columns", columns)
        self.kinds, self.list_kinds, self.known_groups = self._uses(), {}, {}
        readers = [_table_readers.reader(file, self) for file in self.files]
        if self.lists and (texts := [reader.name for reader in readers if not reader.has_types]):
            raise ValueError(f"`lists` must not name columns of CSV files. Received: {texts[0]}")
        readers[0].check_columns()
        self.list_kinds = readers[0].list_kinds()
        self.bytes = sum(reader.size() for reader in readers)
        self.bytes_read = self.rows_read = self.rows_skipped = 0

    def _uses(self):
        """Return the kind of each column that is read, in the order of a block."""
        lists = {"category": self.categories, "id": self.ids, "time": self.times, "number": self.numbers}
        used = [(name, kind) for kind, names in (lists | {"list": self.lists}).items() for name in names]
        if self.target is not None and self.target not in (*self.ids, *self.lists):
            used.append((self.target, "number"))
        if not used:
            raise ValueError(
                "One of `categories`, ..., `lists` and `target` must name a column. Received: none"
            )
        names = [name for name, _ in used]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"Each column must have one use. Received: {', '.join(twice)} more than once")
        return dict(used)

    def dataset(
        self,
        batch_size: int,
        shuffle: int = 0,
        seed: int | None = None,
        shard: tuple[int, int] | None = None,
        keep: Callable[[np.ndarray], np.ndarray] | None = None,
        shard_by: str = "files",
        shuffle_files: bool = False,
        skip: int = 0,
        epoch: int = 0,
    ) -> tf.data.Dataset:
        """Return a `tf.data.Dataset` of one pass: batches `(x, target)`, or `x` alone where there is no
        target.

        The first pass over the dataset has the order of `epoch`, and each further one the order that follows.
        A pass counts when its last batch has been taken: `fit` may draw a batch to build a model, and changes
        nothing by that, unless the pass is as short as what a strategy prefetches, a few batches.

        Args:
            batch_size: int, the rows of a batch; the last one may be smaller.
            shuffle: int, how many rows are held in memory and mixed, or a few more; 0: the rows come in their
                order. Defaults to `0`.
            seed: int, of the shuffle. The order of the rows depends on it and `epoch` alone; None: on
                nothing. Defaults to `None`.
            shard: None, or `(index, count)`: the part for one worker of several. Defaults to `None`.
            keep: None, or a function from the numbers of rows, int64 `[n]`, to bool `[n]`: the wanted ones.
                Rows are counted from 0 in the order of the files (of CSV and TFRecord files: those of the
                shard), whatever the shuffle, so `lambda row: row % 10 != 0` and its opposite are a training
                set and a test set. Defaults to `None`.
            shard_by: "files": a shard has each `count`-th file, from `index` on. "rows": all shards have the
                same number of rows, give or take one. Of Parquet and Arrow files they are consecutive, and no
                others are read but the rest of a row group; of other files they are each `count`-th row, and
                the whole file is read. Defaults to `"files"`.
            shuffle_files: bool, whether the files, and the row groups of Parquet and Arrow files, come in
                another order in each pass. Defaults to `False`.
            skip: int, how many batches to leave out at the beginning of each pass: with the same other
                arguments, the pass goes on where one was interrupted after `skip` batches. Rows of Parquet
                and Arrow files are not read for that, but the rest of a row group and of a shuffle; with
                `keep`, and of other files, all are. Defaults to `0`.
            epoch: int, the number of the first pass. Defaults to `0`.

        Returns:
            `x`: a dictionary of tensors `[batch]` by the names of the columns, and of ragged tensors
            `[batch, (n)]` of the lists. `target`: `[batch]`, or ragged.

        Raises:
            ValueError: an argument outside its range; fewer files than shards; `skip` with a shuffle without
                a seed, or not less than the number of batches; `keep` with shuffled CSV or
                TFRecord files.
        """
        batch_size = positive_int("batch_size", batch_size)
        skip, epoch = positive_int("skip", skip, 0), positive_int("epoch", epoch, 0)
        if shuffle:
            positive_int("shuffle", shuffle)
        if seed is not None:
            positive_int("seed", seed, 0)
        elif skip and (shuffle or shuffle_files):
            raise ValueError(f"`skip` must come with a `seed` where rows are shuffled. Received: skip={skip}")
        self._check_shard(shard, shard_by)
        groups = self._groups()
        if keep is not None and shuffle_files and None in groups:
            raise ValueError(
                "`keep` must not be combined with `shuffle_files` for CSV and TFRecord files. "
                f"Received: {self.files[groups.index(None)]}"
            )
        pieces = _passes.pieces_of(groups, shard, shard_by)
        rows = _passes.rows_of(pieces)
        every = shard if shard_by == "rows" and rows is None else None
        if keep is not None or self.on_malformed == "skip":
            rows = None
        batches = None if rows is None else -(-rows // batch_size) - skip
        if skip and batches is not None and batches <= 0:
            raise ValueError(
                f"`skip` must be less than the number of batches, {batches + skip}. Received: skip={skip}"
            )
        block_rows = _multiple(_BLOCK_ROWS, batch_size)
        window = _multiple(max(shuffle, 1), block_rows)
        unread = 0 if rows is None else skip * batch_size // window
        passes = 0

        def blocks():
            """Iterate over the blocks of a pass, each of whole batches."""
            key = np.random.SeedSequence().entropy if seed is None else seed, epoch + passes
            of_pass = pieces
            if shuffle_files:
                of_pass = _passes.shuffled(pieces, groups, np.random.default_rng([*key, 0]))
            read = self._read(_passes.without_first(of_pass, unread * window), block_rows, every)
            generators = (
                np.random.default_rng([*key, number]) if shuffle else None
                for number in itertools.count(1 + unread)
            )
            chosen = _passes.select(
                zip(_passes.regroup(read, window), generators),
                keep,
                skip * batch_size - unread * window,
                block_rows,
            )
            return _passes.regroup(chosen, block_rows)

        def passed():
            nonlocal passes
            passes += 1

        with tf.device("CPU:0"):
            data = batches_of(blocks, self.kinds, self.list_kinds, batch_size, self.target)
            if batches is not None:
                data = data.apply(tf.data.experimental.assert_cardinality(batches))
            data = data.prefetch(4)
            reordered = seed is not None and (shuffle or shuffle_files)
            return counted_passes(data, batches, passed) if reordered else data

    def blocks(self, rows: int = _BLOCK_ROWS) -> Iterator[dict]:
        """Iterates over all rows in NumPy: dictionaries of columns, `rows` rows each but the last.

        Args:
            rows: int.
        """
        for block in _passes.regroup(self._read(_passes.pieces_of(self._groups()), rows), rows):
            yield {name: block[name] for name in self.kinds}

    def _groups(self):
        """Return the rows of each group of each source; None for a source whose rows are not counted."""
        return [_table_readers.reader(file, self).groups() for file in self.files]

    def _read(self, pieces, block_rows, every=None):
        """Iterate over the blocks of the pieces. `every`: `(index, count)`, of each source's rows."""
        self.bytes_read = self.rows_read = self.rows_skipped = 0
        first_skipped, groups, seen = None, self._groups(), 0
        begins = None if None in groups else np.cumsum([0, *map(sum, groups)])
        reader_of = functools.lru_cache(_READERS)(lambda i: _table_readers.reader(self.files[i], self))
        for piece in pieces:
            reader, before = reader_of(piece.source), self.bytes_read
            skipped = reader.skipped
            begin = seen if begins is None else begins[piece.source]
            for block in reader.read(piece.first, piece.stop, block_rows):
                self.bytes_read, seen = before + reader.bytes_read, seen + _passes.length(block)
                if every is not None:
                    block = _passes.take(block, np.flatnonzero(block[ROW] % every[1] == every[0]))
                self.rows_read += _passes.length(block)
                yield block | {ROW: block[ROW] + begin}
            self.bytes_read = before + reader.bytes_read
            self.rows_skipped += reader.skipped - skipped
            first_skipped = first_skipped or reader.first_skipped
        if self.rows_skipped:
            warnings.warn(
                f"{self.rows_skipped:,} malformed rows were skipped, the first of them: {first_skipped}",
                stacklevel=2,
            )

    def _check_shard(self, shard, by):
        check_one_of("shard_by", by, _passes.SHARD_BY)
        if shard is None:
            return
        index, count = shard
        if tf.is_tensor(index) or tf.is_tensor(count):
            raise ValueError(
                "`shard` must be a pair of integers. In a dataset function on parameter servers, where the "
                "index is a tensor, leave it out and write `dataset(...).shard(count, index)`. "
                f"Received: shard={shard}"
            )
        if not 0 <= index < count or (by == "files" and count > len(self.files)):
            raise ValueError(
                '`shard` must be (index, count) with 0 <= index < count, and with `shard_by="files"` count '
                f"no more than there are files, {len(self.files)}. Received: shard={shard}"
            )


def _names(argument, names):
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"`{argument}` must be a list of names of columns. Received: {argument}={names!r}")
    return list(names)


def _multiple(number, of):
    """Return the least multiple of `of` that is not below `number`."""
    return -(-number // of) * of
