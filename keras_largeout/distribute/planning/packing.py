"""Packing of units of work onto devices: longest processing time first, in several kinds of load at once.

R. L. Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17 (1969):
the largest unit goes first, each to the device that is least loaded. Units have several loads here (pairs,
bytes, rows): a unit is as large as the largest of them, and goes where it adds least to the sum of the fourth
powers of all loads, so that no kind is left uneven (in the way of R. Panigrahy, K. Talwar, L. Uyeda and
U. Wieder, "Heuristics for vector bin packing", 2011; their squares look less at the largest load).
"""

import numpy as np

#: Units that carry less than this part of a device's mean load are dealt out in blocks.
_COLD = 1 / 256
_BLOCKS = 64
#: Units of at least this part of the largest among them count as equal.
_EQUAL = 0.95
#: The part of all load that units may carry together and still count as having none.
_NEGLIGIBLE = 0.001
#: How much more loaded than the least loaded one a device may get by a unit that stays there, as a part of a
#: device's share.
_STAY = 0.02


def pack(loads, shares, rows=None, room=None, base=None, prefer=None):
    """Which device each unit goes to.

    Equal units go to the devices in turn, so that neighbours are spread. Deterministic.

    Args:
        loads: floats `[units, kinds]`, not negative.
        shares: floats `[devices]`: how much each device shall carry, in proportion.
        rows: optional integers `[units]`: what a unit takes of `room`.
        room: optional integers `[devices]`, a limit on the rows of each device.
        base: optional floats `[devices, kinds]`: what the devices carry already.
        prefer: optional integers `[units]`, the device where a unit is now: it stays there while the device
            is about as loaded as the least loaded one (small units: has less than its share), and has room.

    Returns:
        int16 `[units]`.

    Raises:
        ValueError: the units were not made to fit into `room`.
    """
    loads = np.asarray(loads, np.float64)
    shares = np.asarray(shares, np.float64) / np.sum(shares)
    base = np.zeros((len(shares), loads.shape[1])) if base is None else np.asarray(base, np.float64)
    totals = loads.sum(axis=0) + base.sum(axis=0)
    if not totals.any() and prefer is None:  # nothing tells the units apart: each counts as much as another
        loads, totals = np.ones_like(loads), totals + len(loads)
    totals = np.where(totals > 0, totals, 1.0)
    # From here on a device that has its share of a kind of load carries 1 of it.
    loads, base = loads / totals, base / totals / shares[:, None]
    packing = _Packing(
        shares,
        base,
        None if room is None else np.array(room, np.int64),
        np.full(len(loads), -1) if prefer is None else np.array(prefer, np.int64),
        np.zeros(len(loads), np.int64) if rows is None else np.asarray(rows, np.int64),
        loads,
    )
    packing.place(np.arange(len(loads)))
    return packing.owner


class _Packing:
    """The devices while they are filled."""

    def __init__(self, shares, carried, room, prefer, rows, loads):
        self.shares, self.carried, self.room = shares, carried, room
        self.prefer, self.rows, self.loads = prefer, rows, loads
        self.largest = loads.max(axis=1, initial=0.0)
        self.owner = np.full(len(loads), -1, np.int16)

    def place(self, units, in_blocks=True):
        """Gives every one of `units` a device; those without load fill what room the others leave."""
        idle = self.largest[units] < self._negligible()
        self._place(units[~idle], in_blocks)
        self._place(self._stay(units[idle]), in_blocks)

    def _negligible(self):
        """Units below this load carry next to nothing together: they only move to make room."""
        loads = np.sort(self.largest[self.prefer >= 0])
        below = np.searchsorted(np.cumsum(loads), _NEGLIGIBLE * loads.sum(), side="right")
        return loads[min(below, len(loads) - 1)] if len(loads) else 0.0

    def _place(self, units, in_blocks):
        devices = len(self.shares)
        cold = self.largest[units] * devices < _COLD
        if not in_blocks or np.count_nonzero(cold) < 2 * _BLOCKS * devices:
            cold[:] = False
        hot = units[~cold]
        for unit in hot[_largest_first(self.largest[hot])]:
            device = self._put(self.loads[unit], self.rows[unit], self.prefer[unit])
            if device < 0:
                raise ValueError(
                    f"A unit of {self.rows[unit]} rows fits on no device. "
                    f"Received: room for {self.room.tolist()} more rows"
                )
            self.owner[unit] = device
        self._place_in_blocks(units[cold])

    def _stay(self, idle):
        """Leaves units without load where they are while there is room; returns the others."""
        others = [idle[self.prefer[idle] < 0]]
        for device in range(len(self.shares)):
            mine = idle[self.prefer[idle] == device]
            taken = np.cumsum(self.rows[mine])
            stay = len(mine)
            if self.room is not None:
                stay = int(np.searchsorted(taken, self.room[device], side="right"))
                self.room[device] -= taken[stay - 1] if stay else 0
            self.owner[mine[:stay]] = device
            others.append(mine[stay:])
        others = np.concatenate(others)
        self.prefer[others] = -1
        return others

    def _place_in_blocks(self, units):
        """Every block takes units from the whole range of loads, so that all blocks are alike."""
        if not len(units):
            return
        prefer = self.prefer[units]
        order = np.lexsort((-self.largest[units], prefer))
        first = np.searchsorted(prefer[order], prefer[order])
        per_home = _BLOCKS if prefer[order[0]] >= 0 else _BLOCKS * len(self.shares)
        block = np.empty(len(units), np.int64)
        block[order] = np.maximum(prefer[order], 0) * per_home + (np.arange(len(units)) - first) % per_home
        blocks = _BLOCKS * len(self.shares)
        sums = np.stack([np.bincount(block, kind, blocks) for kind in self.loads[units].T], axis=1)
        rows = np.bincount(block, self.rows[units], blocks).astype(np.int64)
        home = np.arange(blocks) // per_home if per_home == _BLOCKS else np.full(blocks, -1)
        devices = np.full(blocks, -1, np.int16)
        for i in _largest_first(sums.max(axis=1)):
            devices[i] = self._put(sums[i], rows[i], home[i], limit=1.0)  # all alike: as many as make a share
        self.owner[units] = devices[block]
        left = units[devices[block] < 0]
        if len(left):  # of blocks that are too large for the last gaps
            self._place(left, in_blocks=len(left) < len(units))

    def _put(self, load, rows, prefer, limit=0.0):
        """Puts a unit where it is, or on the device that is loaded least; -1 where it fits on none."""
        then = self.carried + load / self.shares[:, None]
        height = then.max(axis=1)
        added = (then**4 - self.carried**4).sum(axis=1) * self.shares
        if self.room is not None:
            height[self.room < rows] = added[self.room < rows] = np.inf
        device = int(added.argmin())
        if prefer >= 0 and height[prefer] <= max(limit, height[device] + _STAY):
            device = int(prefer)
        if height[device] == np.inf:
            return -1
        self.carried[device] = then[device]
        if self.room is not None:
            self.room[device] -= rows
        return device


def _largest_first(sizes):
    """Indices by falling size, but nearly equal ones in the order in which they are given."""
    order = np.argsort(-sizes, kind="stable")
    falling = -sizes[order]
    start = 0
    while start < len(order):
        stop = np.searchsorted(falling, falling[start] * _EQUAL, side="right")
        order[start:stop].sort()
        start = stop
    return order
