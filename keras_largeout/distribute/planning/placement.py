"""`Placement`: which device owns a row, and where the row lies there. Pure arithmetic on NumPy arrays.

Every placement of `rows` rows on `devices` devices is a one-to-one map from rows to *positions*. Positions
`0 .. num_hot - 1` are the rows that every device has a copy of (*hot*, replicated rows); shard `s`, the rows
that device `s` alone owns, has positions `offsets[s] .. offsets[s + 1] - 1`. So the owner of a position and
the place within its shard follow from `offsets`, whatever the map is. A position may be empty.
"""

import dataclasses
import functools
import hashlib
import itertools

import numpy as np

#: The owner of a row that every device has a copy of.
REPLICATED = -1

KINDS = ("replicated", "range", "modulo", "permutation", "columns", "table", "explicit")

_GOLDEN = 0.6180339887498949
# i * multiplier must fit int64.
_LARGEST_PERMUTED = 3_000_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class Placement:
    """Which device owns each row of a table of `rows` rows, and at which local index.

    Made by one of `replicated`, `by_range`, `by_modulo`, `by_permutation`, `by_columns`, `on_device` and
    `explicit`; `with_hot_rows` replicates the hottest rows of any of them.

    Attributes:
        kind: one of `KINDS`.
        rows: int, rows of the logical table.
        devices: int, the number of devices.
        sizes: tuple of ints, positions of each shard (a few of them may be empty).
        hot: int64 array, ascending: rows that every device has a copy of. (`None` where `kind` is
            "replicated": all of them.)
        columns: `None`, or a tuple of `(start, stop)` a device: each has these columns of every row.
        multiplier, addend: of the permutation `i -> (i * multiplier + addend) % rows`.
        owners: integer array `[rows]` of an explicit placement: a device, or -1 for a replicated row.
    """

    kind: str
    rows: int
    devices: int
    sizes: tuple
    hot: np.ndarray | None = None
    columns: tuple | None = None
    multiplier: int = 1
    addend: int = 0
    owners: np.ndarray | None = None

    # The ways to place rows.

    @classmethod
    def replicated(cls, rows, devices):
        """Every device has all rows."""
        rows, devices = _sizes(rows, devices)
        return cls("replicated", rows, devices, (0,) * devices)

    @classmethod
    def by_range(cls, rows, devices):
        """Device 0 has the first `ceil(rows / devices)` rows, device 1 the next ones, and so on."""
        rows, devices = _sizes(rows, devices)
        return cls("range", rows, devices, _range_sizes(rows, devices))

    @classmethod
    def by_modulo(cls, rows, devices):
        """Row `i` lives on device `i % devices`."""
        rows, devices = _sizes(rows, devices)
        return cls(
            "modulo", rows, devices, tuple((rows - s + devices - 1) // devices for s in range(devices))
        )

    @classmethod
    def by_permutation(cls, rows, devices, seed=0):
        """Ranges of the rows permuted by `i -> (i * a + b) % rows`, `a` and `b` drawn by `seed`.

        With seed 0 `a` is next to the golden ratio times `rows`: then every run of consecutive rows is
        spread evenly (Knuth, The Art of Computer Programming, volume 3, section 6.4).
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
    def by_columns(cls, rows, dim, devices):
        """Every device has `dim / devices` columns of all rows, some one column more where it must be."""
        rows, devices = _sizes(rows, devices)
        if not devices <= dim:
            raise ValueError(f"`dim` must be at least devices={devices} columns. Received: dim={dim}")
        cuts = [dim * s // devices for s in range(devices + 1)]
        columns = tuple(itertools.pairwise(cuts))
        return cls("columns", rows, devices, (rows,) * devices, columns=columns)

    @classmethod
    def on_device(cls, rows, devices, device):
        """One device has the whole table."""
        rows, devices = _sizes(rows, devices)
        if not 0 <= device < devices:
            raise ValueError(f"`device` must be in [0, devices={devices}). Received: device={device}")
        return cls("table", rows, devices, tuple(rows if s == device else 0 for s in range(devices)))

    @classmethod
    def explicit(cls, owners, devices, sizes=None):
        """What a planner decided, row by row.

        Args:
            owners: integers `[rows]`: the device of each row, or -1 for a row that every device has. The rows
                of a device lie there in ascending order.
            devices: int.
            sizes: optional, positions of each shard, at least the rows it has: room for rows to come when the
                table is rebalanced.
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

    def with_hot_rows(self, hot):
        """The same placement, but every device has a copy of the rows `hot`.

        The positions that these rows had stay empty, so that all others stay where they were.
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

    # What follows from it.

    @property
    def num_hot(self):
        """Rows that every device has a copy of."""
        if self.kind == "replicated":
            return self.rows
        return 0 if self.hot is None else len(self.hot)

    @functools.cached_property
    def offsets(self):
        """int64 `[devices + 1]`: shard s has positions `offsets[s] .. offsets[s + 1]`, after the hot rows."""
        if self.columns is not None:
            raise ValueError("A placement by columns has no offsets: every device has all rows.")
        return self.num_hot + np.concatenate([[0], np.cumsum(self.sizes, dtype=np.int64)])

    @functools.cached_property
    def table_positions(self):
        """int64 `[rows]` of an explicit placement: the position of every row."""
        owners = self.owners
        positions = np.empty(self.rows, np.int64)
        if self.hot is not None:
            positions[self.hot] = np.arange(len(self.hot))
        for shard in range(self.devices):
            mine = np.flatnonzero(owners == shard)
            positions[mine] = self.offsets[shard] + np.arange(len(mine))
        return positions

    def position(self, rows):
        """Positions of `rows` (integers in `[0, self.rows)`), int64 of the same shape."""
        rows = np.asarray(rows, np.int64)
        if self.kind in ("replicated", "columns"):
            return rows
        if self.kind == "explicit":
            return self.table_positions[rows]
        if self.kind == "modulo":
            base = np.asarray(self.offsets[:-1])[rows % self.devices] + rows // self.devices
        elif self.kind == "permutation":
            base = self.num_hot + (rows * self.multiplier + self.addend) % self.rows
        else:
            base = self.num_hot + rows
        if self.hot is None:
            return base
        at = np.searchsorted(self.hot, rows)
        is_hot = self.hot[np.minimum(at, len(self.hot) - 1)] == rows
        return np.where(is_hot, at, base)

    def locate(self, rows):
        """`(owner, local)` of `rows`: a device or -1 (replicated), and the index there; int64 arrays."""
        positions = self.position(rows)
        owner = np.searchsorted(self.offsets, positions, side="right") - 1
        return owner, positions - np.where(owner < 0, 0, self.offsets[np.maximum(owner, 0)])

    def rows_at(self, positions):
        """The rows that lie at `positions`, int64 of the same shape; -1 at an empty position."""
        positions = np.asarray(positions, np.int64)
        if self.kind in ("replicated", "columns"):
            return positions
        if self.kind == "explicit":
            return self._row_of_position[positions]
        base = positions - self.num_hot
        if self.kind == "modulo":
            shard = np.searchsorted(self.offsets, positions, side="right") - 1
            rows = (positions - self.offsets[shard]) * self.devices + shard
        elif self.kind == "permutation":
            rows = (base - self.addend) * pow(self.multiplier, -1, self.rows) % self.rows
        else:
            rows = base
        if self.hot is None:
            return rows
        rows = np.where(np.isin(rows, self.hot), -1, rows)
        return np.where(base < 0, self.hot[np.clip(positions, 0, len(self.hot) - 1)], rows)

    @functools.cached_property
    def _row_of_position(self):
        rows = np.full(self.offsets[-1], -1, np.int64)
        rows[self.table_positions] = np.arange(self.rows)
        return rows

    @functools.cached_property
    def digest(self):
        """A str: two placements have the same one where they are equal."""
        digest = hashlib.sha256(repr([getattr(self, name) for name in _PLAIN]).encode())
        for array in (self.hot, self.owners):
            digest.update(b"none" if array is None else np.ascontiguousarray(array, np.int64))
        return digest.hexdigest()

    def __eq__(self, other):
        if not isinstance(other, Placement):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _PLAIN) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("hot", "owners")
        )

    def __repr__(self):
        hot = f", {self.num_hot} hot rows" if self.num_hot and self.kind != "replicated" else ""
        return f"Placement({self.kind}: {self.rows} rows on {self.devices} devices{hot})"


_PLAIN = tuple(f.name for f in dataclasses.fields(Placement) if f.name not in ("hot", "owners"))


def _sizes(rows, devices):
    rows, devices = int(rows), int(devices)
    if rows < 1 or devices < 1:
        raise ValueError(f"`rows` and `devices` must be positive. Received: rows={rows}, devices={devices}")
    return rows, devices


def _range_sizes(rows, devices):
    each = -(-rows // devices)
    return tuple(max(0, min(each, rows - s * each)) for s in range(devices))
