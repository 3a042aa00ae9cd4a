"""Moves the rows of a table, with their optimizer slots, to other devices: in place, one chunk at a time.

A move is a permutation of positions, some of which may be empty. It consists of chains: the row at position a
belongs at b, the row at b belongs at c, and so on. Many chains are followed at a time. First the rows of some
positions are taken out. Then, again and again, the rows at their targets are taken out, and the first ones
are written there. A chain ends at a position that is empty, or whose row was taken out before.

So every row that moves is read once and written once. There are never more than two chunks of rows in host
memory, whatever the table and the permutation. The permutation itself takes 4 bytes per row (8 bytes above
2^31 rows).
"""

import numpy as np
import tensorflow as tf

from keras_largeout.tables import chunks
from keras_largeout.tables.array import HOT

#: Rows of the permutation that are computed at a time.
_STEP = 1 << 20
_NOWHERE = -1


def check_move(table, placement):
    """Raise ValueError where rows of a table cannot go to a `Placement`: parts of other sizes, or files."""
    if not table.hosts.is_alone:
        raise ValueError(
            "Rows stay on their host. (Save the model, and load it where its layers get the other "
            f"placement.) Received: a placement of {table.plan_name!r}, over {table.hosts.count} hosts"
        )
    if table.folder is not None:
        raise ValueError(
            f"Rows in files stay where they are. Received: a placement of {table.plan_name!r}, which has "
            f"its rows in {table.folder.path}"
        )
    here = table.placement
    same = all(
        getattr(here, field) == getattr(placement, field) for field in ("rows", "num_hot", "columns", "sizes")
    )
    if not same or not (here.hot is None or np.array_equal(here.hot, placement.hot)):
        raise ValueError(
            f"The placement of {table.plan_name!r} must have the same replicated rows and as large shards "
            f"as the one that it has now, {here!r} with shards of {list(here.sizes)}. (For any other, "
            "save the model, and load it where its layers get that placement.) "
            f"Received: {placement!r} with shards of {list(placement.sizes)}"
        )


def move_rows(table, placement):
    """Moves the rows of a table and of its slots to their positions in `placement`.

    Afterwards the table still has its old placement: the caller must call `table.move_to(placement)`.

    Args:
        table: `ShardedTable`.
        placement: a `Placement` that `table.check_move` accepts.
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
    """The rows that are taken out at the moment, and their target positions."""

    def __init__(self, arrays, target):
        self.arrays, self.target, self.next = arrays, target, 0
        self.targets, self.rows = self._read(np.zeros(0, np.int64))

    @property
    def done(self):
        return self.next == len(self.target) and not len(self.targets)

    def take_out(self, most):
        """Takes out rows that were not moved yet, until there are `most` rows in all."""
        start, self.next = self.next, min(self.next + most - len(self.targets), len(self.target))
        targets, rows = self._read(start + np.flatnonzero(self.target[start : self.next] != _NOWHERE))
        self.targets = np.concatenate([self.targets, targets])
        self.rows = [np.concatenate(values) for values in zip(self.rows, rows)]

    def put(self):
        """Takes out the rows at the targets that were not taken out before, and writes the others there."""
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
    """Return the target of the row at each position of the shards; `_NOWHERE` where there is none, or it
    stays.
    """
    count = int(old.offsets[-1]) - old.num_hot
    target = np.full(count, _NOWHERE, np.int32 if count < 2**31 else np.int64)
    for start in range(0, old.rows, _STEP):
        rows = np.arange(start, min(start + _STEP, old.rows))
        here, there = old.position(rows) - old.num_hot, new.position(rows) - old.num_hot
        moves = here != there
        target[here[moves]] = there[moves]
    return target


class _Positions:
    """The shards of an array as one array over positions, without hot rows: position 0 is the first after."""

    def __init__(self, array):
        self.shards = [part for part in array.parts.values() if part.part != HOT]
        self.starts = array.placement.offsets[:-1] - array.placement.num_hot
        self.stops = array.placement.offsets[1:] - array.placement.num_hot
        dtype = tf.as_dtype(array.dtype)
        self.row_shape, self.dtype = tuple(self.shards[0].shape[1:]), dtype.as_numpy_dtype
        self.row_bytes = int(np.prod(self.row_shape, dtype=np.int64)) * dtype.size

    def read(self, positions):
        rows = np.empty((len(positions), *self.row_shape), self.dtype)
        for shard, here, local in self._split(positions):
            rows[here] = shard.read_at(local)
        return rows

    def write(self, positions, rows):
        for shard, here, local in self._split(positions):
            shard.write_at(local, rows[here])

    def _split(self, positions):
        for shard in self.shards:
            start = self.starts[shard.part]
            here = np.flatnonzero((positions >= start) & (positions < self.stops[shard.part]))
            if len(here):
                yield shard, here, positions[here] - start
