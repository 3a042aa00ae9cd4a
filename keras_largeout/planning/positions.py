"""The arithmetic of a `Placement`: from rows to positions, to devices, and back.

Every placement of `rows` rows on `devices` devices is a one-to-one map from rows to *positions*. Positions
`0 .. num_hot - 1` are the *hot* rows, which are replicated: every device has a copy of them. Shard `s`, the
rows that only device `s` has, are positions `offsets[s] .. offsets[s + 1] - 1`. So `offsets` alone tells the
shard of a position and the index within that shard, whatever the map is. A position may be empty.
"""

import dataclasses
import functools
import hashlib

import numpy as np

#: The owner of a row that every device has a copy of.
REPLICATED = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Positions:
    """The positions of the rows of a table. `Placement`, the one class of this kind, describes the fields."""

    kind: str
    rows: int
    devices: int
    sizes: tuple
    hot: np.ndarray | None = None
    columns: tuple | None = None
    multiplier: int = 1
    addend: int = 0
    owners: np.ndarray | None = None

    @property
    def num_hot(self):
        """int: how many rows every device has a copy of."""
        if self.kind == "replicated":
            return self.rows
        return 0 if self.hot is None else len(self.hot)

    @functools.cached_property
    def offsets(self):
        """int64 `[devices + 1]`: shard s has positions `offsets[s] .. offsets[s + 1] - 1`."""
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
        """Return positions of `rows` (integers in `[0, self.rows)`), int64 of the same shape."""
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
        """Return where `rows` are: two int64 arrays, the device (-1: replicated), and the index in its
        shard.
        """
        positions = self.position(rows)
        owner = np.searchsorted(self.offsets, positions, side="right") - 1
        return owner, positions - np.where(owner < 0, 0, self.offsets[np.maximum(owner, 0)])

    def rows_at(self, positions):
        """Return the rows at `positions`, int64 of the same shape; -1 where a position is empty."""
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

    @property
    def has_formula(self):
        """False where rows are placed by a table of owners, or some are replicated beside others."""
        return self.kind != "explicit" and self.hot is None

    def formula_of_rows(self, shard):
        """Return ints `(multiplier, addend, modulus)`: row `i` of a shard is the row
        `(i * multiplier + addend) % modulus` of the table; without the modulo where `modulus` is 0.

        Raises:
            NotImplementedError: `has_formula` is False.
        """
        if not self.has_formula:
            raise NotImplementedError(f"No formula tells the rows of {self!r}")
        start = int(self.offsets[shard]) if self.columns is None else 0
        if self.kind == "modulo":
            return self.devices, shard, 0
        if self.kind == "permutation":
            inverse = pow(self.multiplier, -1, self.rows)
            return inverse, (start - self.addend) * inverse % self.rows, self.rows
        return 1, start, 0

    def tensor_of_rows(self, shard, local):
        """Return `rows_at` of the rows `local` (an int64 tensor, or array) of a shard, by arithmetic alone.

        Raises:
            NotImplementedError: `has_formula` is False.
        """
        multiplier, addend, modulus = self.formula_of_rows(shard)
        rows = local * multiplier + addend
        return rows % modulus if modulus else rows

    @functools.cached_property
    def _row_of_position(self):
        rows = np.full(self.offsets[-1], -1, np.int64)
        rows[self.table_positions] = np.arange(self.rows)
        return rows

    @functools.cached_property
    def digest(self):
        """str: equal placements have equal digests, different ones different digests."""
        digest = hashlib.sha256(repr([getattr(self, name) for name in _PLAIN]).encode())
        for array in (self.hot, self.owners):
            digest.update(b"none" if array is None else np.ascontiguousarray(array, np.int64))
        return digest.hexdigest()

    def __eq__(self, other):
        if not isinstance(other, Positions):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _PLAIN) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("hot", "owners")
        )

    def __repr__(self):
        hot = f", {self.num_hot} hot rows" if self.num_hot and self.kind != "replicated" else ""
        return f"Placement({self.kind}: {self.rows} rows on {self.devices} devices{hot})"


_PLAIN = tuple(f.name for f in dataclasses.fields(Positions) if f.name not in ("hot", "owners"))
