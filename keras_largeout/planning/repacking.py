"""New placements from measured loads, for shards whose sizes stay as they are. NumPy only."""

import dataclasses

import numpy as np

from keras_largeout.planning.partitioner import pack
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.row_placement import pack_rows
from keras_largeout.planning.tree_estimator import class_frequencies, load_kinds, node_loads
from keras_largeout.planning.tree_placement import cut_and_units, subtree_placement


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredPlan:
    """The best places of rows, by the loads counted in training. `LoadBalance.plan` makes it.

    Attributes:
        placements: dict from the names of tables to their new `Placement`s.
        expected: dict from the same names to the max/mean load over the devices that the new placements would
            have given for all steps measured. (In a single step chance adds to it.)
    """

    placements: dict[str, Placement]
    expected: dict[str, float]

    def __str__(self):
        lines = [f"{name}: expected max/mean {value:.2f}" for name, value in self.expected.items()]
        return "\n".join(lines) or "no tables"


def spread_rows(placement, lookups):
    """Return the explicit `Placement` in which the measured lookups are even, and the lookups of each device
    then.

    Rows are assigned by `pack`: equal ones go to the devices in turn, so that neighbours are on different
    devices. The replicated rows and the sizes of the shards stay as they are.

    Args:
        placement: a row-wise `Placement`. (One of another kind is returned as it is.)
        lookups: floats `[rows]`: how often each row was looked up.

    Returns:
        The `Placement`, and float64 `[devices]`.
    """
    if placement.columns is not None or placement.kind in ("replicated", "table"):
        return placement, np.ones(placement.devices)
    new = pack_rows(lookups, placement.hot, np.ones(placement.devices), placement.sizes)
    owned = new.owners >= 0
    return new, np.bincount(new.owners[owned], lookups[owned], placement.devices)


def spread_subtrees(placement, tree, targets, leaf_of_class, counts, dim):
    """Return the explicit `Placement` in which the measured work is even, and the pairs of each device then.

    Args:
        placement: a `Placement` of the tree's rows.
        tree: `Tree`.
        targets: integers `[leaves of the top]`: how many targets were below each leaf of the replicated top.
        leaf_of_class: integers `[num_classes]`: the leaf of the top that each class is below.
        counts: numbers `[num_classes]`, how frequent the classes of one subtree are in proportion to each
            other; 1 / (class + 1) when None.
        dim: width of the hidden vectors.

    Returns:
        The `Placement`, and float64 `[devices]`.

    Raises:
        ValueError: the subtrees do not fit into the shards.
    """
    prior = class_frequencies(tree, counts)
    leaf_sums = np.bincount(leaf_of_class, prior, len(targets))
    scale = np.divide(targets, leaf_sums, out=np.zeros(len(targets)), where=leaf_sums > 0)
    measured = prior * scale[leaf_of_class]
    cut, units, _ = cut_and_units(tree, placement)
    tokens = max(1.0, measured.sum())
    loads = node_loads(tree, class_frequencies(tree, measured), placement.devices, dim, tokens)
    *kinds, rows = (kind[units] for kind in load_kinds(tree, loads))
    try:
        owner = pack(np.stack(kinds, axis=1), np.ones(placement.devices), rows, placement.sizes)
    except ValueError as error:
        raise ValueError(
            f"The shards, of {list(placement.sizes)} rows, are too small for a rebalance: make them "
            f"with more `sizes_slack`. {error}"
        ) from None
    work = np.bincount(owner, kinds[0], placement.devices) + loads.pairs[cut].sum() / placement.devices
    return subtree_placement(tree, cut, units, owner, placement.sizes), work
