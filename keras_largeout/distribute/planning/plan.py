"""`Plan`: what the planner decided, what it expects of it, and why."""

import dataclasses
import functools
import operator

import numpy as np

from keras_largeout.distribute.planning import plan_file, plan_stats
from keras_largeout.distribute.planning.placement import Placement
from keras_largeout.distribute.planning.row_estimator import DeviceLoad, device_load, memory_of
from keras_largeout.distribute.planning.specs import TableSpec, gather_specs
from keras_largeout.distribute.planning.tree_estimator import max_over_mean


@dataclasses.dataclass(frozen=True, eq=False)
class TablePlan:
    """One table of a plan.

    Attributes:
        spec: its `TableSpec`.
        placement: its `Placement`.
        reason: str, why.
        expected: its `DeviceLoad`, or None where it is unknown (an edited file, read without its
            tables).
        pins: dict from rows or classes ("7", "10-19") to devices, as edited in a file.
    """

    spec: TableSpec
    placement: Placement
    reason: str
    expected: DeviceLoad | None
    pins: dict = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def memory(self):
        """float64 `[devices]`: bytes of the table with its slots on each device."""
        return memory_of(self.spec, self.placement)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Where every table goes. Made by `plan`, `Plan.load` or `replan`; never changed.

    `print(plan)` shows it as a table, `plan.plot(path)` as a picture; `plan.save(path)` writes a file that
    can be edited and read back by `Plan.load`.

    Attributes:
        devices: tuple of `Device`.
        tables: tuple of `TablePlan`, in the order in which the tables were given.
        batch_size: examples in a step, over all devices.
    """

    devices: tuple
    tables: tuple
    batch_size: float

    def __post_init__(self):
        for index, device in enumerate(self.devices):
            used = sum(table.memory[index] for table in self.tables)
            if device.memory is not None and used > device.memory:
                largest = max(self.tables, key=lambda table: table.memory[index])
                raise ValueError(
                    f"The plan does not fit {device.name!r}: its tables take {int(used):,} bytes with their "
                    f"slots, {int(np.ceil(used - device.memory)):,} more than its {int(device.memory):,}. "
                    f"The largest there is {largest.spec.name!r}, {int(largest.memory[index]):,} bytes."
                )

    def __getitem__(self, name):
        """The `TablePlan` of a table."""
        for table in self.tables:
            if table.spec.name == name:
                return table
        raise KeyError(f"No table {name!r} in this plan. Its tables: {list(self.placements)}")

    @property
    def placements(self):
        """dict from the names of the tables to their `Placement`s."""
        return {table.spec.name: table.placement for table in self.tables}

    @functools.cached_property
    def expected(self):
        """The `DeviceLoad` of all tables; None where that of some table is unknown."""
        if any(table.expected is None for table in self.tables):
            return None
        return functools.reduce(operator.add, [table.expected for table in self.tables])

    @property
    def memory(self):
        """float64 `[devices]`: bytes of tables and slots."""
        return np.sum([table.memory for table in self.tables], axis=0)

    @property
    def seconds(self):
        """float64 `[devices]`: expected time of a step in the tables; None where it is unknown."""
        return None if self.expected is None else self.expected.seconds(self.devices)

    @property
    def imbalance(self):
        """The expected time of the busiest device over the mean; None where it is unknown."""
        return None if self.expected is None else max_over_mean(self.seconds)

    @property
    def replicated(self):
        """dict from the names of tables that have replicated rows to (rows, reason)."""
        return {
            table.spec.name: (table.placement.num_hot, table.reason)
            for table in self.tables
            if table.placement.num_hot
        }

    def __repr__(self):
        balance = "unknown" if self.imbalance is None else f"{self.imbalance:.2f}"
        return f"Plan({len(self.tables)} tables on {len(self.devices)} devices, max/mean {balance})"

    def __str__(self):
        return plan_stats.text(self)

    def plot(self, path):
        """Writes a picture: bytes and expected milliseconds of every device, by table.

        Args:
            path: where to; the suffix says the format (".png").

        Raises:
            ImportError: matplotlib is not installed.
        """
        plan_stats.plot(self, path)

    def save(self, path):
        """Writes JSON that people can read and edit.

        Of a table they may change `kind` ("replicated", "range", "modulo", "permutation", "columns", "table";
        of a tree "replicated" only), `device` where the kind is "table", and `pin`: a map from rows (of a
        tree: classes) such as `"7"` or `"10-19"` to a device, by number or name, or to `"all"` (replicated).
        A pinned class takes its whole subtree along.
        """
        plan_file.write(path, self.devices, self.tables, self.batch_size)

    @classmethod
    def load(cls, path, tables=None, counts=None):
        """Reads what `save` wrote, as it was edited.

        Args:
            path: of the file.
            tables, counts: optional, as for `plan`: with them the expected load is computed anew, also where
                the file was edited. Classes of a tree can be pinned with them only.

        Returns:
            A `Plan`.

        Raises:
            ValueError: the file says what can't be, or the tables are others, or do not fit the devices.
        """
        specs = None if tables is None else gather_specs(tables, counts)
        devices, tables, batch_size = plan_file.read(path, specs)
        if specs is not None:
            for part in tables:
                part["expected"] = device_load(part["spec"], part["placement"], batch_size)
        return cls(devices, tuple(TablePlan(**part) for part in tables), batch_size)
