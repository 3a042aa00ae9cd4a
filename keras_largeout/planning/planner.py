"""The planner: which device gets which table, or which rows of it."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from keras_largeout.planning.devices import Device, gather_devices, hosts_of_devices
from keras_largeout.planning.partitioner import pack
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.plan import Plan, TablePlan
from keras_largeout.planning.plan_stats import size_text
from keras_largeout.planning.row_estimator import (
    DeviceLoad,
    device_load,
    device_shares,
    expected_work,
    memory_of,
)
from keras_largeout.planning.row_placement import place_rows
from keras_largeout.planning.specs import TableGroup, gather_specs
from keras_largeout.planning.tree_estimator import max_over_mean
from keras_largeout.planning.tree_placement import place_tree

#: Replicated small tables take no more than this fraction of a device's memory.
_REPLICATED_MEMORY = 0.05
#: A table with at least `_WIDE` columns, and no more rows than columns, is sharded column-wise, where each
#: device gets at least `_COLUMNS` of them.
_WIDE, _COLUMNS = 1024, 64
#: A table is placed table-wise only if it is at most this fraction of a device's mean memory and work.
_WHOLE = 0.5
#: Sharding more tables row-wise must bring the time of the busiest device below this fraction of what it was.
_WORTH = 0.98


def plan(
    tables: Any,
    devices: int | Sequence[Device],
    memory_per_device: float | None = None,
    batch_size: float = 4096,
    counts: dict[str, ArrayLike] | None = None,
    small: int = 1 << 20,
    balance: float = 1.05,
    host_memory: float | None = None,
    hosts: int = 1,
) -> Plan:
    """Makes a sharding plan: no device waits for another, and none runs out of memory.

    What the planner chooses for a table, in the words of TorchRec:

    - *Data-parallel*: tables of at most `small` bytes, with their slots.
    - *Column-wise*: wide tables of few rows. That is even whatever the ids are.
    - *Table-wise*: tables that are small compared with all tables together. The partitioner assigns the
      largest first, each to the device that is loaded least. If max/mean stays above `balance`, the largest
      of these tables are sharded row-wise instead.
    - *Row-wise*: all other tables. Rows are spread by a permutation. If the counts show that this is not
      even enough, the hottest rows are replicated, where that makes the busiest device faster. As a last
      resort, each row is assigned to a device.
    - The table of a tree has a replicated top, and below it whole subtrees on one device each.
    - *In host memory* (`storage="host"`), where `host_memory` allows it: tables that the devices have no room
      for, first those of which a step uses the fewest bytes of all that they take. A tree never is.

    The load of a device is its estimated time per step: bytes / bandwidth + flops / flops per second.
    What devices receive from each other is estimated and shown (`Plan.exchange_seconds`). It decides
    nothing, also not which rows are replicated.
    Nothing is random: equal arguments give equal plans.

    Args:
        tables: a `TableSpec`, an object that has a method `table_specs()` (layers have one), or an iterable
            of these.
        devices: int, or a list of `Device`s, which may differ from each other.
        memory_per_device: None, or the bytes that tables and slots may take on each device whose `memory` is
            None. None: no limit. Defaults to `None`.
        batch_size: number, examples per step over all devices. Defaults to `4096`.
        counts: None, or a dict from names of tables to counts, which replace those in the specs: numbers
            `[rows]`, for a tree `[num_classes]`. Defaults to `None`.
        small: int, in bytes: see above. Defaults to `1048576`.
        balance: float of at least 1, the max/mean of the devices' loads that is good enough. Defaults to
            `1.05`.
        host_memory: None, or the bytes that tables and slots may take in host memory. Defaults to `None`.
        hosts: int, how many hosts the devices belong to, host by host, where `devices` is an int. A list of
            `Device`s says the host of each. Defaults to `1`.

    Returns:
        A `Plan`. Give it to layers as their `placement`.

    Raises:
        ValueError: wrong arguments, or a table that does not fit. The message says how many bytes are
            missing, and on which device.

    Example:

    ```python
    specs = [
        kl.distribute.TableSpec("users", 10_000_000, 64, slots=2),
        kl.distribute.TableSpec("countries", 200, 16, slots=2),
    ]
    plan = kl.distribute.plan(specs, devices=8, memory_per_device=40e9)
    print(plan)
    users = kl.layers.ShardedEmbedding(10_000_000, 64, placement=plan, name="users")
    ```

    References:
        - D. Ivchenko et al., "TorchRec: a PyTorch domain library for recommendation systems", RecSys 2022
          (the roles of planner, partitioner, estimator and stats).
    """
    if not (batch_size > 0 and small >= 0 and balance >= 1):
        raise ValueError(
            "`batch_size` must be positive, `small` at least 0, `balance` at least 1. "
            f"Received: batch_size={batch_size!r}, small={small!r}, balance={balance!r}"
        )
    specs = gather_specs(tables, counts)
    devices = gather_devices(devices, memory_per_device, hosts)

    def planned(specs):
        return _Planner(specs, devices, batch_size, small, balance).plan()

    return planned(specs) if host_memory is None else _with_host(specs, planned, host_memory, batch_size)


def _with_host(specs, planned, host_memory, batch_size):
    """Return the plan of as few tables in host memory as the devices have no room for.

    Args:
        planned: from specs to their `Plan`; it raises ValueError where they do not fit.
    """
    groups = TableGroup.of(specs)
    left = host_memory - sum(group.nbytes for group in groups.values() if group.on_host)
    if left < 0:
        raise ValueError(
            f"`host_memory` must be at least what tables with storage='host' take, "
            f"{int(host_memory - left):,} bytes. Received: host_memory={int(host_memory):,}"
        )
    movable = [name for name, group in groups.items() if not group.on_host and group.main.tree is None]
    used = {name: expected_work(groups[name], 1, batch_size)[0] / groups[name].nbytes for name in movable}
    movable.sort(key=lambda name: (-used[name], name))
    while True:
        try:
            return planned(specs)
        except ValueError:
            name = None
            while movable and name is None:
                name = movable.pop()
                name = name if groups[name].nbytes <= left else None
            if name is None:
                raise
        left -= groups[name].nbytes
        moved = {spec.name for spec in groups[name]}
        specs = tuple(dataclasses.replace(s, storage="host") if s.name in moved else s for s in specs)


class _Planner:
    """The devices while they are filled."""

    def __init__(self, specs, devices, batch_size, small, balance):
        self.specs, self.groups = specs, TableGroup.of(specs)
        self.devices, self.batch_size, self.small, self.balance = devices, batch_size, small, balance
        self.hosts = hosts_of_devices(devices)
        self.free = np.array([np.inf if d.memory is None else d.memory for d in devices], np.float64)
        self.load = DeviceLoad.none(len(devices))
        self.done = {}

    def plan(self):
        names = sorted(self.groups, key=lambda name: (-self.groups[name].nbytes, name))
        for name in names[::-1]:
            if self._is_small(name):
                text = f"small, {size_text(self.groups[name].nbytes)} with its slots"
                rows = self.groups[name].main.rows
                self._settle(name, Placement.replicated(rows, len(self.devices)), text)
        names = [name for name in names if name not in self.done]
        whole = [name for name in names if self._is_middling(name)]
        # Subtrees and columns are harder to fit in than rows, so they are placed first.
        large = [name for name in names if name not in set(whole)]
        for name in sorted(large, key=lambda n: self.groups[n].main.tree is None and not self._is_wide(n)):
            self._place_large(name)
        self._place_whole(whole)
        return Plan(self.devices, tuple(self.done[spec.name] for spec in self.specs), self.batch_size)

    # What a table is.

    def _is_small(self, name):
        group = self.groups[name]
        if (
            len(self.devices) == 1
            or group.nbytes > self.small
            or group.main.tree is not None
            or group.on_host
        ):
            return False
        spent = sum(table.memory.max() for table in self.done.values())
        limit = min((d.memory for d in self.devices if d.memory is not None), default=np.inf)
        return spent + group.nbytes <= _REPLICATED_MEMORY * limit

    def _is_wide(self, name):
        main, devices = self.groups[name].main, len(self.devices)
        wide = main.dim >= max(_WIDE, _COLUMNS * devices) and main.rows <= main.dim
        fits = np.all(self.groups[name].nbytes / devices * 1.05 <= self._free_for(name))
        return wide and fits and devices > 1 and len(self.groups[name]) == 1

    def _is_middling(self, name):
        """Return whether it is small enough, in bytes and in time, to be placed table-wise."""
        if len(self.devices) == 1 or self.groups[name].main.tree is not None:
            return False
        part = _WHOLE / len(self.devices)
        small = self.groups[name].nbytes <= part * sum(group.nbytes for group in self.groups.values())
        return small and self._seconds[name] <= part * sum(self._seconds.values())

    @functools.cached_property
    def _seconds(self):
        """dict: the expected seconds per step of each group, were it alone on the first device."""
        seconds = {}
        for name, group in self.groups.items():
            moved, flops = expected_work(group, len(self.devices), self.batch_size)
            seconds[name] = moved / self.devices[0].bandwidth + flops / self.devices[0].flops
        return seconds

    def _free_for(self, name):
        """Return float64 `[devices]`: the bytes that are free for a group."""
        return np.full(len(self.devices), np.inf) if self.groups[name].on_host else self.free

    def _shares(self, name):
        return device_shares(self.groups[name], self.devices, self.batch_size)

    # Placing.

    def _settle(self, name, placement, reason):
        """Gives a group its placement and takes the memory for it; refuses it where it does not fit."""
        loads = [device_load(spec, placement, self.batch_size, self.hosts) for spec in self.groups[name]]
        needed = np.sum([load.memory for load in loads], axis=0)
        if np.any(needed > self.free):
            self._refuse(name, needed)
        self.free = self.free - needed
        for spec, load in zip(self.groups[name], loads):
            self.load = self.load + load
            text = reason if spec.like is None else f"like {spec.like}"
            self.done[spec.name] = TablePlan(spec, placement, text, load)

    def _refuse(self, name, needed, missing=None):
        """Raises the error for a group that needs `needed` bytes on each device, `missing` of them in all."""
        short = needed - self.free
        worst = int(np.argmax(short))
        device, left = self.devices[worst], int(self.free[worst])
        missing = np.ceil(np.maximum(short, 0).sum() if missing is None else missing)
        raise ValueError(
            f"Table {name!r} does not fit: it misses {int(missing):,} bytes. It takes "
            f"{self.groups[name].nbytes:,} with its slots; {device.name!r} would have to hold "
            f"{int(np.ceil(needed[worst])):,} and has {left:,} left of {int(device.memory):,}."
        )

    def _place_large(self, name):
        """Shards a table by rows, columns or subtrees; refuses it where the devices can't hold it."""
        group, devices = self.groups[name], len(self.devices)
        free = np.minimum(self._free_for(name), group.nbytes)  # also where there is no limit
        room = (free // group.row_bytes).astype(np.int64)
        if room.sum() < group.main.rows:
            needed = group.nbytes * self._shares(name) / self._shares(name).sum()
            self._refuse(name, needed, (group.main.rows - room.sum()) * group.row_bytes)
        # At first a table may take no more of a small device than is fair to the tables still to come.
        waiting = sum(g.nbytes for n, g in self.groups.items() if n not in self.done)
        fair = (
            np.minimum(free, 1.25 * self._free_for(name) * (group.nbytes / waiting)) // group.row_bytes
        ).astype(np.int64)
        for part in (fair, room):
            try:
                placement, reason = self._cut(name, devices, part)
                return self._settle(name, placement, reason)
            except ValueError:
                if part is room:
                    raise

    def _cut(self, name, devices, room):
        main, shares = self.groups[name].main, self._shares(name)
        if main.tree is not None:
            return self._tree(name, shares, room)
        if devices == 1:
            return Placement.on_device(main.rows, 1, 0), "one device"
        if self._is_wide(name):
            text = f"{main.rows} rows of {main.dim} columns: even whatever the ids are"
            return Placement.by_columns(main.rows, main.dim, devices), text
        return place_rows(main, devices, self.batch_size, shares, room, self.balance)

    def _tree(self, name, shares, room):
        main, devices = self.groups[name].main, len(self.devices)
        tokens = self.batch_size * main.ids_per_example
        common = {"dim": main.dim, "batch_tokens": tokens, "slots": main.slots}
        try:
            placement = place_tree(main.tree, devices, main.counts, shares=shares, room=room, **common)
        except ValueError:
            # The replicated top and whole subtrees take more than an even part: say how much more.
            placement = place_tree(main.tree, devices, main.counts, sizes_slack=0, **common)
            self._refuse(name, sum(memory_of(spec, placement) for spec in self.groups[name]))
        text = f"tree: {placement.num_hot:,} rows at the top replicated, whole subtrees below packed by load"
        return placement, text

    def _place_whole(self, names):
        """Places tables table-wise; where that is not even, or does not fit, the largest row-wise."""
        names = sorted(names, key=lambda name: (-self._seconds[name], name))
        before = self.free, self.load, dict(self.done)
        best = None
        for cut in [0, *(1 << i for i in range(len(names).bit_length()) if 1 << i < len(names)), len(names)]:
            self.free, self.load, self.done = before[0], before[1], dict(before[2])
            try:
                for name in names[:cut]:
                    self._place_large(name)
                self._settle_whole(names[cut:])
            except ValueError:
                if cut == len(names) and best is None:
                    raise
                continue
            seconds = self.load.seconds(self.devices)
            if best is None or seconds.max() < _WORTH * best[0]:
                best = seconds.max(), self.free, self.load, self.done
            if max_over_mean(seconds) <= self.balance:
                break
        _, self.free, self.load, self.done = best

    def _settle_whole(self, names):
        if not names:
            return
        speed = self._shares(names[0])
        sizes = [0 if self.groups[name].on_host else self.groups[name].nbytes for name in names]
        loads = [(self._seconds[name], size) for name, size in zip(names, sizes)]
        # What is there already, in seconds of the first device.
        base = np.stack([self.load.seconds(self.devices) * speed / speed[0], self.load.memory], axis=1)
        room = np.minimum(self.free, 1 << 62).astype(np.int64)
        for name, device in zip(names, pack(loads, speed, sizes, room, base)):
            placement = Placement.on_device(self.groups[name].main.rows, len(self.devices), int(device))
            self._settle(name, placement, f"one of {len(names)} whole tables, packed by load and bytes")
