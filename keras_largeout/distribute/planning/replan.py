"""New frequencies, the same shards: where rows should go when a table is rebalanced."""

import dataclasses

import numpy as np

from keras_largeout.distribute.planning.packing import pack
from keras_largeout.distribute.planning.pins import pinned_mask
from keras_largeout.distribute.planning.placement import REPLICATED, Placement
from keras_largeout.distribute.planning.plan import Plan
from keras_largeout.distribute.planning.row_cost import device_load, device_shares, row_load, row_owners
from keras_largeout.distribute.planning.specs import TableSpec
from keras_largeout.distribute.planning.tree_cost import (
    TOKENS_PER_DEVICE,
    class_nodes,
    node_loads,
    subtree_sums,
)
from keras_largeout.distribute.planning.tree_placement import cut_and_units, spread


def replan(what, counts, tree=None, dim=300, batch_size=None, slots=0, shares=None, keep=None):
    """Moves rows, or subtrees, to even out the load that `counts` makes; the shapes of the shards stay.

    Replicated rows stay replicated, and no others become so; of a tree, whole subtrees move. Rows stay where
    they are unless they overload their device, or others need their room.

    Args:
        what: a `Placement`; or a `Plan`, which says itself what the arguments after `counts` say.
        counts: of a placement: numbers `[rows]`, at least 0, how often rows are looked up (with `tree`:
            `[num_classes]`, how often classes are targets). Of a plan: dict from names of tables to such;
            other tables stay as they are, and pinned rows where they are.
        tree: the `Tree` whose rows are placed, or None.
        dim, slots: columns of the table, float32 slots of the optimizer for every value.
        batch_size: ids (targets) in a step, over all devices; 3200 a device when None.
        shares: optional floats `[devices]`: how much each device should get; all the same when None.
        keep: optional bools `[rows]` (with `tree` `[num_classes]`): what stays where it is.

    Returns:
        An explicit `Placement` with the sizes and the replicated rows of the old one (one that has no choice,
        replicated, by columns or with all rows on one device, is returned as it is); or a `Plan`.

    Raises:
        ValueError: for counts that do not fit, or where the subtrees do not fit into the shards.
    """
    if isinstance(what, Plan):
        return _replan(what, counts)
    if what.kind in ("replicated", "columns", "table") or what.devices == 1:
        return what
    spec = TableSpec("table", what.rows, dim, slots=slots, counts=counts, tree=tree)
    shares = np.ones(what.devices) if shares is None else np.asarray(shares, np.float64)
    return _moved(spec, what, batch_size or TOKENS_PER_DEVICE * what.devices, shares, keep)


def _replan(plan, counts):
    unknown = set(counts) - {table.spec.name for table in plan.tables if table.spec.like is None}
    if unknown:
        raise ValueError(
            f"`counts` must be those of tables of the plan that have no `like`, {list(plan.placements)}. "
            f"Received: counts of {sorted(unknown)}"
        )
    done = {}
    for table in sorted(plan.tables, key=lambda table: table.spec.like is not None):
        spec, name = table.spec, table.spec.like or table.spec.name
        if name in counts:
            spec = dataclasses.replace(spec, counts=counts[name])
            if spec.like:
                placement = done[spec.like].placement
            else:
                keep = pinned_mask(spec, table.pins) if table.pins else None
                shares = device_shares([spec], plan.devices, plan.batch_size)
                placement = _moved(spec, table.placement, plan.batch_size, shares, keep)
            reason = table.reason if placement is table.placement else "rebalanced for new counts"
            expected = device_load(spec, placement, plan.batch_size)
            table = dataclasses.replace(
                table, spec=spec, placement=placement, reason=reason, expected=expected
            )
        done[spec.name] = table
    return Plan(plan.devices, tuple(done[name] for name in plan.placements), plan.batch_size)


def _moved(spec, placement, batch_size, shares, keep):
    if placement.kind in ("replicated", "columns", "table") or placement.devices == 1:
        return placement
    if spec.tree is None:
        owners = row_owners(placement)
        load = row_load(spec, placement.devices, batch_size).owned[:, None]
        rows = np.ones(spec.rows, np.int64)
        return Placement.explicit(
            _repacked(owners, load, rows, placement, shares, keep), placement.devices, placement.sizes
        )
    tree = spec.tree
    cut, units, owner = cut_and_units(tree, placement)
    loads = node_loads(
        tree, spec.counts, placement.devices, spec.dim, batch_size * spec.ids_per_example, spec.slots
    )
    kinds = [subtree_sums(tree, kind)[units] for kind in (loads.pairs, loads.flops, loads.bytes)]
    rows = subtree_sums(tree, tree.node_sizes)[units].astype(np.int64)
    if keep is not None:
        unit_of = spread(tree, cut, units, np.arange(len(units)))[class_nodes(tree, np.flatnonzero(keep))]
        keep = np.isin(np.arange(len(units)), unit_of)
    owner = _repacked(owner, np.stack(kinds, axis=1), rows, placement, shares, keep)
    owners = spread(tree, cut, units, owner)
    return Placement.explicit(np.repeat(owners, tree.node_sizes), placement.devices, placement.sizes)


def _repacked(owner, loads, rows, placement, shares, keep):
    """The new owner of every unit; replicated ones, and those of `keep`, have the old."""
    devices = placement.devices
    stays = owner == REPLICATED
    fixed = np.zeros(len(owner), bool) if keep is None else keep & ~stays
    base = np.stack([np.bincount(owner[fixed], kind[fixed], devices) for kind in loads.T], axis=1)
    room = placement.sizes - np.bincount(owner[fixed], rows[fixed], devices).astype(np.int64)
    moves = np.flatnonzero(~stays & ~fixed)
    owner = owner.copy()
    try:
        owner[moves] = pack(loads[moves], shares, rows[moves], room, base, owner[moves])
    except ValueError as error:
        raise ValueError(
            f"The shards, of {list(placement.sizes)} rows, are too small for a rebalance: make them "
            f"with more `sizes_slack`. {error}"
        ) from None
    return owner
