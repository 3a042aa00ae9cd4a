"""The stage planner: cuts a sequence of layers into stages, one per device, that take equally long."""

import itertools
import math

import numpy as np

from keras_largeout.distribute.parallel.stage_plan import StagePlan, speeds_of
from keras_largeout.planning.devices import Device
from keras_largeout.planning.plan_stats import size_text

#: Cuts whose longest stage is at most this much longer are as good: the fewest bytes decide.
_AS_GOOD = 1.05


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
    speeds, busy = speeds_of(devices), np.zeros(len(devices))
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


def _best_starts(calls, devices):
    seconds = np.cumsum([0.0, *(call.seconds for call in calls)])
    memory = np.cumsum([0, *(call.weights + call.slots + call.activations for call in calls)])
    crossing = _crossing(calls)
    speeds = speeds_of(devices)

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
