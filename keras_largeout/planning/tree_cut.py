"""`TreeCut`: which nodes of a tree are the replicated top, and how much work each subtree below it is.

A cut belongs to the tree, not to the number of devices. A model that was saved on 8 devices has the same cut
on 2. The sizes of its shards follow from three numbers, so they are known before the tree has been read.
"""

import dataclasses

import numpy as np

from keras_largeout.planning.partitioner import pack
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.tree_estimator import (
    TOKENS_PER_DEVICE,
    class_frequencies,
    load_kinds,
    node_loads,
    subtree_sums,
)
from keras_largeout.planning.tree_placement import (
    cut_and_units,
    planned_cut,
    subtree_placement,
    subtree_roots,
)

#: Subtrees are made small enough for this many devices.
_DEVICES = 8
#: How much larger than the mean every shard is made, as a fraction of it.
_SLACK = 1 / 16


@dataclasses.dataclass(frozen=True, eq=False)
class TreeCut:
    """The top of a tree, and the loads of the subtrees below it.

    Attributes:
        nodes: int32, ascending: the nodes of the top: the root, and with each node its parent.
        loads: float32 `[subtrees, 4]`: the pairs, flops, bytes and rows that each subtree is expected to
            cost per step. Subtrees are in the order of their roots.
    """

    nodes: np.ndarray
    loads: np.ndarray

    @classmethod
    def of(cls, tree, counts, dim, devices=_DEVICES):
        """Return the cut that `place_tree` plans for classes with these `counts`; see there."""
        devices = max(devices, _DEVICES)
        counts = class_frequencies(tree, counts)
        loads = node_loads(tree, counts, devices, dim, TOKENS_PER_DEVICE * devices)
        kinds = load_kinds(tree, loads)
        cut = planned_cut(tree, loads, kinds, devices)
        units = subtree_roots(tree, cut)
        return cls(
            np.flatnonzero(cut).astype(np.int32), np.stack([kind[units] for kind in kinds], 1, dtype="f4")
        )

    @classmethod
    def of_placement(cls, tree, placement):
        """Return the cut of a given `Placement` of the tree's rows. Of the subtrees only the rows are
        known.
        """
        cut, units, _ = cut_and_units(tree, placement)
        rows = subtree_sums(tree, tree.node_sizes)[units]
        return cls(np.flatnonzero(cut).astype(np.int32), np.stack([rows] * 4, axis=1, dtype=np.float32))

    def sizes(self, tree):
        """Return `(rows of the top, rows of the largest subtree)`: `part_sizes` needs no more of the tree."""
        top = int(tree.node_sizes[self.nodes].sum())
        return top, int(self.loads[:, -1].max(initial=0))

    def place(self, tree, devices):
        """Return the `Placement` of the tree's rows, in which all kinds of load are even.

        Args:
            tree: `Tree`.
            devices: int.
        """
        mask = np.zeros(tree.num_nodes, bool)
        mask[self.nodes] = True
        units = subtree_roots(tree, mask)
        sizes = part_sizes(tree.num_rows, *self.sizes(tree), devices)
        rows = self.loads[:, -1].astype(np.int64)
        owner = pack(self.loads, np.ones(devices), rows, sizes)
        return subtree_placement(tree, mask, units, owner, sizes)


def part_sizes(rows, top_rows, largest, devices):
    """Return the sizes of the shards: an even share of the rows below the cut, and room for one more subtree.

    Args:
        rows: int, rows of the tree.
        top_rows: int, how many of them belong to the top.
        largest: int, rows of the largest subtree.
        devices: int.

    Returns:
        Tuple of ints.
    """
    below = rows - top_rows
    if below == 0:
        return (0,) * devices
    return (-(-below // devices) + max(int(_SLACK * below / devices), largest),) * devices


def unfilled_placement(rows, top_rows, largest, devices):
    """Return a placement of the right sizes, with rows in order, until a weights file brings the tree."""
    sizes = part_sizes(rows, top_rows, largest, devices)
    owners = np.full(rows, -1, np.int16)
    each = -(-(rows - top_rows) // devices)
    owners[top_rows:] = np.arange(rows - top_rows) // max(1, each)
    return Placement.explicit(owners, devices, sizes)
