"""Criteo's display advertising data (Kaggle, 2014) as a stream.

A line has a label, 13 integers and 26 hexadecimal strings, with tabs between them.
"""

import gzip
import pathlib

import tensorflow as tf
from _ranking.models import Feature

DENSE, STRINGS = 13, 26
FIELDS = 1 + DENSE + STRINGS
#: How many different strings each column has in Kaggle's train.txt. Another file may have others.
_DIFFERENT = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
_BLOCK = 1 << 24


class Criteo:
    """The lines of a file or of several, a part of them held out, none of them kept in memory.

    Of one file the last tenth of the lines is held out (they are counted first); of several the last tenth of
    the files, in the order of their names, one at least. Strings are hashed to rows of the table of their
    column, which has four times as many rows as the column has strings. A missing string is one as well.
    Integers are read as log(1 + n); missing and negative ones as 0.

    Args:
        path: a file, or a folder of files `train*.txt` or `train*.txt.gz`.
        most_rows: int, the most rows of a table.

    Attributes:
        features: list of `Feature`.
        name: str, what was read.
        rows: dict from "train" and "test" to how many lines there are, or None where they were not counted.

    Raises:
        ValueError: there is no such file, a file does not begin with such a line, or one file has less than
            two lines.
    """

    def __init__(self, path, most_rows=5_000_000):
        path = pathlib.Path(path)
        files = sorted(path.glob("train*.txt")) + sorted(path.glob("train*.txt.gz"))
        files = [path] if path.is_file() else sorted(files, key=lambda file: file.name)
        if not files:
            raise ValueError(
                f"`path` must be a file, or a folder with train*.txt or train*.txt.gz. Received: path={path}"
            )
        for file in files:
            _check_first_line(file)
        self.name = f"{files[0].name} ... {files[-1].name}" if files[1:] else files[0].name
        rows = [min(most_rows, max(64, 4 * different)) for different in _DIFFERENT]
        self.features = [Feature(f"c{i + 1}", n) for i, n in enumerate(rows)]
        if len(files) > 1:
            held_out = max(1, len(files) // 10)
            self._sides = {"train": _lines(files[:-held_out]), "test": _lines(files[-held_out:])}
            self.rows = {"train": None, "test": None}
            return
        lines = count_lines(files[0])
        if lines < 2:
            raise ValueError(f"`path` must have two lines or more. Received: {lines} in {files[0]}")
        held_out = max(1, lines // 10)
        train = lines - held_out
        self._sides = {"train": _lines(files).take(train), "test": _lines(files).skip(train)}
        self.rows = {"train": train, "test": held_out}

    def dataset(self, rows, batch, side="train"):
        """Return a `tf.data.Dataset` of batches `(inputs, labels)`, like that of `ClickLogs`.

        Args:
            rows: int, at most so many lines; None: all.
            batch: int, lines in a batch. The last batch may be smaller.
            side: "train" or "test".
        """
        if side not in self._sides:
            raise ValueError(f"`side` must be 'train' or 'test'. Received: side={side!r}")
        lines = self._sides[side].take(-1 if rows is None else rows)
        data = lines.batch(batch).map(self.parse, num_parallel_calls=tf.data.AUTOTUNE)
        counted = self.rows[side]
        if counted is not None:
            steps = -(-min(counted, rows or counted) // batch)
            data = data.apply(tf.data.experimental.assert_cardinality(steps))
        return data.prefetch(tf.data.AUTOTUNE)

    def parse(self, lines):
        """Return `(inputs, labels)` of lines, a string tensor `[batch]`.

        Raises:
            tf.errors.InvalidArgumentError: a line without 40 fields, or one whose numbers are not numbers.
        """
        defaults = [tf.zeros([0])] + [[0.0]] * DENSE + [[""]] * STRINGS  # a label must be there
        label, *fields = tf.io.decode_csv(lines, defaults, field_delim="\t", use_quote_delim=False)
        inputs = {"dense": tf.math.log1p(tf.maximum(tf.stack(fields[:DENSE], -1), 0.0))}
        for feature, strings in zip(self.features, fields[DENSE:]):
            rows = tf.strings.to_hash_bucket_fast(strings, feature.rows)
            inputs[feature.name] = tf.cast(rows, tf.int32)
        return inputs, label


def count_lines(path):
    """Return how many lines a file has, compressed or not. The last one may lack its end."""
    lines, last = 0, b"\n"
    with _open(path) as file:
        while block := file.read(_BLOCK):
            lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def _open(path):
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def _lines(files):
    """Return the lines of files, one after the other."""
    sets = [tf.data.TextLineDataset(str(f), "GZIP" if f.suffix == ".gz" else "") for f in files]
    first, *others = sets
    for other in others:
        first = first.concatenate(other)
    return first


def _check_first_line(path):
    with _open(path) as file:
        line = file.readline()
    fields = line.count(b"\t") + 1
    if fields != FIELDS:
        raise ValueError(
            f"`path`: a line must have {FIELDS} fields, separated by tabs: the label, {DENSE} integers, "
            f"{STRINGS} strings. Received: {fields} in the first line of {path}, {line[:60]!r}"
        )
