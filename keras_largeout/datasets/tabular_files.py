"""`TabularFiles`: CSV and Parquet files of any size, read as they are trained on."""

import glob
import os
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_largeout._checks import positive_int
from keras_largeout.datasets import _table_readers

_WAYS = ("error", "skip")
_BLOCK_ROWS = 16_384  # of what is handed on in one piece
_ENDINGS = (".csv", ".tsv", ".txt", ".gz", ".bz2", ".parquet", ".pq")


class TabularFiles:
    """Rows of CSV or Parquet files as batches for `fit`: the files may be larger than memory.

    A batch is a dictionary of the columns that were asked for, and the target. Categories come as strings, to
    be hashed by a `CategoryHashing`. Needs pyarrow: `pip install keras-largeout[tables]`.

    Args:
        files: a path, a folder, a pattern such as `"logs/*.csv"`, or a list of these. Parquet where the name
            ends in `.parquet` or `.pq`, and else CSV, which may be compressed (`.gz`, `.bz2`).
        categories: list of names of columns: strings, by their bytes as they are, valid UTF-8 or not.
            Integers of a Parquet file become their decimal digits; what is missing, the empty string.
            Defaults to `()`.
        numbers: list of names of columns: numbers. What is missing (an empty value, "NA", "NaN", "null" and
            the like) becomes NaN. Defaults to `()`.
        target: None, or the name of a column of numbers, in which none may be missing. Defaults to `None`.
        delimiter: str of one character, between the values of a CSV file. Defaults to `","`.
        columns: None where the first line of each CSV file names the columns; else their names. Defaults to
            `None`.
        on_malformed: what becomes of a row with too few or too many values, or with text for a number, or
            without a target: "error" or "skip". Skipped rows are counted, and a warning at the end of a pass
            names the first one. Defaults to `"error"`.

    Attributes:
        files: list of str, in the order in which they are read.
        bytes: int, the size of all files.
        bytes_read: int, how much of it the pass that is running has read, about.
        rows_read, rows_skipped: int, of the pass that is running, or of the last one.

    Raises:
        ImportError: there is no pyarrow.
        ValueError: an argument outside its range; no file; a column that the first file lacks. In a pass: a
            column that another file lacks; a malformed row, named by its file and line; a file that ends in
            the middle of a row. (Inside of `fit` it is a `tf.errors.InvalidArgumentError` with that text. A
            CSV file that was cut in the middle of the last value of a row cannot be told from a whole one.)

    Example:

    ```python
    logs = kl.datasets.TabularFiles("logs/*.csv", categories=["user", "ad"], target="clicked")
    model.fit(logs.dataset(4096, shuffle=100_000))
    ```
    """

    def __init__(
        self,
        files: str | os.PathLike | Sequence[str | os.PathLike],
        categories: Sequence[str] = (),
        numbers: Sequence[str] = (),
        target: str | None = None,
        delimiter: str = ",",
        columns: Sequence[str] | None = None,
        on_malformed: str = "error",
    ) -> None:
        _table_readers.check_pyarrow()
        if on_malformed not in _WAYS:
            raise ValueError(
                f"`on_malformed` must be one of {_WAYS}. Received: on_malformed={on_malformed!r}"
            )
        if not isinstance(delimiter, str) or len(delimiter) != 1:
            raise ValueError(f"`delimiter` must be a single character. Received: delimiter={delimiter!r}")
        self.files = _found(files)
        self.categories, self.numbers, self.target = _names(categories), _names(numbers), target
        self.delimiter, self.on_malformed = delimiter, on_malformed
        self.columns = None if columns is None else _names(columns)
        wanted = self.wanted()
        if not wanted:
            raise ValueError("One of `categories`, `numbers` and `target` must name a column. Received: none")
        twice = sorted({name for name in wanted if wanted.count(name) > 1})
        if twice:
            raise ValueError(f"Each column must have one use. Received: {', '.join(twice)} more than once")
        _table_readers.reader(self.files[0], self).check_columns()
        self.bytes = sum(os.path.getsize(file) for file in self.files)
        self.bytes_read = self.rows_read = self.rows_skipped = 0

    def wanted(self) -> list[str]:
        """Return the names of all columns that are read, in the order of a block."""
        return [*self.categories, *self.numbers, *([] if self.target is None else [self.target])]

    def dataset(
        self,
        batch_size: int,
        shuffle: int = 0,
        seed: int | None = None,
        shard: tuple[int, int] | None = None,
        keep: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> tf.data.Dataset:
        """Return a `tf.data.Dataset` of one pass: batches `(x, target)`, or `x` alone where there is no
        target.

        Args:
            batch_size: int, the rows of a batch; the last one may be smaller.
            shuffle: int, how many rows are held in memory and mixed; 0: the rows come in their order.
                Defaults to `0`.
            seed: int, of the shuffle. Defaults to `None`.
            shard: None, or `(index, count)`: of the files, each `count`-th from `index` on, for one worker of
                several. Defaults to `None`.
            keep: None, or a function from the numbers of rows, int64 `[n]`, to bool `[n]`: the wanted ones.
                Rows are counted from 0 in the order of the files, whatever the shuffle, so
                `lambda row: row % 10 != 0` and its opposite are a training set and a test set. Defaults to
                `None`.

        Returns:
            `x`: a dictionary of string and float32 tensors `[batch]` by the names of the columns. `target`:
            float32 `[batch]`.

        Raises:
            ValueError: an argument outside its range; fewer files than shards.
        """
        batch_size = positive_int("batch_size", batch_size)
        if shuffle:
            positive_int("shuffle", shuffle)
        files = self._shard(shard)
        signature = {name: tf.TensorSpec([None], tf.string) for name in self.categories}
        signature |= {name: tf.TensorSpec([None], tf.float32) for name in self.numbers}
        if self.target is not None:
            signature = signature, tf.TensorSpec([None], tf.float32)
        rng = np.random.default_rng(seed)

        def blocks():
            first = 0
            for block in self.blocks(files, max(shuffle, _BLOCK_ROWS)):
                rows = np.arange(len(next(iter(block.values()))))
                chosen = rows if keep is None else rows[keep(first + rows)]
                first += len(rows)
                if shuffle:
                    chosen = rng.permutation(chosen)
                if shuffle or keep is not None:
                    block = {name: column[chosen] for name, column in block.items()}
                yield block if self.target is None else (block, block.pop(self.target))

        with tf.device("CPU:0"):
            pieces = tf.data.Dataset.from_generator(blocks, output_signature=signature)
            return pieces.prefetch(1).rebatch(batch_size).prefetch(4)

    def blocks(
        self, files: Sequence[str] | None = None, rows: int = _BLOCK_ROWS
    ) -> Iterator[dict[str, np.ndarray]]:
        """Iterates over the files in NumPy: dictionaries of columns, `rows` rows each but the last.

        Args:
            files: list of paths. None: all.
            rows: int.
        """
        self.bytes_read = self.rows_read = self.rows_skipped = 0
        first_skipped, held, count = None, [], 0
        for file in self.files if files is None else files:
            reader, before = _table_readers.reader(file, self), self.bytes_read
            for block in reader:
                self.bytes_read = before + reader.position()
                held.append(block)
                count += len(next(iter(block.values())))
                while count >= rows:
                    whole = _concat_blocks(held)
                    yield self._counted({name: column[:rows] for name, column in whole.items()})
                    held, count = [{name: column[rows:] for name, column in whole.items()}], count - rows
            self.bytes_read = before + os.path.getsize(file)
            self.rows_skipped += reader.skipped
            first_skipped = first_skipped or reader.first_skipped
        if count:
            yield self._counted(_concat_blocks(held))
        if self.rows_skipped:
            warnings.warn(
                f"{self.rows_skipped:,} malformed rows were skipped, the first of them: {first_skipped}",
                stacklevel=2,
            )

    def _counted(self, block):
        self.rows_read += len(next(iter(block.values())))
        return block

    def _shard(self, shard):
        if shard is None:
            return self.files
        index, count = shard
        if not 0 <= index < count or count > len(self.files):
            raise ValueError(
                "`shard` must be (index, count) with 0 <= index < count, and count no more than there are "
                f"files, {len(self.files)}. Received: shard={shard}"
            )
        return self.files[index::count]


def _names(names):
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"Columns must be given as a list of names. Received: {names!r}")
    return list(names)


def _found(files):
    """Return the paths of all files, in order."""
    found = []
    for given in [files] if isinstance(files, (str, os.PathLike)) else files:
        path = os.fspath(given)
        if os.path.isdir(path):
            inside = [os.path.join(path, name) for name in sorted(os.listdir(path))]
            found += [file for file in inside if file.endswith(_ENDINGS)]
        else:
            found += [path] if os.path.isfile(path) else sorted(filter(os.path.isfile, glob.glob(path)))
    if not found:
        raise ValueError(f"`files` must name a file, a folder with files, or a pattern. Received: {files!r}")
    return found


def _concat_blocks(blocks):
    if len(blocks) == 1:
        return blocks[0]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
