"""The stage planner: cuts a sequence of layers into stages, one per device, that take equally long."""

import dataclasses
import itertools
import math

import numpy as np

from keras_largeout.planning.devices import Device
from keras_largeout.planning.plan_stats import (
    BYTES,
    FLOPS,
    SECONDS,
    aligned,
    number_text,
    size_text,
)

#: Cuts whose longest stage is at most this much longer are as good: the fewest bytes decide.
_AS_GOOD = 1.05


@dataclasses.dataclass(frozen=True)
class CallCost:
    """The cost of one call of a layer, for the batch of the trial.

    Args:
        name: str, the name of the layer.
        seconds: float, forward and backward pass.
        flops: float, likewise.
        weights: int, bytes of the weights that no call before uses.
        slots: int, bytes of their optimizer slots.
        activations: int, bytes of what the backward pass needs: the outputs.
        sends: tuple of `(index of a call, bytes)`: later calls that take an output, and how large it is. An
            output that several calls take is listed for each of them.
    """

    name: str
    seconds: float
    flops: float = 0.0
    weights: int = 0
    slots: int = 0
    activations: int = 0
    sends: tuple = ()


@dataclasses.dataclass(frozen=True, eq=False)
class StagePlan:
    """The device of each call of a layer. `str(plan)` is a table of it.

    Attributes:
        devices: tuple of `Device`, in the order of the stages.
        calls: tuple of `CallCost`, in the order in which they are made.
        starts: tuple of ints: stage s has the calls `starts[s]` to `starts[s + 1] - 1`.
        batch_size: int, the examples of the batch for which the costs are.
    """

    devices: tuple
    calls: tuple
    starts: tuple
    batch_size: int

    @property
    def stages(self):
        """For each stage a tuple of the indices of its calls."""
        ends = [*self.starts[1:], len(self.calls)]
        return tuple(tuple(range(start, end)) for start, end in zip(self.starts, ends))

    @property
    def seconds(self):
        """float64 `[stages]`: what each stage takes for the batch, were all devices that of the trial."""
        return self._sums("seconds")

    @property
    def memory(self):
        """int64 `[stages]`: bytes of weights, slots and activations."""
        return sum(self._sums(kind) for kind in ("weights", "slots", "activations")).astype(np.int64)

    @property
    def bytes(self):
        """int64 `[stages, stages]`: entry `[i, j]` is what i sends to j per batch, forward or backward."""
        return _sent(self.calls, self.starts)

    @property
    def imbalance(self):
        """float: the time of the longest stage over the mean; 1.0 is even."""
        seconds = self.seconds / _speeds(self.devices)
        return float(seconds.max() / seconds.mean()) if seconds.any() else 1.0

    def _sums(self, kind):
        return np.array([sum(getattr(self.calls[i], kind) for i in stage) for stage in self.stages])

    def __str__(self):
        sent = self.bytes
        rows = []
        for s, stage in enumerate(self.stages):
            first, last = self.calls[stage[0]].name, self.calls[stage[-1]].name
            sums = {
                kind: self._sums(kind)[s] for kind in ("weights", "slots", "activations", "flops", "seconds")
            }
            rows.append(
                [
                    str(s),
                    self.devices[s].name,
                    first if len(stage) == 1 else f"{first} .. {last}",
                    *(size_text(int(sums[kind])) for kind in ("weights", "slots", "activations")),
                    number_text(sums["flops"], FLOPS),
                    number_text(sums["seconds"], SECONDS),
                    size_text(int(sent[s].sum())),
                ]
            )
        title = [
            "stage", "device", "layers", "weights", "slots", "activations", "flops", "time", "sent on",
        ]  # fmt: skip
        head = (
            f"{len(rows)} stages, {self.batch_size:,} examples: longest/mean {self.imbalance:.2f}, "
            f"{number_text(2 * int(sent.sum()), BYTES)} between devices, forward and back"
        )
        note = "flops: of products and convolutions; what loops and custom ops do is in the time alone"
        return "\n".join(line.rstrip() for line in [head, "", *aligned(title, rows, "rllrrrrrr"), note])


@dataclasses.dataclass(frozen=True, eq=False)
class SectionPlan:
    """The layers that are sharded over devices, and the devices of the others. `str(plan)` is a table of it.

    Attributes:
        devices: tuple of `Device`.
        calls: tuple of `CallCost`.
        ways: dict from names of layers to "columns", "rows" or "cut" (a table or a head).
        places: for each call the index of its device, None where it is on all.
        batch_size: int, the examples of the batch for which the costs are.
    """

    devices: tuple
    calls: tuple
    ways: dict
    places: tuple
    batch_size: int

    @property
    def memory(self):
        """int64 `[devices]`: bytes of weights and slots."""
        memory = np.zeros(len(self.devices), np.int64)
        for call, place in zip(self.calls, self.places):
            size = call.weights + call.slots
            if place is None:
                memory += size // len(self.devices)
            else:
                memory[place] += size
        return memory

    def __str__(self):
        rows = []
        for call, place in zip(self.calls, self.places):
            way = self.ways.get(call.name, "")
            where = "all" if place is None else self.devices[place].name
            sizes = [size_text(n) if n else "" for n in (call.weights, call.slots)]
            rows.append([call.name, where, way, *sizes, number_text(call.seconds, SECONDS)])
        head = (
            f"{len(self.devices)} devices, {self.batch_size:,} examples; "
            f"weights and slots per device: {', '.join(map(size_text, self.memory.tolist()))}"
        )
        table = aligned(["layer", "device", "cut by", "weights", "slots", "time"], rows, "lllrrr")
        return "\n".join(line.rstrip() for line in [head, "", *table])


def plan_stages(calls, devices, batch_size, starts=None):
    """Cuts a sequence of calls into one stage per device.

    The longest stage is as short as can be, where each fits into its device's `memory`; of cuts that are as
    good, within 5%, the one is taken by which the fewest bytes go from device to device.

    Args:
        calls: sequence of `CallCost`.
        devices: sequence of `Device`. Only the ratios of their `flops` matter.
        batch_size: int.
        starts: None, or the index of the first call of each stage but the first, ascending.

    Returns:
        A `StagePlan`.

    Raises:
        ValueError: fewer calls than devices, stages that fit on no device, or `starts` that are not one per
            further device.

    Source: the partition of a chain by dynamic programming, as in
    [Narayanan et al., 2019](https://doi.org/10.1145/3341301.3359646), section 3.1.
    """
    calls, devices = tuple(calls), tuple(devices)
    if len(calls) < len(devices):
        names = [call.name for call in calls]
        raise ValueError(
            f"`devices` must not be more than the layers that a model calls, {len(calls)}: a layer is not "
            f"cut. Received: {len(devices)} devices for the layers {names}"
        )
    if starts is None:
        starts = _best_starts(calls, devices)
    else:
        starts = (0, *starts)
        if len(starts) != len(devices) or any(a >= b for a, b in itertools.pairwise(starts)):
            raise ValueError(
                f"`cuts` must name the first layer of each stage but the first, {len(devices) - 1} in the "
                f"order in which the model calls them. Received: {[calls[i].name for i in starts[1:]]}"
            )
    return StagePlan(devices, calls, tuple(int(i) for i in starts), int(batch_size))


def place_branches(calls, devices, fixed=None):
    """Return which device makes which call, so that branches that do not depend on one another run side by
    side.

    Calls are taken in their order. Each goes where it ends first, given when its inputs are there and what
    the device has to do before; of devices that are as good, to that of the input which comes last.

    Args:
        calls: sequence of `CallCost`.
        devices: sequence of `Device`.
        fixed: None, or for each call the index of its device, None where it is free.

    Returns:
        A list of ints, one per call.

    Source: list scheduling, R. L. Graham, "Bounds for certain multiprocessing anomalies", Bell System
    Technical Journal 45 (1966).
    """
    speeds, busy = _speeds(devices), np.zeros(len(devices))
    ready, last_input, places = np.zeros(len(calls)), [0] * len(calls), []
    for i, call in enumerate(calls):
        ends = np.maximum(busy, ready[i]) + call.seconds / speeds
        place = fixed[i] if fixed is not None and fixed[i] is not None else int(np.argmin(ends))
        if (fixed is None or fixed[i] is None) and ends[last_input[i]] <= ends[place]:
            place = last_input[i]
        busy[place] = ends[place]
        places.append(place)
        for later, _ in call.sends:
            if ends[place] >= ready[later]:
                ready[later], last_input[later] = ends[place], place
    return places


def _speeds(devices):
    flops = np.array([device.flops for device in devices])
    return flops / flops.max()


def _sent(calls, starts):
    owner = np.searchsorted(starts, np.arange(len(calls)), side="right") - 1
    sent = np.zeros((len(starts), len(starts)), np.int64)
    for i, call in enumerate(calls):
        to = {}
        for j, size in call.sends:  # what two calls of a stage take goes there once
            if owner[i] != owner[j]:
                to[owner[j]] = max(size, to.get(owner[j], 0))
        for stage, size in to.items():
            sent[owner[i], stage] += size
    return sent


def _best_starts(calls, devices):
    seconds = np.cumsum([0.0, *(call.seconds for call in calls)])
    memory = np.cumsum([0, *(call.weights + call.slots + call.activations for call in calls)])
    crossing = _crossing(calls)
    speeds = _speeds(devices)

    def stage(s, i, j):
        """Return the time of calls i to j - 1 on device s."""
        room = devices[s].memory
        fits = room is None or memory[j] - memory[i] <= room
        return (seconds[j] - seconds[i]) / speeds[s] if fits else math.inf

    def search(limit):
        """Return the cuts with the shortest longest stage; with a limit for it, those with the fewest
        bytes.
        """
        number, last = len(devices), len(calls)
        best = {0: ((0, 0), ())}  # from the calls that have a stage to what they cost, and their starts
        for s in range(number):
            following = {}
            for i, (cost, starts) in best.items():
                for j in range(i + 1, last - (number - s - 1) + 1):
                    time = stage(s, i, j)
                    if time > limit or (s == number - 1 and j != last):
                        continue
                    longest = 0 if limit < math.inf else max(cost[0], time)
                    candidate = (longest, cost[1] + crossing[i]), (*starts, i)
                    if j not in following or candidate < following[j]:
                        following[j] = candidate
            best = following
        return best.get(last)

    found = search(math.inf)
    if found is None or found[0][0] == math.inf:
        raise ValueError(
            "The weights, slots and activations of the model must fit on the devices, "
            f"{size_text(memory[-1])} in all. Received: memory={[device.memory for device in devices]}"
        )
    cheaper = search(found[0][0] * _AS_GOOD)
    return (cheaper or found)[1]


def _crossing(calls):
    """Return how many bytes are made before call i and used by it or later."""
    crossing = np.zeros(len(calls) + 1, np.int64)
    for i, call in enumerate(calls):
        if call.sends:
            last, size = max(j for j, _ in call.sends), max(size for _, size in call.sends)
            crossing[i + 1 : last + 1] += size
    return crossing.tolist()


def as_devices(devices):
    """Return a tuple of `Device` from names and `Device`s."""
    return tuple(device if isinstance(device, Device) else Device(str(device)) for device in devices)
