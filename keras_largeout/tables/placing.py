"""The `placement` that a layer is given, and the `Placement` that it asks for."""

import numpy as np

from keras_largeout.planning.placement import SIMPLE_KINDS, Placement

#: `placement="auto"` replicates tables up to this size, and cuts larger ones.
REPLICATED_BYTES = 1 << 20

PLACEMENTS = ("auto", *SIMPLE_KINDS)


def check_placement(placement):
    """Validate and return `placement`, an argument of a layer. Raises ValueError where it is not valid."""
    if isinstance(placement, Placement) or placement in PLACEMENTS or hasattr(placement, "placements"):
        return placement
    raise ValueError(
        f"`placement` must be one of {PLACEMENTS}, a Placement or a Plan. Received: placement={placement!r}"
    )


def place(placement, shape, devices, itemsize=4, name=None):
    """Return the `Placement` of a table that `placement` (see `ShardedTable`) asks for.

    Args:
        placement: one of `PLACEMENTS`, a `Placement`, or a `Plan` that has one under `name`.
        shape: tuple of ints, `(rows, ...)`.
        devices: int.
        itemsize: bytes of a value.
        name: the name by which a plan knows the table.

    Raises:
        ValueError: a placement for other rows or devices, or a plan that does not know the table.
    """
    rows = shape[0]
    if hasattr(placement, "placements"):
        if name not in placement.placements:
            raise ValueError(
                f"`placement` is a plan without the table {name!r}. Received: a plan of "
                f"{sorted(placement.placements)}"
            )
        placement = placement.placements[name]
    if isinstance(placement, Placement):
        if (placement.rows, placement.devices) != (rows, devices):
            raise ValueError(
                f"`placement` must be for {rows} rows on {devices} devices. Received: placement={placement!r}"
            )
        return placement
    if devices == 1:
        return Placement.by_range(rows, 1)
    if placement == "auto":
        small = int(np.prod(shape, dtype=np.int64)) * itemsize <= REPLICATED_BYTES
        placement = "replicated" if small else "permutation"
    return Placement.of_kind(placement, rows, shape[1] if len(shape) > 1 else 1, devices)
