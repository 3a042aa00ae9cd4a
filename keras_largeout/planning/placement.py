"""`Placement`: how one table is sharded. The ways to make one; `positions.py` has what follows from it."""

import dataclasses
import itertools

import numpy as np
from numpy.typing import ArrayLike

from keras_largeout.planning.positions import REPLICATED, Positions

#: The kinds that follow from the shape of a table and the number of devices; see `Placement.of_kind`.
SIMPLE_KINDS = ("replicated", "range", "modulo", "permutation", "columns")
KINDS = (*SIMPLE_KINDS, "table", "explicit")

_GOLDEN = 0.6180339887498949
# i * multiplier must fit int64.
_LARGEST_PERMUTED = 3_000_000_000


class Placement(Positions):
    """The sharding of one table over devices: the device of each row, and its local index.

    Make one by a class method. The kinds in the words of TorchRec:

    | kind | made by | TorchRec |
    |---|---|---|
    | "replicated" | `replicated` | data-parallel |
    | "range" | `by_range` | row-wise, in runs of consecutive rows |
    | "modulo" | `by_modulo` | row-wise, in turn |
    | "permutation" | `by_permutation` | row-wise, pseudo-random |
    | "explicit" | `explicit` | row-wise, with a device for each row |
    | "columns" | `by_columns` | column-wise |
    | "table" | `on_device` | table-wise |

    `with_hot_rows` replicates some rows of a row-wise or table-wise placement, so that lookups of frequent
    ids stay on their device. (TorchRec has nothing like it.)

    Attributes:
        kind: str, see the table.
        rows: int, rows of the logical table.
        devices: int, the number of devices.
        sizes: tuple of ints, the number of positions in each shard. Some of them may be empty.
        hot: int64 array, ascending: the rows that every device has a copy of. None where there are none, and
            where `kind` is "replicated".
        columns: None, or a tuple with `(start, stop)` per device: the columns that it has of every row.
        multiplier, addend: ints of the permutation `i -> (i * multiplier + addend) % rows`.
        owners: None, or the integer array `[rows]` of an explicit placement: a device, or -1 for a row that
            every device has.

    Raises:
        ValueError: by the class methods, where `rows` or `devices` is not positive, and as they say.

    Example:

    ```python
    placement = kl.distribute.Placement.by_modulo(1_000_000, devices=8).with_hot_rows([0, 1, 2])
    kl.layers.ShardedEmbedding(1_000_000, 64, placement=placement)
    ```
    """

    @classmethod
    def replicated(cls, rows: int, devices: int) -> "Placement":
        """Return a data-parallel placement: every device has a copy of all rows.

        Args:
            rows: int, the rows of the table.
            devices: int, the number of devices.
        """
        rows, devices = _sizes(rows, devices)
        return cls("replicated", rows, devices, (0,) * devices)

    @classmethod
    def by_range(cls, rows: int, devices: int) -> "Placement":
        """Return a row-wise placement: device 0 has the first `ceil(rows / devices)` rows, device 1 the
        next ones, and so on.

        Args:
            rows: int, the rows of the table.
            devices: int, the number of devices.
        """
        rows, devices = _sizes(rows, devices)
        return cls("range", rows, devices, _range_sizes(rows, devices))

    @classmethod
    def by_modulo(cls, rows: int, devices: int) -> "Placement":
        """Return a row-wise placement: row `i` is on device `i % devices`.

        Args:
            rows: int, the rows of the table.
            devices: int, the number of devices.
        """
        rows, devices = _sizes(rows, devices)
        return cls(
            "modulo", rows, devices, tuple((rows - s + devices - 1) // devices for s in range(devices))
        )

    @classmethod
    def by_permutation(cls, rows: int, devices: int, seed: int = 0) -> "Placement":
        """Return a row-wise placement: rows are permuted by `i -> (i * a + b) % rows`, and then split into
        ranges.

        The permutation takes no memory. With seed 0, `a` is close to the golden ratio times `rows`. Then
        every run of consecutive rows is spread evenly over the devices (D. Knuth, The Art of Computer
        Programming, volume 3, section 6.4). With another seed, `a` and `b` are drawn at random.

        Args:
            rows: int, at most 3 billion.
            devices: int.
            seed: int. Defaults to `0`.
        """
        rows, devices = _sizes(rows, devices)
        if rows > _LARGEST_PERMUTED:
            raise ValueError(f"`rows` must be at most {_LARGEST_PERMUTED} here. Received: rows={rows}")
        if seed == 0:
            multiplier, addend = int(rows * _GOLDEN), 0
        else:
            draw = np.random.default_rng(seed)
            multiplier, addend = int(draw.integers(rows // 4, rows - rows // 4)), int(draw.integers(rows))
        multiplier = max(1, multiplier)
        while np.gcd(multiplier, rows) != 1:
            multiplier += 1
        sizes = _range_sizes(rows, devices)
        return cls("permutation", rows, devices, sizes, multiplier=multiplier % rows or 1, addend=addend)

    @classmethod
    def by_columns(cls, rows: int, dim: int, devices: int) -> "Placement":
        """Return a column-wise placement: every device has `dim / devices` columns of all rows, rounded up
        or down.

        Args:
            rows: int, the rows of the table.
            dim: int, the columns of the table.
            devices: int, the number of devices.
        """
        rows, devices = _sizes(rows, devices)
        if not devices <= dim:
            raise ValueError(f"`dim` must be at least devices={devices} columns. Received: dim={dim}")
        cuts = [dim * s // devices for s in range(devices + 1)]
        columns = tuple(itertools.pairwise(cuts))
        return cls("columns", rows, devices, (rows,) * devices, columns=columns)

    @classmethod
    def on_device(cls, rows: int, devices: int, device: int) -> "Placement":
        """Return a table-wise placement: one device has the whole table.

        Args:
            rows: int, the rows of the table.
            devices: int, the number of devices.
            device: int, the device that has it.
        """
        rows, devices = _sizes(rows, devices)
        if not 0 <= device < devices:
            raise ValueError(f"`device` must be in [0, devices={devices}). Received: device={device}")
        return cls("table", rows, devices, tuple(rows if s == device else 0 for s in range(devices)))

    @classmethod
    def explicit(cls, owners: ArrayLike, devices: int, sizes: ArrayLike | None = None) -> "Placement":
        """Return a row-wise placement that gives each row its device, as a planner decided.

        Args:
            owners: integers `[rows]`: the device of each row, or -1 for a row that every device has. Within a
                shard, rows are in ascending order.
            devices: int.
            sizes: optional integers `[devices]`: the positions of each shard, at least as many as it has
                rows. The others stay empty until the table is rebalanced. Defaults to `None`.

        Raises:
            ValueError: `owners` is not a vector of devices, or `sizes` are too small.
        """
        owners = np.asarray(owners)
        if owners.ndim != 1 or owners.dtype.kind not in "iu":
            raise ValueError(
                f"`owners` must be a vector of integers. Received: {owners.dtype} of shape {owners.shape}"
            )
        rows, devices = _sizes(len(owners), devices)
        if owners.min() < REPLICATED or owners.max() >= devices:
            raise ValueError(
                f"`owners` must lie in [-1, devices={devices}). Received: {owners.min()} .. {owners.max()}"
            )
        owners = owners.astype(np.int8 if devices <= 128 else np.int16)
        owners.flags.writeable = False
        counts = np.bincount(owners.astype(np.int16) + 1, minlength=devices + 1)
        sizes = tuple(int(n) for n in (counts[1:] if sizes is None else sizes))
        if len(sizes) != devices or any(size < n for size, n in zip(sizes, counts[1:])):
            raise ValueError(
                f"`sizes` must have room for the rows of each device, {counts[1:].tolist()}. "
                f"Received: sizes={sizes}"
            )
        hot = np.flatnonzero(owners == REPLICATED)
        return cls("explicit", rows, devices, sizes, hot=hot if len(hot) else None, owners=owners)

    def with_hot_rows(self, hot: ArrayLike) -> "Placement":
        """Return the same placement, but every device has a copy of the rows `hot`.

        The positions that these rows had stay empty, so that all other rows stay where they were.

        Args:
            hot: integers, rows of the table in any order.

        Raises:
            ValueError: this placement has hot rows already, or is of a kind that can't have any; or `hot` are
                not rows of the table.
        """
        if self.kind in ("replicated", "columns", "explicit") or self.hot is not None:
            raise ValueError(
                "Hot rows go with a placement that has none, by range, modulo, permutation or table. "
                f"Received: {self!r}"
            )
        hot = np.asarray(hot)
        if hot.size and hot.dtype.kind not in "iu":
            raise ValueError(f"`hot` must be integers. Received: {hot.dtype}")
        hot = np.unique(hot.astype(np.int64))
        if len(hot) and not 0 <= hot[0] <= hot[-1] < self.rows:
            raise ValueError(f"`hot` must lie in [0, rows={self.rows}). Received: {hot[0]} .. {hot[-1]}")
        return dataclasses.replace(self, hot=hot if len(hot) else None)

    @classmethod
    def of_kind(cls, kind: str, rows: int, dim: int, devices: int) -> "Placement":
        """Return the placement of one of `SIMPLE_KINDS` for a table `[rows, dim]`."""
        if kind == "columns":
            return cls.by_columns(rows, dim, devices)
        return (cls.replicated if kind == "replicated" else getattr(cls, f"by_{kind}"))(rows, devices)


def _sizes(rows, devices):
    rows, devices = int(rows), int(devices)
    if rows < 1 or devices < 1:
        raise ValueError(f"`rows` and `devices` must be positive. Received: rows={rows}, devices={devices}")
    return rows, devices


def _range_sizes(rows, devices):
    each = -(-rows // devices)
    return tuple(max(0, min(each, rows - s * each)) for s in range(devices))
