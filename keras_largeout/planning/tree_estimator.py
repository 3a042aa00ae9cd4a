"""The estimator of trees: what the nodes cost per training step, and what that makes for each device.

`keras_largeout.trees.cost` has the numbers of the cost model and their units.
"""

import dataclasses

import numpy as np

from keras_largeout.planning.exchange_estimator import arrivals, arriving, replicated_between
from keras_largeout.planning.placement import REPLICATED
from keras_largeout.planning.specs import checked_counts
from keras_largeout.trees.cost import (
    COMPUTE_BYTES,
    FLOAT32_BYTES,
    FLOPS_PER_BYTE,
    FLOPS_PER_MULTIPLY_ADD,
    PRODUCTS,
    UPDATE_BYTES,
    probabilities,
    probability_touched,
)

#: Targets per step and device, where the caller gives none.
TOKENS_PER_DEVICE = 3200


def class_frequencies(tree, counts):
    """Return `counts` as float64 `[num_classes]`, checked; 1 / (class + 1) when None."""
    if counts is None:
        return 1.0 / np.arange(1, tree.num_classes + 1)
    return checked_counts(counts, tree.num_classes, "class")


@dataclasses.dataclass(frozen=True)
class NodeLoads:
    """The expected work of every node of a tree per training step. Arrays are float64 `[num_nodes]`.

    The model: targets are independent draws in proportion to the counts. Let a target pass a node with
    probability p, and let the node have `c` children. Then

    - the step has `batch_tokens * p` (token, node) *pairs* at the node. Each costs `6 * dim * c` flops: the
      forward product and two gradients.
    - the step touches the `c` rows of the node with probability `1 - (1 - p) ** batch_tokens`. Then it moves
      `20 * dim` bytes per row: two reads, a gradient written, and a read and a write by the update. Each
      slot of the optimizer adds `8 * dim` bytes per row.

    If a node is replicated, every device computes with its own batch, and updates the rows that any device
    touched.

    Attributes:
        pairs: pairs of the whole batch.
        flops: flops of the whole batch.
        bytes: bytes moved for the whole batch, if one device has the node.
        replicated_bytes: bytes moved on each device, if every device has the node.
        touched: how many rows the whole batch touches.
        local: how many rows the batch of one device touches.
        rows: how many children the node has.
    """

    pairs: np.ndarray
    flops: np.ndarray
    bytes: np.ndarray
    replicated_bytes: np.ndarray
    touched: np.ndarray
    local: np.ndarray
    rows: np.ndarray

    @property
    def work(self):
        """Bytes, where `FLOPS_PER_BYTE` flops count as one."""
        return self.bytes + self.flops / FLOPS_PER_BYTE


def node_loads(tree, counts, devices, dim, batch_tokens, slots=0):
    """Return the `NodeLoads` of a tree.

    Args:
        tree: `Tree`.
        counts: float64 `[num_classes]`, as `class_frequencies` returns them.
        devices: int.
        dim: int, width of the hidden vectors.
        batch_tokens: number, targets per step over all devices.
        slots: int, how many float32 slots the optimizer has for every value.
    """
    mass = probabilities(tree, counts)[1]
    rows = tree.node_sizes
    pairs = batch_tokens * mass
    touched = rows * probability_touched(mass, batch_tokens)
    local = rows * probability_touched(mass, batch_tokens / devices)
    update = UPDATE_BYTES * (1 + slots)
    return NodeLoads(
        pairs=pairs,
        flops=FLOPS_PER_MULTIPLY_ADD * PRODUCTS * dim * pairs * rows,
        bytes=dim * (COMPUTE_BYTES + update) * touched,
        replicated_bytes=dim * (COMPUTE_BYTES * local + update * touched),
        touched=touched,
        local=local,
        rows=rows,
    )


def subtree_sums(tree, values):
    """Return float64 `[num_nodes]`: the sum of `values` (one per node) over the subtree of each node."""
    sums = np.array(values, np.float64)
    levels = tree.levels
    for level in range(len(levels) - 2, 0, -1):
        above, first, last = levels[level - 1 : level + 2]
        parents = tree.node_parent[first:last] - above
        sums[above:first] += np.bincount(parents, sums[first:last], minlength=first - above)
    return sums


def load_kinds(tree, loads):
    """Return what the partitioner makes even: pairs, flops, bytes and rows of each subtree.

    Args:
        tree: `Tree`.
        loads: its `NodeLoads`.

    Returns:
        List of four float64 `[num_nodes]`.
    """
    return [subtree_sums(tree, kind) for kind in (loads.pairs, loads.flops, loads.bytes, loads.rows)]


def node_owners(tree, placement):
    """Return int16 `[num_nodes]`: the device that has the children of each node; -1 where every device has
    them.

    Raises:
        ValueError: the placement is not one of this tree's rows, or splits the children of a node.
    """
    owners = _owners_of(tree, placement, np.arange(tree.num_nodes))
    if placement.owners is not None:
        split = np.repeat(owners, tree.node_sizes) != placement.owners
        if split.any():
            node = int(np.searchsorted(tree.node_start, np.argmax(split), side="right")) - 1
            devices = np.unique(placement.owners[tree.node_start[node] : tree.node_start[node + 1]])
            raise ValueError(
                "`placement` must keep the children of a node together. "
                f"Received: children of node {node} on devices {devices.tolist()}"
            )
    return owners


def _owners_of(tree, placement, nodes):
    """Return `node_owners` of some nodes, without reading the owners of all rows."""
    if placement.rows != tree.num_rows:
        raise ValueError(
            f"`placement` must be one of the tree's {tree.num_rows} rows. Received: {placement!r}"
        )
    if placement.kind == "replicated":
        return np.full(len(nodes), REPLICATED, np.int16)
    if placement.kind != "explicit":
        raise ValueError(
            f"`placement` must be explicit: a tree goes to devices by its nodes. Received: {placement!r}"
        )
    return placement.owners[tree.node_start[nodes]].astype(np.int16)


@dataclasses.dataclass(frozen=True)
class TreeLoad:
    """The part of a tree on each device, and its expected work per step. Arrays are float64 `[devices]`.

    Replicated nodes count where they are computed: each device has `1 / devices` of their pairs and flops.
    `NodeLoads` states the model.

    Attributes:
        pairs: (token, node) pairs.
        flops: flops of the computation.
        bytes: bytes that pass through the device's memory.
        touched: different rows that a step touches.
        rows: rows in the device's memory.
        received: bytes from other devices. They are the float32 hidden vectors of tokens whose class is in
            its subtrees, the gradients of those that it sent away, and the gradients that other devices have
            for replicated rows.
        between: the part of them that comes from other hosts.
    """

    pairs: np.ndarray
    flops: np.ndarray
    bytes: np.ndarray
    touched: np.ndarray
    rows: np.ndarray
    received: np.ndarray
    between: np.ndarray

    @property
    def imbalance(self):
        """dict from the name of each attribute to its max/mean over the devices."""
        return {field.name: max_over_mean(getattr(self, field.name)) for field in dataclasses.fields(self)}


def max_over_mean(loads):
    """Return float: the largest load over the mean one. 1.0 is even, and stands for no load at all too."""
    mean = np.mean(loads)
    return float(np.max(loads) / mean) if mean > 0 else 1.0


def tree_load(tree, placement, counts=None, dim=300, batch_tokens=None, slots=0, hosts=None):
    """Return the expected `TreeLoad` of a placement.

    Args:
        tree: a `Tree`.
        placement: a `Placement` of its rows, as `place_tree` makes them.
        counts: numbers `[num_classes]`, at least 0; 1 / (class + 1) when None.
        dim: int, width of the hidden vectors.
        batch_tokens: number, targets per step over all devices; 3200 per device when None.
        slots: int, how many float32 slots the optimizer has for every value.
        hosts: sequence `[devices]`, the host of each device; None for one host.
    """
    devices = placement.devices
    tokens = batch_tokens or TOKENS_PER_DEVICE * devices
    loads = node_loads(tree, class_frequencies(tree, counts), devices, dim, tokens, slots)
    owners = node_owners(tree, placement)
    top, own = owners < 0, owners >= 0
    roots = own.copy()
    roots[1:] &= top[tree.node_parent[1:]]

    def owned(values, where=own):
        return np.bincount(owners[where], values[where], minlength=devices)

    tokens_here = owned(loads.pairs, roots)  # from all devices, an equal part from each
    received, between = arrivals(tokens_here, 0.0, hosts)
    received = received + arriving(np.zeros(devices), devices * loads.local[top].sum())
    if hosts is not None:
        count = len(set(hosts))
        of_hosts = node_loads(tree, class_frequencies(tree, counts), count, dim, tokens, slots).local
        between = between + replicated_between(count * of_hosts[top].sum(), loads.touched[top].sum(), hosts)
        between = np.minimum(between, received)
    vector = float(FLOAT32_BYTES) * dim
    return TreeLoad(
        pairs=owned(loads.pairs) + loads.pairs[top].sum() / devices,
        flops=owned(loads.flops) + loads.flops[top].sum() / devices,
        bytes=owned(loads.bytes) + loads.replicated_bytes[top].sum(),
        touched=owned(loads.touched) + loads.touched[top].sum(),
        rows=owned(loads.rows) + loads.rows[top].sum(),
        received=vector * received,
        between=vector * between,
    )


def class_nodes(tree, classes):
    """Return int64, the shape of `classes`: the node that each class is a child of."""
    return np.searchsorted(tree.node_start, tree.class_row[classes], side="right") - 1


def count_pairs(tree, placement, targets):
    """Return how many (token, node) pairs of a batch each device has to compute.

    Args:
        tree: a `Tree`.
        placement: a `Placement` of its rows, as `place_tree` makes them.
        targets: integers of any shape, classes.

    Returns:
        int64 `[devices]`, the pairs at nodes that only this device has; and an int, the pairs at replicated
        nodes, of which each device computes those of its own batch.
    """
    counts = np.zeros(placement.devices + 1, np.int64)
    nodes = class_nodes(tree, np.asarray(targets, np.int64).ravel())
    while len(nodes):
        counts += np.bincount(_owners_of(tree, placement, nodes) + 1, minlength=len(counts))
        nodes = tree.node_parent[nodes]
        nodes = nodes[nodes >= 0]
    return counts[1:], int(counts[0])
