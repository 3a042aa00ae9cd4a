"""`Plan`: a sharding plan. What the planner decided, what it expects of that, and why."""

import dataclasses
import functools
import operator
import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from keras_largeout.planning import plan_file, plan_plot, plan_stats
from keras_largeout.planning.devices import Device, hosts_of_devices
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.row_estimator import DeviceLoad, device_load, memory_of
from keras_largeout.planning.specs import TableSpec, gather_specs
from keras_largeout.planning.tree_estimator import max_over_mean


@dataclasses.dataclass(frozen=True, eq=False)
class TablePlan:
    """The plan of one table.

    Attributes:
        spec: its `TableSpec`.
        placement: its `Placement`.
        reason: str, why it has this placement.
        expected: its `DeviceLoad`. None where that is unknown: a file was edited, and then read without
            `tables`.
        pins: dict from rows or classes ("7", "10-19") to devices, as edited in a file.
    """

    spec: TableSpec
    placement: Placement
    reason: str
    expected: DeviceLoad | None
    pins: dict[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def memory(self):
        """float64 `[devices]`: bytes of the table with its slots on each device."""
        return memory_of(self.spec, self.placement)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A sharding plan: where every table goes. Made by `plan`, `plan_from` or `Plan.load`; never changed.

    Layers take it as their `placement`. `print(plan)` shows its stats as a table, `plan.plot(path)` as a
    picture. `plan.save(path)` writes a file that can be edited and read back by `Plan.load`.

    Attributes:
        devices: tuple of `Device`.
        tables: tuple of `TablePlan`, in the order in which the tables were given.
        batch_size: number, examples per step over all devices.

    Raises:
        ValueError: a device has less memory than its tables and slots take.

    Example:

    ```python
    plan = kl.distribute.plan(specs, devices=8)
    plan.save("plan.json")                        # edit the file where you know better
    plan = kl.distribute.Plan.load("plan.json")
    ```
    """

    devices: tuple[Device, ...]
    tables: tuple[TablePlan, ...]
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

    def __getitem__(self, name: str) -> TablePlan:
        """Return the `TablePlan` of the table `name`. Raises KeyError for a table that is not in the plan."""
        for table in self.tables:
            if table.spec.name == name:
                return table
        raise KeyError(f"No table {name!r} in this plan. Its tables: {list(self.placements)}")

    @property
    def placements(self) -> dict[str, Placement]:
        """dict from the names of all tables to their `Placement`s."""
        return {table.spec.name: table.placement for table in self.tables}

    @functools.cached_property
    def expected(self) -> DeviceLoad | None:
        """The `DeviceLoad` of all tables together; None where that of some table is unknown."""
        if any(table.expected is None for table in self.tables):
            return None
        return functools.reduce(operator.add, [table.expected for table in self.tables])

    @property
    def storages(self) -> dict[str, str]:
        """dict from the names of all tables to where their memory is, "device" or "host"."""
        return {table.spec.name: table.spec.storage for table in self.tables}

    @property
    def host_memory(self) -> int:
        """int: bytes that tables and slots take in host memory."""
        return sum(table.spec.nbytes for table in self.tables if table.spec.storage == "host")

    @property
    def memory(self) -> np.ndarray:
        """float64 `[devices]`: bytes that all tables and slots take on each device."""
        return np.sum([table.memory for table in self.tables], axis=0)

    @property
    def seconds(self) -> np.ndarray | None:
        """float64 `[devices]`: expected seconds per step for the tables; None where that is unknown."""
        return None if self.expected is None else self.expected.seconds(self.devices)

    @property
    def exchange_seconds(self) -> np.ndarray | None:
        """float64 `[devices]`: expected seconds per step in which each device receives; None where unknown.

        They are what comes from its own host / `Device.within`, plus what comes from others /
        `Device.between`. This is a lower bound for a network that has nothing else to do: it leaves out
        latency, and what a device sends. The planner does not weigh it.
        """
        return None if self.expected is None else self.expected.exchange_seconds(self.devices)

    @property
    def imbalance(self) -> float | None:
        """float: the busiest device's expected time over the mean; 1.0 is even. None where it is unknown."""
        return None if self.expected is None else max_over_mean(self.seconds)

    @property
    def replicated(self) -> dict[str, tuple[int, str | None]]:
        """dict from the names of tables that have replicated rows to `(number of those rows, reason)`."""
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

    def plot(self, path: str | os.PathLike) -> None:
        """Writes a picture: the memory and the expected time per step of every device, by table.

        The largest tables have a colour each. The others are summed by the way in which they are placed.

        Args:
            path: str, the file to write. Its suffix says the format, such as ".png".

        Raises:
            ImportError: matplotlib is not installed.
        """
        plan_plot.plot(self, path)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the plan as JSON that people can read and edit.

        What may be edited in a table:

        - `kind`: "replicated", "range", "modulo", "permutation", "columns" or "table"; for a tree only
          "replicated". See `Placement`.
        - `device`: the index of its device, where `kind` is "table".
        - `pin`: a map from rows (for a tree: classes) such as `"7"` or `"10-19"` to a device, given by its
          index or name, or to `"all"`, which replicates them. A pinned class takes its whole subtree along.

        Args:
            path: str, the file to write.
        """
        plan_file.write(path, self.devices, self.tables, self.batch_size)

    @classmethod
    def load(
        cls, path: str | os.PathLike, tables: Any = None, counts: dict[str, ArrayLike] | None = None
    ) -> "Plan":
        """Reads what `save` wrote, with the edits that were made since.

        Args:
            path: str, the file.
            tables, counts: None, or as for `plan`. With them the expected load is estimated again, also where
                the file was edited. Pinned classes of a tree need them. Defaults to `None`.

        Returns:
            A `Plan`.

        Raises:
            ValueError: an edit that is not possible, tables other than those of the file, or tables that do
                not fit the devices.
        """
        specs = None if tables is None else gather_specs(tables, counts)
        devices, tables, batch_size = plan_file.read(path, specs)
        if specs is not None:
            hosts = hosts_of_devices(devices)
            for part in tables:
                part["expected"] = device_load(part["spec"], part["placement"], batch_size, hosts)
        return cls(devices, tuple(TablePlan(**part) for part in tables), batch_size)
