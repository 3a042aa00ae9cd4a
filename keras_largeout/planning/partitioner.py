"""The partitioner: assigns units of work (tables, rows, subtrees) to devices, so that all loads are even.

The method is greedy, longest processing time first: R. L. Graham, "Bounds on multiprocessing timing
anomalies", SIAM Journal on Applied Mathematics 17 (1969). Units are taken by falling size. Each goes to the
device that is loaded least.

A unit has several loads here, such as pairs, bytes and rows. Its size is the largest of them. It goes where
it adds least to the sum of the fourth powers of all loads, so that no kind of load stays uneven.
(R. Panigrahy, K. Talwar, L. Uyeda and U. Wieder, "Heuristics for vector bin packing", 2011, use squares,
which give less weight to the largest load.)
"""

import numpy as np

#: Units below this fraction of a device's mean load are not assigned one by one, but in blocks.
_COLD = 1 / 256
#: Blocks per device. A block takes units from the whole range of sizes, so all blocks are alike.
_BLOCKS = 64
#: Units of at least this fraction of the largest among them count as equal.
_EQUAL = 0.95


def pack(loads, shares, rows=None, room=None, base=None):
    """Assigns each unit to a device.

    Equal units go to the devices in turn, so that neighbours are on different devices. The result is
    deterministic. Small units are assigned in blocks: ten million units take about a second.

    Args:
        loads: floats `[units, kinds]`, at least 0. Each kind has its own unit.
        shares: floats `[devices]`: the fraction of the load that each device should get, in any unit.
        rows: optional integers `[units]`: how much of `room` a unit takes.
        room: optional integers `[devices]`: the most rows that each device can take.
        base: optional floats `[devices, kinds]`: the load that the devices have already.

    Returns:
        int16 `[units]`: the device of each unit.

    Raises:
        ValueError: the units do not fit into `room`.
    """
    loads = np.asarray(loads, np.float64)
    shares = np.asarray(shares, np.float64) / np.sum(shares)
    base = np.zeros((len(shares), loads.shape[1])) if base is None else np.asarray(base, np.float64)
    totals = loads.sum(axis=0) + base.sum(axis=0)
    if not totals.any():  # nothing tells the units apart: each counts as much as another
        loads, totals = np.ones_like(loads), totals + len(loads)
    totals = np.where(totals > 0, totals, 1.0)
    # From here on a device that has its share of a kind of load carries 1 of it.
    loads, base = loads / totals, base / totals / shares[:, None]
    packing = _Packing(
        shares,
        base,
        None if room is None else np.array(room, np.int64),
        np.zeros(len(loads), np.int64) if rows is None else np.asarray(rows, np.int64),
        loads,
    )
    packing.place(np.arange(len(loads)))
    return packing.owner


class _Packing:
    """The devices while they are filled."""

    def __init__(self, shares, carried, room, rows, loads):
        self.shares, self.carried, self.room = shares, carried, room
        self.rows, self.loads = rows, loads
        self.largest = loads.max(axis=1, initial=0.0)
        self.owner = np.full(len(loads), -1, np.int16)

    def place(self, units, in_blocks=True):
        """Assigns `units`: large ones one by one, small ones in blocks."""
        devices = len(self.shares)
        cold = self.largest[units] * devices < _COLD
        if not in_blocks or np.count_nonzero(cold) < 2 * _BLOCKS * devices:
            cold[:] = False
        hot = units[~cold]
        for unit in hot[_largest_first(self.largest[hot])]:
            device = self._put(self.loads[unit], self.rows[unit])
            if device < 0:
                raise ValueError(
                    f"A unit of {self.rows[unit]} rows fits on no device. "
                    f"Received: room for {self.room.tolist()} more rows"
                )
            self.owner[unit] = device
        self._place_in_blocks(units[cold])

    def _place_in_blocks(self, units):
        if not len(units):
            return
        blocks = _BLOCKS * len(self.shares)
        block = np.empty(len(units), np.int64)
        block[np.argsort(-self.largest[units], kind="stable")] = np.arange(len(units)) % blocks
        sums = np.stack([np.bincount(block, kind, blocks) for kind in self.loads[units].T], axis=1)
        rows = np.bincount(block, self.rows[units], blocks).astype(np.int64)
        devices = np.full(blocks, -1, np.int16)
        for i in _largest_first(sums.max(axis=1)):
            devices[i] = self._put(sums[i], rows[i])
        self.owner[units] = devices[block]
        left = units[devices[block] < 0]
        if len(left):  # of blocks that are too large for the last gaps
            self.place(left, in_blocks=len(left) < len(units))

    def _put(self, load, rows):
        """Adds a unit to the device where it adds least; returns that device, or -1 where it fits on none."""
        then = self.carried + load / self.shares[:, None]
        added = (then**4 - self.carried**4).sum(axis=1) * self.shares
        if self.room is not None:
            added[self.room < rows] = np.inf
        device = int(added.argmin())
        if added[device] == np.inf:
            return -1
        self.carried[device] = then[device]
        if self.room is not None:
            self.room[device] -= rows
        return device


def _largest_first(sizes):
    """Return indices by falling size, but nearly equal ones in the order in which they are given."""
    order = np.argsort(-sizes, kind="stable")
    falling = -sizes[order]
    start = 0
    while start < len(order):
        stop = np.searchsorted(falling, falling[start] * _EQUAL, side="right")
        order[start:stop].sort()
        start = stop
    return order
