"""New placements from what was measured, for shards of the sizes that there are. NumPy only."""

import dataclasses

import numpy as np

from keras_largeout.distribute.planning.packing import pack
from keras_largeout.distribute.planning.placement import REPLICATED, Placement
from keras_largeout.distribute.planning.tree_cost import class_frequencies, node_loads, subtree_sums
from keras_largeout.distribute.planning.tree_placement import cut_and_units, spread


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredPlan:
    """Where the rows of tables should be, by what was counted in training. `LoadBalance.plan` makes it.

    Attributes:
        placements: dict from the names of tables to their new `Placement`s.
        expected: dict from the names to max/mean over the devices, had the rows been there, of the whole time
            measured. (In single steps chance adds to it.)
    """

    placements: dict
    expected: dict

    def __str__(self):
        lines = [f"{name}: expected max/mean {value:.2f}" for name, value in self.expected.items()]
        return "\n".join(lines) or "no tables"


def spread_rows(placement, asked):
    """The explicit `Placement` in which the rows asked for are even, and what each device then does.

    Rows go to devices by longest processing time first; equal ones in turn, so that neighbours are spread.
    Replicated rows and the sizes of the shards stay.

    Args:
        placement: a `Placement` cut by rows.
        asked: floats `[rows]`: how often each row was asked for.

    Returns:
        The `Placement`, and float64 `[devices]`.
    """
    if placement.columns is not None or placement.kind in ("replicated", "table"):
        return placement, np.ones(placement.devices)
    owners = np.full(placement.rows, REPLICATED, np.int16)
    cold = np.ones(placement.rows, bool)
    if placement.hot is not None:
        cold[placement.hot] = False
    rows = np.flatnonzero(cold)
    ones = np.ones(placement.devices)
    owners[rows] = pack(
        asked[rows, None], ones, np.ones(len(rows), np.int64), np.array(placement.sizes, np.int64)
    )
    work = np.bincount(owners[rows], asked[rows], placement.devices)
    return Placement.explicit(owners, placement.devices, placement.sizes), work


def spread_subtrees(placement, tree, targets, leaf_of_class, counts, dim):
    """The explicit `Placement` in which the measured work is even, and the pairs that each device then has.

    Args:
        placement: a `Placement` of the tree's rows.
        tree: `Tree`.
        targets: integers `[leaves of the top]`: how many targets lay under each.
        leaf_of_class: integers `[num_classes]`.
        counts: frequencies `[num_classes]`, or None for 1 / rank: how often a class is the target compared
            with others of its subtree.
        dim: width of the hidden vectors.

    Returns:
        The `Placement`, and float64 `[devices]`.
    """
    prior = class_frequencies(tree, counts)
    leaf_sums = np.bincount(leaf_of_class, prior, len(targets))
    scale = np.divide(targets, leaf_sums, out=np.zeros(len(targets)), where=leaf_sums > 0)
    measured = prior * scale[leaf_of_class]
    cut, units, _ = cut_and_units(tree, placement)
    tokens = max(1.0, measured.sum())
    loads = node_loads(tree, class_frequencies(tree, measured), placement.devices, dim, tokens)
    rows = subtree_sums(tree, tree.node_sizes)[units]
    kinds = [subtree_sums(tree, kind)[units] for kind in (loads.pairs, loads.flops, loads.bytes)]
    room = np.array(placement.sizes, np.int64)
    owner = pack(np.stack(kinds, axis=1), np.ones(placement.devices), rows.astype(np.int64), room)
    owners = np.repeat(spread(tree, cut, units, owner), tree.node_sizes)
    work = np.bincount(owner, kinds[0], placement.devices) + loads.pairs[cut].sum() / placement.devices
    return Placement.explicit(owners, placement.devices, placement.sizes), work
