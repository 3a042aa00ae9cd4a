"""What the nodes of a tree cost in a training step, and what that makes for each device."""

import dataclasses

import numpy as np

from keras_largeout.distribute.planning.placement import REPLICATED
from keras_largeout.distribute.planning.specs import checked_counts
from keras_largeout.trees.cost import (
    COMPUTE_BYTES,
    FLOAT32_BYTES,
    FLOPS_PER_BYTE,
    FLOPS_PER_MULTIPLY_ADD,
    PRODUCTS,
    UPDATE_BYTES,
    passed_by_batch,
    probabilities,
)

#: Targets per step and device, where the caller gives none.
TOKENS_PER_DEVICE = 3200


def class_frequencies(tree, counts):
    """`counts` as float64 `[num_classes]`, checked; 1 / rank when None."""
    if counts is None:
        return 1.0 / np.arange(1, tree.num_classes + 1)
    return checked_counts(counts, tree.num_classes, "class")


@dataclasses.dataclass(frozen=True)
class NodeLoads:
    """Expected work of every node of a tree in one training step, float64 `[num_nodes]` each.

    The model: targets are drawn independently in proportion to the counts; a node with `c` children that a
    target passes with probability p has `batch_tokens * p` (token, node) *pairs*, each of which costs
    `6 * dim * c` flops (the product, and two gradients); with probability `1 - (1 - p) ** batch_tokens` the
    step touches its `c` rows, and then moves `20 * dim` bytes for each (two reads, a gradient written, a read
    and a write by the update), and `8 * dim` more for every slot of the optimizer. On a replicated node every
    device computes with its own part of the batch, and updates all rows that any device touched.

    Attributes:
        pairs: pairs in the whole batch.
        flops: of the whole batch.
        bytes: of the whole batch, where one device owns the node.
        replicated_bytes: on each device, where all have it.
        touched: expected rows that the whole batch touches.
        local: expected rows that the part of the batch on one device touches.
        rows: children of each node.
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
        """Bytes, and flops at `FLOPS_PER_BYTE`."""
        return self.bytes + self.flops / FLOPS_PER_BYTE


def node_loads(tree, counts, devices, dim, batch_tokens, slots=0):
    """The `NodeLoads` of a tree; `counts` as `class_frequencies` returns them."""
    mass = probabilities(tree, counts)[1]
    rows = tree.node_sizes
    pairs = batch_tokens * mass
    touched = rows * passed_by_batch(mass, batch_tokens)
    local = rows * passed_by_batch(mass, batch_tokens / devices)
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
    """float64 `[num_nodes]`: the sum of `values` (one a node) over the subtree under each node."""
    sums = np.array(values, np.float64)
    levels = tree.levels
    for level in range(len(levels) - 2, 0, -1):
        above, first, last = levels[level - 1 : level + 2]
        parents = tree.node_parent[first:last] - above
        sums[above:first] += np.bincount(parents, sums[first:last], minlength=first - above)
    return sums


def load_kinds(tree, loads):
    """What the partitioner makes even: pairs, flops, bytes and rows of each subtree.

    Args:
        tree: `Tree`.
        loads: its `NodeLoads`.

    Returns:
        List of four float64 `[num_nodes]`.
    """
    return [subtree_sums(tree, kind) for kind in (loads.pairs, loads.flops, loads.bytes, loads.rows)]


def node_owners(tree, placement):
    """int16 `[num_nodes]`: the device that has the children of each node, -1 where all have them.

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
    """`node_owners` of some nodes, without a look at all rows."""
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
    """What each device has of a tree and is expected to do in a step; float64 `[devices]` each.

    Replicated nodes are counted where they are computed: a part of `1 / devices` of their pairs and flops on
    every device. `NodeLoads` states the model.

    Attributes:
        pairs: (token, node) pairs.
        flops, bytes: of the computation, and through the device's memory.
        touched: different rows that a step touches.
        rows: rows in the device's memory.
        received: bytes that come from other devices: hidden vectors of tokens whose class lies in its
            subtrees and gradients of those it sent away, both float32, and the gradients that other devices
            have for replicated rows.
    """

    pairs: np.ndarray
    flops: np.ndarray
    bytes: np.ndarray
    touched: np.ndarray
    rows: np.ndarray
    received: np.ndarray

    @property
    def imbalance(self):
        """The largest over the mean, of each: a dict of floats."""
        return {field.name: max_over_mean(getattr(self, field.name)) for field in dataclasses.fields(self)}


def max_over_mean(loads):
    """1.0 for an even load (and for none)."""
    mean = np.mean(loads)
    return float(np.max(loads) / mean) if mean > 0 else 1.0


def tree_load(tree, placement, counts=None, dim=300, batch_tokens=None, slots=0):
    """The expected `TreeLoad` of a placement.

    Args:
        tree: a `Tree`.
        placement: a `Placement` of its rows, as `place_tree` makes them.
        counts: numbers `[num_classes]`, at least 0; 1 / rank when None.
        dim: width of the hidden vectors.
        batch_tokens: targets in a step, over all devices; 3200 a device when None.
        slots: float32 slots that the optimizer has for every value.
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
    hidden = tokens_here * (devices - 1) / devices
    returned = (tokens_here.sum() - tokens_here) / devices
    return TreeLoad(
        pairs=owned(loads.pairs) + loads.pairs[top].sum() / devices,
        flops=owned(loads.flops) + loads.flops[top].sum() / devices,
        bytes=owned(loads.bytes) + loads.replicated_bytes[top].sum(),
        touched=owned(loads.touched) + loads.touched[top].sum(),
        rows=owned(loads.rows) + loads.rows[top].sum(),
        received=float(FLOAT32_BYTES) * dim * (hidden + returned + (devices - 1) * loads.local[top].sum()),
    )


def class_nodes(tree, classes):
    """int64, of the shape of `classes`: the node whose child each of some classes is."""
    return np.searchsorted(tree.node_start, tree.class_row[classes], side="right") - 1


def count_pairs(tree, placement, targets):
    """How many (token, node) pairs of a batch each device has to compute.

    Args:
        tree: a `Tree`.
        placement: a `Placement` of its rows, as `place_tree` makes them.
        targets: integers of any shape, classes.

    Returns:
        int64 `[devices]`, the pairs of the nodes that a device owns, and an int, those of replicated nodes,
        which the devices share in the proportion in which they share the batch.
    """
    counts = np.zeros(placement.devices + 1, np.int64)
    nodes = class_nodes(tree, np.asarray(targets, np.int64).ravel())
    while len(nodes):
        counts += np.bincount(_owners_of(tree, placement, nodes) + 1, minlength=len(counts))
        nodes = tree.node_parent[nodes]
        nodes = nodes[nodes >= 0]
    return counts[1:], int(counts[0])
