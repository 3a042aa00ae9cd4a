"""The Extreme Classification Repository's text format, parsed a block of lines at a time. NumPy alone.

A file is a header `rows features labels` and a line for every row, `l1,l2,... f:v f:v ...`: label ids, then
feature ids with their values. A row without labels begins with a blank.
"""

import gzip
import warnings
from typing import NamedTuple

import numpy as np

_BLOCK = 4 << 20
_DIGIT, _NUMBER, _BLANK, _COMMA, _COLON, _NEWLINE, _OTHER = range(7)
_KIND = np.full(256, _OTHER, np.uint8)
for _characters, _kind in (
    (b"0123456789", _DIGIT),
    (b".eE+-", _NUMBER),
    (b" \t\r", _BLANK),
    (b",", _COMMA),
    (b":", _COLON),
    (b"\n", _NEWLINE),
):
    _KIND[np.frombuffer(_characters, np.uint8)] = _kind
_SEPARATORS_TO_BLANKS = bytes.maketrans(b",:\n\r\t", b"     ")
_SHOWN = 60


class Header(NamedTuple):
    rows: int
    features: int
    labels: int


class Block(NamedTuple):
    """Rows as two compressed lists: row i has `labels[label_splits[i]:label_splits[i + 1]]`."""

    label_splits: np.ndarray
    labels: np.ndarray
    feature_splits: np.ndarray
    features: np.ndarray
    values: np.ndarray


class _Malformed(Exception):
    """A rule that the byte at a position breaks."""

    def __init__(self, position, rule):
        super().__init__(rule)
        self.position, self.rule = int(position), rule


def open_text(path):
    return gzip.open(path, "rb") if str(path).endswith(".gz") else open(path, "rb")


def read_header(path):
    """Return the `Header` of a file.

    Raises:
        ValueError: it has none.
    """
    with open_text(path) as file:
        return _header(path, file)


def _header(path, file):
    first = file.readline(1000)
    fields = first.split()
    if len(fields) != 3 or not all(field.isdigit() for field in fields):
        raise ValueError(
            f"{path}, line 1: must be the header `rows features labels`. Received: {_shown(first)}"
        )
    return Header(*map(int, fields))


def read_blocks(path):
    """Yields every `Block` of a file, in order: whole rows, a few megabytes of text at a time.

    Raises:
        ValueError: a line is malformed (the message has its number), or there are more or fewer rows than the
            header says.
    """
    with open_text(path) as file:
        header = _header(path, file)
        line, rest = 2, b""
        while True:
            read = file.read(_BLOCK)
            if not read and rest and not rest.endswith(b"\n"):
                read = b"\n"  # the last line may lack its own
            end = read.rfind(b"\n") + 1
            if end:
                text, rest = rest + read[:end], read[end:]
                block = _parse_lines(path, text, line, header)
                line += len(block.label_splits) - 1
                yield block
            elif not read:
                break
            else:
                rest += read
    if line - 2 != header.rows:
        raise ValueError(
            f"{path}: must have as many rows as its header says, {header.rows}. Received: {line - 2} rows"
        )


def _parse_lines(path, text, line, header):
    try:
        return parse(text, header)
    except _Malformed as error:
        line += text.count(b"\n", 0, error.position)
        start = text.rfind(b"\n", 0, error.position) + 1
        end = text.find(b"\n", error.position)
        # The place, not the beginning: lines have thousands of characters.
        start = max(start, error.position - _SHOWN // 2)
        message = f"{path}, line {line}: {error.rule}. Received: {_shown(text[start:end])}"
        raise ValueError(message) from None


def parse(text, header):
    """Return the `Block` of some lines.

    Args:
        text: bytes that end in a newline.
        header: `Header`, for the ranges of the ids.
    """
    kind = _KIND[np.frombuffer(text, np.uint8)]
    separator = kind >= _BLANK
    edges = np.flatnonzero(np.diff(separator, prepend=True))  # a token begins, a token ends, ...
    starts, ends = edges[0::2], edges[1::2]
    before, after = kind[starts - 1], kind[ends]  # before the first byte: the last one, a newline
    is_value, is_feature = before == _COLON, after == _COLON
    is_label = ~(is_value | is_feature)
    _check_characters(kind, separator, starts, is_value)
    _check_order(starts, before, after, is_value, is_feature, is_label)
    numbers = _numbers(text, starts, ends)

    newlines = np.flatnonzero(kind == _NEWLINE)
    labels = _ids(numbers, starts, is_label, "label", header.labels)
    features = _ids(numbers, starts, is_feature, "feature", header.features)
    values = numbers[is_value]
    _check(~np.isfinite(values), starts[is_value], "a value must be finite")
    label_splits, feature_splits = (_splits(starts[chosen], newlines) for chosen in (is_label, is_feature))
    return Block(label_splits, labels, feature_splits, features, values.astype(np.float32))


def _check(broken, positions, rule):
    """Raises for the first position at which `broken` holds."""
    if broken.any():
        raise _Malformed(positions[np.argmax(broken)], rule)


def _check_characters(kind, separator, starts, is_value):
    other = np.flatnonzero(kind == _OTHER)
    _check(np.ones(len(other), bool), other, "must be `label,label,... feature:value feature:value ...`")
    joints = np.flatnonzero((kind == _COMMA) | (kind == _COLON))
    lonely = separator[joints + 1] | separator[joints - 1]
    _check(lonely, joints, "a comma or colon must stand between two numbers")
    signs = np.flatnonzero(kind == _NUMBER)
    owner = np.searchsorted(starts, signs, side="right") - 1
    _check(~is_value[owner], signs, "label and feature ids must be integers from 0 on")


def _check_order(starts, before, after, is_value, is_feature, is_label):
    chained = is_value & (is_feature | (after == _COMMA))
    _check(chained, starts, "a value must be followed by a blank")
    _check(is_feature & (before == _COMMA), starts, "labels must be separated from features by a blank")
    _check(is_label & (before == _BLANK), starts, "labels must stand at the beginning of the line")


def _numbers(text, starts, ends):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # said of text that is no number: the count tells
        try:
            numbers = np.fromstring(text.translate(_SEPARATORS_TO_BLANKS), sep=" ")
        except ValueError:
            numbers = np.empty(0)
    # Whatever was left out or cut in two is found one by one.
    if len(numbers) != len(starts):
        for start, end in zip(starts, ends):
            try:
                float(text[start:end])
            except ValueError:
                raise _Malformed(start, "a value must be a number") from None
    return numbers


def _ids(numbers, starts, chosen, what, count):
    ids = numbers[chosen]
    _check(ids >= count, starts[chosen], f"{what} ids must be below the header's {count} {what}s")
    return ids.astype(np.int32 if count <= 2**31 else np.int64)


def _splits(positions, newlines):
    return np.concatenate([[0], np.searchsorted(positions, newlines)]).astype(np.int64)


def _shown(text):
    text = text.decode("ascii", "backslashreplace").rstrip("\r\n")
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")
