"""The sharding of a tree: a replicated top, and below it whole subtrees on one device each.

Every token passes the nodes near the root, so every device has these: they are the *cut*. Each subtree below
the cut is on one device. So the hidden vector of a token is sent to one device at most, however deep the
tree is.

In the code, a *unit* is the root of such a subtree.
"""

import numpy as np
from numpy.typing import ArrayLike

from keras_largeout._checks import check_one_of
from keras_largeout.planning.partitioner import pack
from keras_largeout.planning.placement import REPLICATED, Placement
from keras_largeout.planning.tree_estimator import (
    TOKENS_PER_DEVICE,
    class_frequencies,
    load_kinds,
    node_loads,
    node_owners,
    subtree_sums,
)
from keras_largeout.trees import Tree
from keras_largeout.trees.cost import FLOPS_PER_BYTE
from keras_largeout.trees.parts import propagate_down

HOW = ("planned", "range", "modulo")

#: At most this fraction of all rows is replicated, or this many rows if that is more.
_MOST_REPLICATED, _FEW_ROWS = 1 / 50, 4096
#: A subtree may carry at most this fraction of one device's mean load; its top node is replicated otherwise.
#: But replicating may add at most this fraction to the least possible work of the busiest device.
UNIT, EXTRA_WORK = 0.02, 0.1
#: Subtrees that differ by less than this are equal: there is no gain in splitting only some of them.
_EQUAL = 0.985


def place_tree(
    tree: Tree,
    devices: int,
    counts: ArrayLike | None = None,
    how: str = "planned",
    dim: int = 300,
    batch_tokens: int | None = None,
    unit: float = UNIT,
    extra_work: float = EXTRA_WORK,
    sizes_slack: float = 1 / 16,
    shares: ArrayLike | None = None,
    room: ArrayLike | None = None,
    slots: int = 0,
) -> Placement:
    """Return the `Placement` of the rows of a tree's table.

    A row is on the device of the node that it is a child of. The nodes at the top, the *cut*, are replicated.
    Each subtree below them is on one device.

    - "planned" replicates a node if its subtree exceeds the fraction `unit` of one device's mean load, or of
      its rows. A parent's load is at least its child's, so the replicated nodes always form a connected top.
      There are limits: at most 2% of the rows (or 4096) are replicated, replicating adds at most
      `extra_work` to the least work that the busiest device can have, and the cut does not run through
      subtrees of equal load. The partitioner then assigns subtrees to devices, so that pairs, flops, bytes
      and rows are all even (`NodeLoads` states the cost model). Equal subtrees go to the devices in turn, so
      that neighbouring classes are on different devices.
    - "range" and "modulo" know no frequencies. They replicate nodes until no subtree has more than a quarter
      of one device's mean number of classes. "range" then fills one device after the other with consecutive
      subtrees, until each has its share of the classes. "modulo" gives subtrees to the devices in turn.

    Args:
        tree: a `kl.trees.Tree`.
        devices: int.
        counts: numbers `[num_classes]`, at least 0: the frequencies of the classes, in any unit. None: the
            frequency of a class is 1 / (class + 1). Defaults to `None`.
        how: "planned", "range" or "modulo". Defaults to `"planned"`.
        dim: int, width of the hidden vectors. Defaults to `300`.
        batch_tokens: number, targets per step over all devices. None: 3200 per device. Defaults to `None`.
        unit: float, see above. Smaller subtrees leave a later rebalance more choice. Defaults to `0.02`.
        extra_work: float, see above. Defaults to `0.1`.
        sizes_slack: float. If it is positive, every shard is made larger than its share by this fraction of
            the mean, and by at least the largest subtree, so that a later rebalance fits. 0: shards are as
            large as they have to be. Defaults to `0.0625`.
        shares: floats `[devices]`: the fraction of the work that each device should get, in any unit. None:
            all the same. Only for "planned". Defaults to `None`.
        room: integers `[devices]`: the most rows on each device, replicated ones included. None: no
            limit. Only for "planned". Defaults to `None`.
        slots: int, how many float32 slots the optimizer has for every value. Defaults to `0`.

    Returns:
        An explicit `Placement` of `tree.num_rows` rows. If the root has leaves only, all rows are replicated
        and the shards are empty.

    Raises:
        ValueError: an unknown `how`, numbers out of range, counts that do not fit the tree, or too little
            room.

    Example:

    ```python
    tree = kl.trees.head_tail(counts)
    placement = kl.distribute.place_tree(tree, devices=8, counts=counts, dim=512)
    kl.layers.HierarchicalSoftmax(len(counts), counts=counts, tree=tree, placement=placement)
    ```
    """
    check_one_of("how", how, HOW)
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
        if np.ptp(shares):  # the top costs all devices the same work, so faster ones have time to spare
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
            # A subtree goes where its middle class belongs.
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
    """Return int64, ascending: the nodes right below the cut (bool `[num_nodes]`)."""
    below = ~cut
    below[1:] &= cut[tree.node_parent[1:]]
    return np.flatnonzero(below)


def spread(tree, cut, units, owner):
    """Return int16 `[num_nodes]`: the device of each node, where device `owner[i]` has the subtree of
    `units[i]`.
    """
    owners = np.full(tree.num_nodes, REPLICATED, np.int16)
    owners[units] = owner
    propagate_down(tree, owners)
    return owners


def subtree_placement(tree, cut, units, owner, sizes):
    """Return the explicit `Placement` where device `owner[i]` has the subtree of `units[i]`."""
    owners = spread(tree, cut, units, owner)
    return Placement.explicit(np.repeat(owners, tree.node_sizes), len(sizes), sizes)


def cut_and_units(tree, placement):
    """Return what a placement says of a tree: the cut, the nodes right below it, and the device of each.

    Returns:
        bool `[num_nodes]`; int64 `[units]`, ascending; int16 `[units]`.

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
    """Return bool `[num_nodes]`: the first `nodes` nodes of `order`, in which parents come before their
    children.
    """
    cut = np.zeros(tree.num_nodes, bool)
    cut[order[: max(1, nodes)]] = True
    return cut


def planned_cut(tree, loads, kinds, devices, unit=UNIT, extra_work=EXTRA_WORK):
    """Return the cut of "planned" in `place_tree`. The size of a subtree is its largest share of any load."""
    share = np.max([kind / kind[0] for kind in kinds], axis=0)
    large = np.flatnonzero(share > unit / devices) if devices > 1 else np.zeros(1, np.int64)
    # Ties keep the order of the nodes, so a parent comes before its children: its share is never smaller.
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
    """Return int64 `[num_nodes]`: how many children of each node are inner nodes."""
    return np.bincount(tree.node_parent[1:], minlength=tree.num_nodes)


def _sizes(rows, owner, devices, slack, shares):
    """Return the size of each shard: the rows that it has, and room for a rebalance (see `place_tree`)."""
    held = np.bincount(owner, rows, devices)
    if slack == 0 or devices == 1 or not len(rows):
        return held.astype(np.int64)
    room = held.sum() * shares / shares.sum() + max(slack * held.sum() / devices, rows.max())
    return np.ceil(np.maximum(held, room)).astype(np.int64)
