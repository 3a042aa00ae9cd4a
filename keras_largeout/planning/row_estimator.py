"""The estimator of lookup tables: the memory and the work that a table gives each device under a placement.

The `n = batch_size * ids_per_example` ids of a step are taken to be independent draws in proportion to the
counts. Every device looks up `1 / devices` of them and drops duplicates. So a device asks for row i with
probability `1 - (1 - p_i) ** (n / devices)`, and the whole step touches it with `1 - (1 - p_i) ** n`.

A row that is asked for is read, is written to the output, and its gradient is read. A row that is touched is
read and written by the update, with its slots. Replicating a row costs each device the lookups of its own
batch, plus the gradient and update traffic of all batches.

`keras_largeout.trees.cost` states the units. (`NodeLoads` states the model of a tree.)
"""

import dataclasses

import numpy as np

from keras_largeout.planning.exchange_estimator import (
    arrivals,
    arriving,
    replicated_between,
    rows_between,
)
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.tree_estimator import class_frequencies, node_loads, tree_load
from keras_largeout.trees.cost import FLOAT32_BYTES, probability_touched


@dataclasses.dataclass(frozen=True)
class DeviceLoad:
    """The storage and compute cost that one table, or all tables, give each device.

    Attributes:
        memory: float64 `[devices]`: bytes of rows and slots.
        rows: float64 `[devices]`: rows per step that the device looks up for itself and for others. (Of a
            tree: rows that it touches.)
        flops: float64 `[devices]`: floating-point operations per step.
        bytes: float64 `[devices]`: bytes per step that pass through the device's memory.
        received: float64 `[devices]`: bytes per step from other devices: rows, gradients, hidden vectors.
        between: float64 `[devices]`: the part of them that comes from other hosts.
    """

    memory: np.ndarray
    rows: np.ndarray
    flops: np.ndarray
    bytes: np.ndarray
    received: np.ndarray
    between: np.ndarray

    def __add__(self, other):
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other))
        return DeviceLoad(*(a + b for a, b in pairs))

    @classmethod
    def none(cls, devices):
        """Return no load on any of `devices` devices."""
        return cls(*(np.zeros(devices) for _ in dataclasses.fields(cls)))

    def seconds(self, devices):
        """Return float64 `[devices]`: seconds per step, bytes / bandwidth + flops / flops of each
        `Device`.
        """
        return self.bytes / [d.bandwidth for d in devices] + self.flops / [d.flops for d in devices]

    def exchange_seconds(self, devices):
        """Return float64 `[devices]`: seconds per step in which each `Device` receives, were nothing else
        done.
        """
        within = (self.received - self.between) / [d.within for d in devices]
        return within + self.between / [d.between for d in devices]


@dataclasses.dataclass(frozen=True)
class RowLoad:
    """The cost of each row per step: float64 `[rows]`, or `[1]` if all rows are alike.

    Attributes:
        asked: how many devices ask for the row.
        owned: bytes moved by the device that has the row, if one device has it.
        replicated: bytes moved by each device, if every device has the row.
    """

    asked: np.ndarray
    owned: np.ndarray
    replicated: np.ndarray


def row_load(spec, devices, batch_size):
    """Return the `RowLoad` of a table without a tree."""
    p = np.full(1, 1 / spec.rows) if spec.counts is None else spec.counts / spec.counts.sum()
    draws = batch_size * spec.ids_per_example
    asked = devices * probability_touched(p, draws / devices)
    gradient = FLOAT32_BYTES
    output = FLOAT32_BYTES
    update = 2 * spec.row_bytes * probability_touched(p, draws)
    return RowLoad(
        asked=asked,
        owned=asked * spec.dim * (spec.itemsize + output + gradient) + update,
        replicated=asked * spec.dim * ((spec.itemsize + output) / devices + gradient) + update,
    )


def memory_of(spec, placement):
    """Return float64 `[devices]`: bytes of a table with its slots, of those that are on devices."""
    if spec.storage == "host":
        return np.zeros(placement.devices)
    if placement.columns is not None:
        width = np.array([stop - start for start, stop in placement.columns], np.float64)
        slots, row_slots = FLOAT32_BYTES * spec.slots, FLOAT32_BYTES * spec.row_slots
        return spec.rows * (width * (spec.itemsize + slots) + row_slots)
    return (placement.num_hot + np.array(placement.sizes, np.float64)) * spec.row_bytes


def device_load(spec, placement, batch_size, hosts=None):
    """Return the expected `DeviceLoad` of a table.

    Args:
        spec: `TableSpec`.
        placement: `Placement` of its rows.
        batch_size: examples per step, over all devices.
        hosts: sequence `[devices]`, the host of each device; None for one host.
    """
    devices = placement.devices
    memory = memory_of(spec, placement)
    if spec.tree is not None:
        tokens = batch_size * spec.ids_per_example
        load = tree_load(spec.tree, placement, spec.counts, spec.dim, tokens, spec.slots, hosts)
        return DeviceLoad(memory, load.touched, load.flops, load.bytes, load.received, load.between)
    row = row_load(spec, devices, batch_size)
    vector = FLOAT32_BYTES * spec.dim
    if placement.columns is not None:
        parts = np.array([stop - start for start, stop in placement.columns]) / spec.dim
        asked = np.full(devices, _sum(row.asked, spec.rows))
        moved = _sum(row.owned, spec.rows) * parts
        received, between = arrivals(asked * parts, 0.0, hosts)
        return DeviceLoad(memory, asked, asked * spec.dim * parts, moved, vector * received, vector * between)
    owned, hot = _by_owner(row.asked, placement)
    owned_bytes, _ = _by_owner(row.owned, placement)
    hot_bytes = _by_owner(row.replicated, placement)[1]
    rows = owned + hot / devices
    # Rows that it asks others for, gradients that others send it, gradients of replicated rows.
    received, between = arriving(owned, hot), np.zeros(devices)
    if hosts is not None:
        between = np.minimum(received, _between(spec, placement, batch_size, hosts))
    flops = spec.dim * (owned + hot * np.ones(devices))
    return DeviceLoad(memory, rows, flops, owned_bytes + hot_bytes, vector * received, vector * between)


def _between(spec, placement, batch_size, hosts):
    """Return how many rows each device receives from other hosts: float64 `[devices]`."""
    count = len(set(hosts))
    owned, hot = _by_owner(row_load(spec, count, batch_size).asked, placement)
    touched = _by_owner(row_load(spec, 1, batch_size).asked, placement)[1]
    return rows_between(owned, hosts) + replicated_between(hot, touched, hosts)


def expected_work(specs, devices, batch_size):
    """Return expected bytes and flops per step of all `specs` together, no row replicated: float64 `[2]`."""
    work = np.zeros(2)
    for spec in specs:
        if spec.tree is not None:
            counts = class_frequencies(spec.tree, spec.counts)
            tokens = batch_size * spec.ids_per_example
            load = node_loads(spec.tree, counts, devices, spec.dim, tokens, spec.slots)
        else:
            load = device_load(spec, Placement.on_device(spec.rows, devices, 0), batch_size)
        work += [load.bytes.sum(), load.flops.sum()]
    return work


def device_shares(specs, devices, batch_size):
    """Return float64 `[devices]`: each device's share of the tables, in proportion to its speed at their
    work.
    """
    if len({(d.bandwidth, d.flops) for d in devices}) == 1:
        return np.ones(len(devices))
    moved, flops = expected_work(specs, len(devices), batch_size)
    return np.array([1 / (moved / d.bandwidth + flops / d.flops) for d in devices])


def _sum(values, rows):
    return float(values[0] * rows if len(values) == 1 else values.sum())


def _by_owner(values, placement):
    """Return the sum of `values` (one per row) over the rows of each device, and over the replicated rows."""
    if len(values) == 1:
        counts = rows_held(placement)
        return values[0] * counts, values[0] * placement.num_hot
    owner = row_owners(placement)
    sums = np.bincount(owner + 1, values, placement.devices + 1)
    return sums[1:], sums[0]


def row_owners(placement):
    """Return int16 `[rows]`: the device of every row, -1 where all have it."""
    if placement.kind == "explicit":
        return placement.owners.astype(np.int16)
    owners = np.empty(placement.rows, np.int16)
    for start in range(0, placement.rows, 1 << 20):  # no int64 arrays of the table's size
        stop = min(start + (1 << 20), placement.rows)
        owners[start:stop] = placement.locate(np.arange(start, stop))[0]
    return owners


def rows_held(placement):
    """Return int64 `[devices]`: rows that each device alone has."""
    if placement.kind == "explicit":
        held = np.bincount(placement.owners.astype(np.int16) + 1, minlength=placement.devices + 1)
        return held[1:]
    held = np.array(placement.sizes, np.int64)
    if placement.hot is not None:  # their positions in the shards are empty
        plain = dataclasses.replace(placement, hot=None)
        held = held - np.bincount(plain.locate(placement.hot)[0], minlength=placement.devices)
    return held
