"""Descriptions of tables for the planner. (`devices.py` describes devices.)"""

import dataclasses

import numpy as np

from keras_largeout._checks import check_one_of
from keras_largeout.trees import Tree
from keras_largeout.trees.cost import FLOAT32_BYTES

#: Where the memory of a table's rows may be: that of the device that owns them, or that of its process.
STORAGES = ("device", "host")
_ITEMSIZE = {"float32": FLOAT32_BYTES, "bfloat16": 2}


@dataclasses.dataclass(frozen=True, eq=False)
class TableSpec:
    """One table, as the planner sees it.

    Args:
        name: str, unique in a plan. The table of a layer has the layer's name.
        rows: int, rows of the table.
        dim: int, columns of the table; 1 for a vector such as a bias.
        dtype: "float32" or "bfloat16". Defaults to `"float32"`.
        slots: int, how many float32 slots of the table's shape the optimizer has (Adam: 2). Defaults to `0`.
        row_slots: int, how many slots with one float32 per row it has (row-wise Adagrad: 1). Defaults to `0`.
        counts: None, or numbers of at least 0, in any unit: how often each row is looked up, `[rows]`. For
            the table of a tree: how often each class is a target, `[num_classes]`. None: all rows are taken
            to be equally frequent, and classes to have the frequency 1 / (id + 1). Defaults to `None`.
        tree: None, or the `kl.trees.Tree` whose rows these are. Defaults to `None`.
        ids_per_example: float, how many ids (or targets) one example of a batch has on average. Defaults to
            `1.0`.
        like: None, or the name of another table with as many rows. This table is then placed like that one,
            as a bias is placed like its kernel. Defaults to `None`.
        storage: where the memory of its rows is: "device", or "host", where they take nothing of a device's.
            Defaults to `"device"`.

    Raises:
        ValueError: sizes that are not positive, an unknown dtype, or counts that do not fit.

    Example:

    ```python
    kl.distribute.TableSpec("users", rows=10_000_000, dim=64, slots=2)
    ```
    """

    name: str
    rows: int
    dim: int
    dtype: str = "float32"
    slots: int = 0
    row_slots: int = 0
    counts: np.ndarray | None = None
    tree: Tree | None = None
    ids_per_example: float = 1.0
    like: str | None = None
    storage: str = "device"

    def __post_init__(self):
        check_one_of("dtype", self.dtype, tuple(_ITEMSIZE), f"table {self.name!r}")
        check_one_of("storage", self.storage, STORAGES, f"table {self.name!r}")
        limits = {"rows": 1, "dim": 1, "slots": 0, "row_slots": 0}
        for field, low in limits.items():
            value = getattr(self, field)
            if not isinstance(value, (int, np.integer)) or value < low:
                raise ValueError(
                    f"`{field}` of table {self.name!r} must be an integer of at least {low}. "
                    f"Received: {field}={value!r}"
                )
        if not self.ids_per_example > 0:
            raise ValueError(
                f"`ids_per_example` of table {self.name!r} must be positive. "
                f"Received: ids_per_example={self.ids_per_example!r}"
            )
        if self.tree is not None and self.tree.num_rows != self.rows:
            raise ValueError(
                f"`rows` of table {self.name!r} must be those of its tree, {self.tree.num_rows}. "
                f"Received: rows={self.rows}"
            )
        if self.counts is not None:
            size, per = (self.rows, "row") if self.tree is None else (self.tree.num_classes, "class")
            counts = checked_counts(self.counts, size, per, of=f" of table {self.name!r}")
            counts.flags.writeable = False
            object.__setattr__(self, "counts", counts)

    @property
    def itemsize(self) -> int:
        """int: bytes of one value of the table."""
        return _ITEMSIZE[self.dtype]

    @property
    def row_bytes(self) -> int:
        """int: bytes of a row with its slots."""
        return self.dim * (self.itemsize + FLOAT32_BYTES * self.slots) + FLOAT32_BYTES * self.row_slots

    @property
    def nbytes(self) -> int:
        """int: bytes of the table with its slots."""
        return self.rows * self.row_bytes


def checked_counts(counts, size, per, of=""):
    """Return `counts` as a new float64 array `[size]`. Zeros are allowed, but not zeros only.

    Args:
        counts: numbers, one per row or class.
        size: int, how many there must be.
        per: "row" or "class", for the message.
        of: whose counts they are, for the message.

    Raises:
        ValueError: other shapes or types; numbers below 0, infinite, NaN, or all 0.
    """
    counts = np.asarray(counts)
    if counts.shape != (size,) or counts.dtype.kind not in "iuf":
        raise ValueError(
            f"`counts`{of} must be numbers of shape ({size},), one per {per}. "
            f"Received: {counts.dtype} of shape {counts.shape}"
        )
    counts = counts.astype(np.float64)
    if not (counts.min() >= 0 and 0 < counts.sum() < np.inf):
        raise ValueError(
            f"`counts`{of} must be finite, at least 0 and not all 0. "
            f"Received: values from {counts.min():g} to {counts.max():g}"
        )
    return counts


def gather_specs(tables, counts=None):
    """Return a tuple of `TableSpec`s, from specs and from objects that have a method `table_specs()`.

    Args:
        tables: a `TableSpec`, an object with `table_specs()`, or an iterable of these.
        counts: None, or a dict from names of tables to counts, which replace those in the specs.

    Raises:
        ValueError: other objects, two tables of one name, counts of an unknown table, or a `like` that is not
            the name of a table with as many rows.
    """
    if isinstance(tables, TableSpec) or hasattr(tables, "table_specs"):
        tables = [tables]
    specs = []
    for table in tables:
        if hasattr(table, "table_specs"):
            specs.extend(table.table_specs())
        elif isinstance(table, TableSpec):
            specs.append(table)
        else:
            raise ValueError(
                "`tables` must hold TableSpecs and objects with a method `table_specs()`. "
                f"Received: {table!r}"
            )
    by_name = {spec.name: spec for spec in specs}
    if not specs or len(by_name) < len(specs):
        names = [spec.name for spec in specs]
        raise ValueError(f"`tables` must hold tables of different names. Received: {names}")
    unknown = set(counts or ()) - set(by_name)
    if unknown:
        raise ValueError(
            f"`counts` must be those of tables {sorted(by_name)}. Received: counts of {sorted(unknown)}"
        )
    for name, values in (counts or {}).items():
        by_name[name] = dataclasses.replace(by_name[name], counts=values)
    for spec in list(by_name.values()):
        other = by_name.get(spec.like)
        if spec.like is not None and (other is None or other.rows != spec.rows or other.like is not None):
            raise ValueError(
                f"`like` of table {spec.name!r} must name a table of {spec.rows} rows that has no `like` "
                f"itself. Received: like={spec.like!r}"
            )
        if other is not None:
            given = {"tree": other.tree, "counts": other.counts, "storage": other.storage}
            by_name[spec.name] = dataclasses.replace(spec, **given)
    return tuple(by_name[spec.name] for spec in specs)


class TableGroup(tuple):
    """The specs of a table and of the tables that are placed like it."""

    @classmethod
    def of(cls, specs):
        """Return dict from the name of each table without `like` to its group."""
        mains = [spec for spec in specs if spec.like is None]
        return {main.name: cls([main, *(s for s in specs if s.like == main.name)]) for main in mains}

    @property
    def main(self):
        return self[0]

    @property
    def on_host(self):
        return self.main.storage == "host"

    @property
    def row_bytes(self):
        return sum(spec.row_bytes for spec in self)

    @property
    def nbytes(self):
        return self.main.rows * self.row_bytes
