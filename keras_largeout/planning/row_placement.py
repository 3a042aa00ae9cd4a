"""Row-wise sharding of a lookup table: by a permutation, with hot rows, or with a device for each row."""

import dataclasses

import numpy as np

from keras_largeout.planning.partitioner import pack
from keras_largeout.planning.placement import REPLICATED, Placement
from keras_largeout.planning.row_estimator import row_load, row_owners
from keras_largeout.planning.tree_estimator import max_over_mean

#: At most this fraction of a table's rows is replicated, or this many rows if that is more.
_MOST_HOT, _FEW_HOT = 1 / 50, 4096
#: A more expensive way to place rows must bring the busiest device below this fraction of its load.
_WORTH = 0.98


def water_fill(rows, shares, room):
    """Return how many of `rows` rows go to each device: in proportion to `shares`, but at most `room`.

    Args:
        rows: int.
        shares: floats `[devices]`, in any unit.
        room: integers `[devices]`.

    Returns:
        int64 `[devices]` with the sum `rows`.

    Raises:
        ValueError: `room` is too small.
    """
    rows, room = int(rows), np.minimum(np.asarray(room, np.int64), rows)
    if room.sum() < rows:
        raise ValueError(f"`room` must be enough for {rows} rows. Received: room={room.tolist()}")
    shares = np.asarray(shares, np.float64)
    sizes = np.zeros(len(room), np.int64)
    while rows > sizes.sum():
        open_ = np.flatnonzero(sizes < room)
        left = rows - sizes.sum()
        part = np.floor(left * shares[open_] / shares[open_].sum()).astype(np.int64)
        if not part.any():
            part[:left] = 1
        sizes[open_] = np.minimum(sizes[open_] + part, room[open_])
    return sizes


def place_rows(spec, devices, batch_size, shares, room, balance):
    """Return a row-wise `Placement` of a table, and why it is this one.

    Args:
        spec: a `TableSpec` without a tree.
        devices: int.
        batch_size: examples per step, over all devices.
        shares: floats `[devices]`: the fraction of the load that each device should get, in any unit.
        room: integers `[devices]`: how many rows each device has memory for; enough for all rows.
        balance: float, the max/mean of the devices' loads that is good enough.

    Returns:
        The placement, and a str.
    """
    plain = _permutation(spec.rows, devices, shares, room)
    if spec.counts is None:
        return plain, "spread by a permutation (no counts)"
    load = row_load(spec, devices, batch_size)
    shares = shares / shares.sum()
    busy = _busy(row_owners(plain), load, shares, None)
    if max_over_mean(busy) <= balance:
        return plain, f"spread by a permutation, expected max/mean {max_over_mean(busy):.2f}"
    spare = int((room - np.array(plain.sizes)).min())
    hot = _hot_rows(plain, load, shares, balance, min(spare, max(int(_MOST_HOT * spec.rows), _FEW_HOT)))
    placement, best = plain, busy
    text = f"a permutation alone has max/mean {max_over_mean(busy):.2f}"
    if len(hot):
        placement = plain.with_hot_rows(hot)
        best = _busy(row_owners(placement), load, shares, hot)
        text += f"; with the {len(hot)} hottest rows replicated {max_over_mean(best):.2f}"
    if max_over_mean(best) <= balance:
        return placement, text
    explicit = pack_rows(load.owned, hot, shares, plain.sizes)
    busy = _busy(row_owners(explicit), load, shares, hot)
    if busy.max() < _WORTH * best.max():
        return explicit, f"{text}; with a device chosen for each row {max_over_mean(busy):.2f}"
    return placement, text


def _permutation(rows, devices, shares, room):
    placement = Placement.by_permutation(rows, devices)
    if np.ptp(shares) == 0 and np.all(np.array(placement.sizes) <= room):
        return placement
    return dataclasses.replace(placement, sizes=tuple(int(n) for n in water_fill(rows, shares, room)))


def _busy(owners, load, shares, hot):
    """Return the load of each device over its share, where the rows `hot` are replicated."""
    owned = np.bincount(owners + 1, load.owned, len(shares) + 1)[1:]
    return (owned + (0 if hot is None else load.replicated[hot].sum())) / shares


def _hot_rows(plain, load, shares, balance, limit):
    """Return the hottest rows, as few as make the load even when they are replicated, or as even as it
    gets.
    """
    # Replicating a row pays off if it slows all devices down by less than it slows down its owner.
    order = np.argsort(-load.owned, kind="stable")[: max(0, limit)]
    owner = plain.locate(order)[0]
    busy = np.bincount(row_owners(plain), load.owned, len(shares))
    best, least, count = 0, (busy / shares).max(), 1
    while count <= len(order):
        cut = np.bincount(owner[:count], load.owned[order[:count]], len(shares))
        now = (busy - cut + load.replicated[order[:count]].sum()) / shares
        if now.max() < _WORTH * least:
            best, least = count, now.max()
            if max_over_mean(now) <= balance:
                break
        count += max(1, count // 4)
    return np.sort(order[:best])


def pack_rows(loads, hot, shares, sizes):
    """Return the explicit `Placement` in which each row is assigned by its load.

    Args:
        loads: floats `[rows]`, at least 0.
        hot: integers, the rows that every device has a copy of, or None.
        shares: floats `[devices]`: the fraction of the load that each device should get, in any unit.
        sizes: integers `[devices]`: rows of each shard, enough for all rows that are not `hot`.

    Returns:
        The `Placement`, with shards of these sizes.
    """
    cold = np.ones(len(loads), bool)
    if hot is not None:
        cold[hot] = False
    rows = np.flatnonzero(cold)
    owners = np.full(len(loads), REPLICATED, np.int16)
    owners[rows] = pack(loads[rows, None], shares, np.ones(len(rows), np.int64), sizes)
    return Placement.explicit(owners, len(sizes), sizes)
