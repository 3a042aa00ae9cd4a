"""Moving the rows of a table, with their slots, to other devices: in place, and in pieces.

A move is a permutation of positions (some of which may be empty). Many chains of it are followed at a time:
the rows of some positions are taken out; then, over and over, the rows that lie where those belong are taken
out and the others put there, until a chain comes to a place that is empty or whose row was taken out before.
So every row that moves is read once and written once, and at no time are more than two pieces of rows in host
memory, whatever the table and the permutation. Beside them there are four bytes a row for the permutation
itself (eight above 2^31 rows).
"""

import numpy as np

from keras_largeout.distribute.tables import chunks
from keras_largeout.distribute.tables.array import HOT

#: Rows of the permutation that are computed at a time.
_STEP = 1 << 20
_NOWHERE = -1


def move_rows(table, placement):
    """Moves the rows of a table and of its slots to where `placement` has them. The numbers stay the same.

    The table still has its old placement afterwards: `table.move_to(placement)` has to follow.

    Args:
        table: `ShardedTable`.
        placement: `Placement` that `table.check_move` accepts.
    """
    if table.placement.columns is not None or not any(table.placement.sizes):
        return
    target = _targets(table.placement, placement)
    arrays = [_Positions(array) for array in table.array.arrays()]
    most = max(1, chunks.CHUNK_BYTES // sum(array.row_bytes for array in arrays))
    moving = _Moving(arrays, target)
    while not moving.done:
        moving.take_out(most)
        moving.put()


class _Moving:
    """Rows that were taken out of their positions, and where they belong."""

    def __init__(self, arrays, target):
        self.arrays, self.target, self.next = arrays, target, 0
        self.targets, self.rows = self._read(np.zeros(0, np.int64))

    @property
    def done(self):
        return self.next == len(self.target) and not len(self.targets)

    def take_out(self, most):
        """Takes out rows that were not moved yet, so that it are `most` in all."""
        start, self.next = self.next, min(self.next + most - len(self.targets), len(self.target))
        targets, rows = self._read(start + np.flatnonzero(self.target[start : self.next] != _NOWHERE))
        self.targets = np.concatenate([self.targets, targets])
        self.rows = [np.concatenate(values) for values in zip(self.rows, rows)]

    def put(self):
        """Puts the rows where they belong, and takes out what lay there and was not taken out before."""
        positions, rows = self.targets, self.rows
        occupied = positions[self.target[positions] != _NOWHERE]
        self.targets, self.rows = self._read(occupied)
        for array, values in zip(self.arrays, rows):
            array.write(positions, values)

    def _read(self, positions):
        targets = self.target[positions]
        self.target[positions] = _NOWHERE
        return targets, [array.read(positions) for array in self.arrays]


def _targets(old, new):
    """For each position of the shards where its row belongs; nowhere for those that are empty or stay."""
    count = int(old.offsets[-1]) - old.num_hot
    target = np.full(count, _NOWHERE, np.int32 if count < 2**31 else np.int64)
    for start in range(0, old.rows, _STEP):
        rows = np.arange(start, min(start + _STEP, old.rows))
        here, there = old.position(rows) - old.num_hot, new.position(rows) - old.num_hot
        moves = here != there
        target[here[moves]] = there[moves]
    return target


class _Positions:
    """The shards of an array as one, by position (hot rows do not count)."""

    def __init__(self, array):
        self.shards = [(part.part, part.components[0]) for part in array.parts.values() if part.part != HOT]
        self.starts = array.placement.offsets[:-1] - array.placement.num_hot
        self.stops = array.placement.offsets[1:] - array.placement.num_hot
        (_, first) = self.shards[0]
        self.row_shape, self.dtype = tuple(first.shape[1:]), first.dtype.as_numpy_dtype
        self.row_bytes = int(np.prod(self.row_shape, dtype=np.int64)) * first.dtype.size

    def read(self, positions):
        rows = np.empty((len(positions), *self.row_shape), self.dtype)
        for shard, here, local in self._split(positions):
            rows[here] = chunks.read_at(shard, local)
        return rows

    def write(self, positions, rows):
        for shard, here, local in self._split(positions):
            chunks.write_at(shard, local, rows[here])

    def _split(self, positions):
        for number, variable in self.shards:
            here = np.flatnonzero((positions >= self.starts[number]) & (positions < self.stops[number]))
            if len(here):
                yield variable, here, positions[here] - self.starts[number]
