"""Where the nodes of a tree go: a replicated top, and whole subtrees on one device each.

The nodes near the root are passed by every token, so every device has them. Below this *cut* every subtree
belongs to one device: the hidden vector of a token travels to one device at most, whatever the tree's depth.
"""

import itertools

import numpy as np

from keras_largeout.distribute.planning.partitioner import pack
from keras_largeout.distribute.planning.placement import REPLICATED, Placement
from keras_largeout.distribute.planning.tree_estimator import (
    TOKENS_PER_DEVICE,
    class_frequencies,
    load_kinds,
    node_loads,
    node_owners,
    subtree_sums,
)
from keras_largeout.trees.cost import FLOPS_PER_BYTE

HOW = ("planned", "range", "modulo")

#: Replicated rows: at most this part of all rows (or this many).
_MOST_REPLICATED, _FEW_ROWS = 1 / 50, 4096
#: The largest part of a device's mean load that one subtree may carry, and how much more than the least
#: possible work replicating for its sake may give the busiest device.
UNIT, EXTRA_WORK = 0.02, 0.1
#: Subtrees that differ by less than this are equal: a replicated part of them would buy nothing.
_EQUAL = 0.985


def place_tree(
    tree,
    devices,
    counts=None,
    how="planned",
    dim=300,
    batch_tokens=None,
    unit=UNIT,
    extra_work=EXTRA_WORK,
    sizes_slack=1 / 16,
    shares=None,
    room=None,
    slots=0,
):
    """Which device owns the rows of a tree's table.

    A row belongs to the device of the node whose child it is. The *cut*, a set of nodes at the top that holds
    the root and the parent of each of its nodes, is replicated.

    "planned": subtrees go to devices by longest processing time first, so that pairs, flops, bytes and rows
    are all even (`NodeLoads` states the cost model). The cut is the smallest with which no subtree is
    expected to carry more than `unit` of a device's mean load (nor of its rows), but replicates no more than
    2% of the rows (or 4096), adds no more than `extra_work` to the least work that the busiest device can
    have, and does not end among subtrees that are equal. Equal subtrees go to the devices in turn, so that
    neighbouring classes are spread.
    "range" and "modulo" know no frequencies: the cut is the smallest with which no subtree has more than a
    quarter of a device's mean number of classes. Then consecutive subtrees, in the order of node numbers, go
    to one device until it has its part of the classes; or to the devices in turn.

    Args:
        tree: a `Tree`.
        devices: int.
        counts: numbers `[num_classes]`, at least 0, the frequencies of the classes; 1 / rank when None.
        how: "planned", "range" or "modulo".
        dim: width of the hidden vectors.
        batch_tokens: targets in a step, over all devices; 3200 a device when None.
        unit, extra_work: floats, see above. Small subtrees also leave more to gain from a later rebalance.
        sizes_slack: float, how much larger than the mean every shard is made, so that a later rebalance fits:
            by at least the largest subtree, where it is positive. 0: no larger than the fullest device needs.
        shares: optional floats `[devices]`: how much of the work each device shall get, in proportion
            ("planned" only); all the same when None.
        room: optional integers `[devices]`: how many rows each device may have, replicated ones included
            ("planned" only).
        slots: float32 slots that the optimizer has for every value.

    Returns:
        An explicit `Placement` of `tree.num_rows` rows. (A tree whose root has leaves only is replicated: it
        has nothing below the cut, and its shards are empty.)

    Raises:
        ValueError: for an unknown `how`, counts that do not fit the tree, or a lack of room.
    """
    if how not in HOW:
        raise ValueError(f"`how` must be one of {HOW}. Received: how={how!r}")
    if not (unit > 0 and extra_work >= 0 and sizes_slack >= 0):
        raise ValueError(
            "`unit` must be positive, `extra_work` and `sizes_slack` at least 0. "
            f"Received: unit={unit!r}, extra_work={extra_work!r}, sizes_slack={sizes_slack!r}"
        )
    shares = _checked_shares(devices, shares)
    counts = class_frequencies(tree, counts)
    rows = subtree_sums(tree, tree.node_sizes)
    if how == "planned":
        loads = node_loads(tree, counts, devices, dim, batch_tokens or TOKENS_PER_DEVICE * devices, slots)
        kinds = load_kinds(tree, loads)
        cut = planned_cut(tree, loads, kinds, devices, unit, extra_work)
        units = subtree_roots(tree, cut)
        if room is not None:
            room = np.asarray(room, np.int64) - int(tree.node_sizes[cut].sum())
            if room.min() < 0:
                raise ValueError(
                    f"`room` must hold the replicated rows. Received: {-room.min()} rows too few "
                    f"on device {room.argmin()}"
                )
        base = None
        if np.ptp(shares):  # the top costs all devices the same, so that the faster ones have time to spare
            top = [loads.pairs[cut].sum() / devices, loads.flops[cut].sum() / devices]
            base = np.tile([*top, loads.replicated_bytes[cut].sum(), 0.0], (devices, 1))
        owner = pack(np.stack([kind[units] for kind in kinds], axis=1), shares, rows[units], room, base)
    else:
        room = None
        classes = subtree_sums(tree, tree.node_sizes - _inner_children(tree))
        order = np.argsort(-classes, kind="stable")
        cut = _cut(tree, order, np.count_nonzero(classes > tree.num_classes / (4 * devices)))
        units = subtree_roots(tree, cut)
        owner = np.arange(len(units)) % devices
        if how == "range":
            # A subtree goes where the middle one of its classes belongs.
            ends = np.cumsum(classes[units])
            middle = (ends - classes[units] / 2) / max(1.0, ends[-1] if len(ends) else 1.0)
            owner = np.minimum((middle * devices).astype(np.int64), devices - 1)
    sizes = _sizes(rows[units], owner, devices, sizes_slack, shares)
    if room is not None:
        sizes = np.minimum(sizes, np.maximum(room, 0))
    return subtree_placement(tree, cut, units, owner, sizes)


def _checked_shares(devices, shares):
    if not isinstance(devices, (int, np.integer)) or devices < 1:
        raise ValueError(f"`devices` must be a positive integer. Received: devices={devices!r}")
    checked = np.ones(devices) if shares is None else np.asarray(shares, np.float64)
    if checked.shape != (devices,) or not np.all((checked > 0) & (checked < np.inf)):
        raise ValueError(f"`shares` must be {devices} positive numbers. Received: shares={shares}")
    return checked


def subtree_roots(tree, cut):
    """int64 vector: the nodes right below the cut (bool `[num_nodes]`), in ascending order."""
    below = ~cut
    below[1:] &= cut[tree.node_parent[1:]]
    return np.flatnonzero(below)


def spread(tree, cut, units, owner):
    """int16 `[num_nodes]`: the owner of every node, where `owner[i]` has the subtree under `units[i]`."""
    owners = np.full(tree.num_nodes, REPLICATED, np.int16)
    owners[units] = owner
    for first, last in itertools.pairwise(tree.levels[1:]):
        inherited = owners[tree.node_parent[first:last]]
        level = owners[first:last]
        np.copyto(level, inherited, where=inherited != REPLICATED)
    return owners


def subtree_placement(tree, cut, units, owner, sizes):
    """The explicit `Placement` where device `owner[i]` has the subtree under `units[i]`."""
    owners = spread(tree, cut, units, owner)
    return Placement.explicit(np.repeat(owners, tree.node_sizes), len(sizes), sizes)


def cut_and_units(tree, placement):
    """The cut (bool `[num_nodes]`), the nodes right below it, and the device of each: what a placement says.

    Raises:
        ValueError: a node below the cut is replicated, or a subtree is split over devices.
    """
    owners = node_owners(tree, placement)
    cut = owners == REPLICATED
    parents = tree.node_parent[1:]
    torn = (owners[parents] != owners[1:]) & ~cut[parents]
    if torn.any() or not cut[0]:
        node = 1 + int(np.argmax(torn)) if torn.any() else 0
        raise ValueError(
            "`placement` must replicate the root, and keep every subtree below the replicated nodes on one "
            f"device. Received: node {node} on device {owners[node]}"
            + (f", its parent on device {owners[tree.node_parent[node]]}" if node else "")
        )
    units = subtree_roots(tree, cut)
    return cut, units, owners[units]


def _cut(tree, order, nodes):
    """The first `nodes` nodes of `order`, in which parents precede their children; the root at least."""
    cut = np.zeros(tree.num_nodes, bool)
    cut[order[: max(1, nodes)]] = True
    return cut


def planned_cut(tree, loads, kinds, devices, unit=UNIT, extra_work=EXTRA_WORK):
    """See `place_tree`. A subtree is as large as the largest of its shares of the kinds of load."""
    share = np.max([kind / kind[0] for kind in kinds], axis=0)
    large = np.flatnonzero(share > unit / devices) if devices > 1 else np.zeros(1, np.int64)
    # Ties by number: a parent comes before its children, as its share is never smaller.
    order = large[np.argsort(-share[large], kind="stable")] if len(large) else np.zeros(1, np.int64)
    rest = share.copy()
    rest[order] = 0.0
    next_unit = np.append(share[order[1:]], rest.max())
    total = loads.work.sum()
    left = np.maximum(total - np.cumsum(loads.work[order]), 0.0)
    replicated = loads.flops[order] / (FLOPS_PER_BYTE * devices) + loads.replicated_bytes[order]
    busiest = np.cumsum(replicated) + np.maximum(left / devices, next_unit * total)
    extra_rows = np.cumsum(loads.rows[order]) - loads.rows[order[0]]
    allowed = extra_rows <= max(_MOST_REPLICATED * tree.num_rows, _FEW_ROWS)
    allowed &= busiest <= (1 + extra_work) * busiest[allowed].min()
    allowed[1:] &= next_unit[1:] < _EQUAL * share[order[1:]]
    return _cut(tree, order, 1 + np.flatnonzero(allowed)[-1])


def _inner_children(tree):
    """int64 `[num_nodes]`: how many children of each node are inner nodes."""
    return np.bincount(tree.node_parent[1:], minlength=tree.num_nodes)


def _sizes(rows, owner, devices, slack, shares):
    """Positions of each shard: what it holds, and room for a rebalance (see `place_tree`)."""
    held = np.bincount(owner, rows, devices)
    if slack == 0 or devices == 1 or not len(rows):
        return held.astype(np.int64)
    room = held.sum() * shares / shares.sum() + max(slack * held.sum() / devices, rows.max())
    return np.ceil(np.maximum(held, room)).astype(np.int64)
