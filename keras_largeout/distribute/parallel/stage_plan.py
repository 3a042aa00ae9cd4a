"""Costs of calls, which a planner of stages is told, and the plans that it makes, which can be printed."""

import dataclasses

import numpy as np

from keras_largeout.planning.plan_stats import (
    BYTES,
    FLOPS,
    SECONDS,
    aligned,
    number_text,
    size_text,
)


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
        seconds = self.seconds / speeds_of(self.devices)
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


def speeds_of(devices):
    """Return how fast each device is, float64: 1 for the fastest."""
    flops = np.array([device.flops for device in devices])
    return flops / flops.max()


def _sent(calls, starts):
    """Return int64 `[stages, stages]`: the bytes that the stages send to each other."""
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
