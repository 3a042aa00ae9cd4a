"""Pins: rows and classes that a person has assigned to a device by editing the file of a plan."""

import numpy as np

from keras_largeout.planning.placement import REPLICATED, Placement
from keras_largeout.planning.row_estimator import row_owners
from keras_largeout.planning.tree_estimator import class_nodes
from keras_largeout.planning.tree_placement import cut_and_units, spread


def pinned(spec, is_tree, placement, pins, devices):
    """Return the explicit placement with `pins` applied. Its shards are larger where they have to be.

    Args:
        spec: the `TableSpec`.
        is_tree: bool, whether the table is that of a tree. Then `spec.tree` must not be None.
        placement: a `Placement`.
        pins: dict from `"7"` or `"10-19"` (rows, for a tree classes) to a device's index or name, or "all".
        devices: sequence of `Device`.

    Raises:
        ValueError: pins that are not possible.
    """
    if placement.columns is not None:
        raise ValueError(f"Rows of table {spec.name!r} can't be pinned: it is sharded by columns.")
    if is_tree and spec.tree is None:
        raise ValueError(
            f"`pin` of table {spec.name!r} names classes of a tree: `Plan.load` needs `tables` to find them."
        )
    limit = spec.tree.num_classes if is_tree else spec.rows
    ranges = [
        (*_range(spec.name, key, limit), _device(spec.name, value, devices)) for key, value in pins.items()
    ]
    if is_tree:
        owners = _pin_classes(spec, placement, ranges)
    else:
        owners = row_owners(placement)
        for start, stop, device in ranges:
            owners[start:stop] = device
    held = np.bincount(owners + 1, minlength=len(devices) + 1)[1:]
    sizes = held if placement.kind == "table" else np.maximum(held, placement.sizes)
    return Placement.explicit(owners, len(devices), sizes)


def _pin_classes(spec, placement, ranges):
    tree = spec.tree
    cut, units, owner = cut_and_units(tree, placement)
    unit_of = spread(tree, cut, units, np.arange(len(units)))  # which subtree a node is in
    moved = {}
    for start, stop, device in ranges:
        found = np.unique(unit_of[class_nodes(tree, slice(start, stop))])
        if device == REPLICATED or REPLICATED in found:
            raise ValueError(
                f"`pin` of table {spec.name!r}: classes {start}-{stop - 1} can't go to "
                f"{'all' if device == REPLICATED else device}: a pinned class takes its subtree along, "
                "and pins do not change which nodes are replicated."
            )
        for unit in found.tolist():
            if moved.setdefault(unit, device) != device:
                raise ValueError(
                    f"`pin` of table {spec.name!r}: classes {start}-{stop - 1} are in one subtree with "
                    f"others that go to device {moved[unit]}. Received: device {device}"
                )
    owner = owner.copy()
    owner[list(moved)] = list(moved.values())
    return np.repeat(spread(tree, cut, units, owner), tree.node_sizes)


def _range(name, key, limit):
    first, _, last = key.partition("-")
    try:
        start, stop = int(first), int(last or first) + 1
    except ValueError:
        start, stop = 0, 0
    if not 0 <= start < stop <= limit:
        raise ValueError(
            f'`pin` of table {name!r} must have keys such as "7" or "10-19", below {limit}. Received: {key!r}'
        )
    return start, stop


def _device(name, value, devices):
    names = [device.name for device in devices]
    if value == "all":
        return REPLICATED
    if value in names:
        return names.index(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < len(devices):
        raise ValueError(
            f'`pin` of table {name!r} must name a device, by index or name, or "all". Received: {value!r}'
        )
    return value
