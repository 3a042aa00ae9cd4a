"""`TreeCut`: where a tree is cut in a replicated top and subtrees, and how much work each subtree is.

A cut belongs to the tree, not to the number of devices: a model that was saved on 8 devices has the same cut
on 2, and the sizes of its parts follow from three numbers, before the tree itself has been read.
"""

import dataclasses

import numpy as np

from keras_largeout.distribute.planning.partitioner import pack
from keras_largeout.distribute.planning.placement import Placement
from keras_largeout.distribute.planning.tree_estimator import (
    TOKENS_PER_DEVICE,
    class_frequencies,
    load_kinds,
    node_loads,
    subtree_sums,
)
from keras_largeout.distribute.planning.tree_placement import (
    cut_and_units,
    planned_cut,
    subtree_placement,
    subtree_roots,
)

#: Subtrees are made small enough for this many devices.
_DEVICES = 8
_SLACK = 1 / 16


@dataclasses.dataclass(frozen=True, eq=False)
class TreeCut:
    """Where a tree is cut.

    Attributes:
        nodes: int32, ascending: the top nodes, which hold the root and the parent of each of them.
        loads: float32 `[subtrees, kinds]`: what each subtree below the cut, in the order of their roots, is
            expected to cost in a step: pairs, flops, bytes, rows.
    """

    nodes: np.ndarray
    loads: np.ndarray

    @classmethod
    def of(cls, tree, counts, dim, devices=_DEVICES):
        """The cut that `place_tree` plans for classes of these frequencies (1 / rank for None)."""
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
        """The cut of a given `Placement` of the tree's rows; of the subtrees just their rows are known."""
        cut, units, _ = cut_and_units(tree, placement)
        rows = subtree_sums(tree, tree.node_sizes)[units]
        return cls(np.flatnonzero(cut).astype(np.int32), np.stack([rows] * 4, axis=1, dtype=np.float32))

    def sizes(self, tree):
        """`(rows of the top, rows of the largest subtree)`, from which the sizes of all parts follow."""
        top = int(tree.node_sizes[self.nodes].sum())
        return top, int(self.loads[:, -1].max(initial=0))

    def place(self, tree, devices, loads=None):
        """The `Placement` of the tree's rows: subtrees packed so that all kinds of load are even.

        Args:
            tree: `Tree`.
            devices: int.
            loads: optional floats `[subtrees, kinds]` in the place of the expected ones: what was measured.
        """
        mask = np.zeros(tree.num_nodes, bool)
        mask[self.nodes] = True
        units = subtree_roots(tree, mask)
        sizes = part_sizes(tree.num_rows, *self.sizes(tree), devices)
        rows = self.loads[:, -1].astype(np.int64)
        owner = pack(self.loads if loads is None else loads, np.ones(devices), rows, np.array(sizes))
        return subtree_placement(tree, mask, units, owner, sizes)


def part_sizes(rows, top_rows, largest, devices):
    """Positions of each shard: an even part of the rows below the cut, and room for one subtree more."""
    below = rows - top_rows
    if below == 0:
        return (0,) * devices
    return (-(-below // devices) + max(int(_SLACK * below / devices), largest),) * devices


def unfilled_placement(rows, top_rows, largest, devices):
    """A placement of the right sizes, until a weights file brings the tree: rows in order."""
    sizes = part_sizes(rows, top_rows, largest, devices)
    owners = np.full(rows, -1, np.int16)
    each = -(-(rows - top_rows) // devices)
    owners[top_rows:] = np.arange(rows - top_rows) // max(1, each)
    return Placement.explicit(owners, devices, sizes)
