"""The stage planner, against all cuts that there are; branches side by side."""

import itertools

import numpy as np
import pytest

from keras_largeout.distribute.parallel.stage_plan import CallCost, SectionPlan
from keras_largeout.distribute.parallel.stage_planner import place_branches, plan_stages
from keras_largeout.planning.devices import Device


def chain(seconds, sizes=None, memory=1):
    sizes = sizes or [8] * len(seconds)
    return [
        CallCost(f"layer_{i}", t, weights=memory, sends=((i + 1, size),) if i + 1 < len(seconds) else ())
        for i, (t, size) in enumerate(zip(seconds, sizes))
    ]


def devices(number, **kwargs):
    return [Device(f"GPU:{i}", **kwargs) for i in range(number)]


def all_cuts(calls, number):
    return [(0, *starts) for starts in itertools.combinations(range(1, calls), number - 1)]


def longest(seconds, starts):
    return max(sum(part) for part in np.split(np.array(seconds), starts[1:]))


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_the_longest_stage_is_the_shortest_that_there_is(rng, number):
    for _ in range(20):
        seconds = rng.uniform(1, 10, 8).tolist()
        plan = plan_stages(chain(seconds), devices(number), 32)
        best = min(longest(seconds, starts) for starts in all_cuts(8, number))
        assert longest(seconds, plan.starts) <= 1.05 * best + 1e-9
        np.testing.assert_allclose(plan.seconds.max(), longest(seconds, plan.starts))


def test_of_equal_cuts_that_with_the_fewest_bytes():
    plan = plan_stages(chain([1, 1, 0, 1, 1], sizes=[9, 9, 2, 9, 9]), devices(2), 32)
    assert plan.starts == (0, 3)
    assert plan.bytes.tolist() == [[0, 2], [0, 0]]


def test_faster_devices_get_more_and_small_ones_less():
    fast = [Device("GPU:0", flops=3e12), Device("GPU:1", flops=1e12)]
    assert plan_stages(chain([1] * 8), fast, 32).starts == (0, 6)
    small = [Device("GPU:0", memory=2), Device("GPU:1", memory=100)]
    assert plan_stages(chain([1] * 8), small, 32).starts == (0, 2)
    with pytest.raises(ValueError, match="must fit on the devices, 8 B in all"):
        plan_stages(chain([1] * 8), devices(2, memory=3), 32)


def test_an_output_goes_to_a_stage_once():
    calls = [CallCost("a", 1, sends=((1, 8), (2, 8), (3, 8))), *(CallCost(n, 1) for n in "bcd")]
    plan = plan_stages(calls, devices(2), 32, starts=[2])
    assert plan.bytes.tolist() == [[0, 8], [0, 0]]
    assert plan_stages(calls, devices(4), 32).bytes.sum() == 24


def test_tables():
    plan = plan_stages(chain([0.001] * 6), devices(3), 32)
    lines = str(plan).splitlines()
    assert lines[0] == "3 stages, 32 examples: longest/mean 1.00, 32 B between devices, forward and back"
    assert lines[2].split() == [
        "stage",
        "device",
        "layers",
        "weights",
        "slots",
        "activations",
        "flops",
        "time",
        "sent",
        "on",
    ]
    assert lines[4].split()[:5] == ["0", "GPU:0", "layer_0", "..", "layer_1"]
    assert all(len(line) < 110 for line in lines)
    sections = SectionPlan(devices(2), chain([0.001] * 2, memory=8), {"layer_0": "columns"}, (None, 1), 32)
    assert str(sections).splitlines()[0].endswith("weights and slots per device: 4 B, 12 B")


def test_branches_run_side_by_side():
    calls = [
        CallCost("in", 1, sends=((1, 8), (2, 8))),
        CallCost("left", 5, sends=((3, 8),)),
        CallCost("right", 5, sends=((3, 8),)),
        CallCost("out", 1),
    ]
    places = place_branches(calls, devices(2))
    assert places[1] != places[2]
    assert place_branches(chain([1] * 5), devices(3)) == [0] * 5  # nothing is gained by sending
    assert place_branches(calls, devices(2), [1, None, None, 1])[0] == 1


@pytest.mark.parametrize("starts", [[1], [2, 1], [0, 2]])
def test_starts_that_are_refused(starts):
    with pytest.raises(ValueError, match="`cuts` must name the first layer of each stage but the first, 2"):
        plan_stages(chain([1] * 4), devices(3), 32, starts=starts)
