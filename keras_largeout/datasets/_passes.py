"""Passes over tables: the rows that are read, their order, and their blocks."""

import dataclasses

import numpy as np

from keras_largeout.datasets import _columns
from keras_largeout.datasets._row_reader import ROW

SHARD_BY = ("files", "rows")


@dataclasses.dataclass(frozen=True)
class Piece:
    """Rows `first` to `stop` of source number `source`; `stop` is None where the number is unknown."""

    source: int
    first: int = 0
    stop: int | None = None


def pieces_of(groups, shard=None, by="files"):
    """Return the pieces of a shard, in their order.

    Args:
        groups: one entry a source: the numbers of rows of its groups, or None.
        shard: None, or `(index, count)`.
        by: "files": each `count`-th source. "rows": consecutive rows, where all sources have groups; else the
            whole of each source, of which the caller keeps each `count`-th row.
    """
    pieces = [Piece(i, 0, None if rows is None else sum(rows)) for i, rows in enumerate(groups)]
    if shard is None:
        return pieces
    index, count = shard
    if by == "files":
        return pieces[index::count]
    total = rows_of(pieces)
    if total is None:
        return pieces
    return _between(pieces, total * index // count, total * (index + 1) // count)


def rows_of(pieces):
    """Return the rows of all pieces, or None where the number is unknown."""
    if any(piece.stop is None for piece in pieces):
        return None
    return sum(piece.stop - piece.first for piece in pieces)


def shuffled(pieces, groups, rng):
    """Return the pieces, each cut into its source's groups, in a random order."""
    cut = []
    for piece in pieces:
        first = 0
        if piece.stop is None:
            cut.append(piece)
            continue
        for rows in groups[piece.source]:
            part = Piece(piece.source, max(first, piece.first), min(first + rows, piece.stop))
            cut += [part] if part.first < part.stop else []
            first += rows
    return [cut[i] for i in rng.permutation(len(cut))]


def without_first(pieces, rows):
    """Return the pieces without their first `rows` rows."""
    return _between(pieces, rows, rows_of(pieces)) if rows else pieces


def _between(pieces, first, stop):
    """Return the pieces of the rows `first` to `stop`, counted through all pieces."""
    found, begin = [], 0
    for piece in pieces:
        rows = piece.stop - piece.first
        low, high = max(first - begin, 0), min(stop - begin, rows)
        if low < high:
            found.append(Piece(piece.source, piece.first + low, piece.first + high))
        begin += rows
    return found


def length(block):
    return len(block[ROW])


def take(block, rows):
    """Return the rows of a slice or of an array of numbers."""
    return {name: column[rows] for name, column in block.items()}


def _concat(blocks):
    if len(blocks) == 1:
        return blocks[0]
    return {name: _columns.concat([block[name] for block in blocks]) for name in blocks[0]}


def regroup(blocks, rows, length=length, take=take, concat=_concat):
    """Yield the same rows in blocks of `rows` rows; the last one may be smaller.

    Args:
        blocks: iterator over dictionaries of columns, or over whatever the functions take.
        rows: int.
        length, take, concat: functions: the rows of a block, a slice of it, and the block of a list.
    """
    held, count = [], 0
    for block in blocks:
        held.append(block)
        count += length(block)
        if count < rows:
            continue
        whole, rest = concat(held), count % rows
        for first in range(0, count - rest, rows):
            yield take(whole, slice(first, first + rows))
        held, count = [take(whole, slice(count - rest, count))] if rest else [], rest
    if count:
        yield concat(held)


def select(blocks, keep, skipped, rows):
    """Yield the chosen rows in blocks of at most `rows` rows.

    Args:
        blocks: iterator over `(block, generator)`. The generator, or None, shuffles the block's rows.
        keep: None, or a function from the numbers of rows to whether they are chosen.
        skipped: int, how many of the chosen rows are left out first.
        rows: int.
    """
    for block, generator in blocks:
        if keep is None and generator is None and not skipped:
            yield block
            continue
        chosen = np.arange(length(block)) if keep is None else np.flatnonzero(keep(block[ROW]))
        if generator is not None:
            chosen = generator.permutation(chosen)
        chosen, skipped = chosen[skipped:], max(0, skipped - len(chosen))
        for first in range(0, len(chosen), rows):
            yield take(block, chosen[first : first + rows])
