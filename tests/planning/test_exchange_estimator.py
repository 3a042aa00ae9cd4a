"""What devices receive from their own host and from others, by hand: two hosts with two devices each."""

import json

import numpy as np
import pytest

from keras_largeout.distribute import Device, Placement, Plan, TableSpec, plan
from keras_largeout.planning.exchange_estimator import arrivals, arriving, replicated_between
from keras_largeout.planning.row_estimator import device_load
from keras_largeout.planning.tree_estimator import tree_load
from keras_largeout.trees import Tree

HOSTS = (0, 0, 1, 1)
#: So many ids that every device asks for every row: all four ask for the four rows of four columns.
EVERY_ROW = TableSpec("t", 4, 4)
VECTOR = 4 * 4


def load_of(placement, hosts=HOSTS):
    return device_load(EVERY_ROW, placement, 1e6, hosts)


def test_rows_that_are_spread_evenly():
    # A device asks three others for a row each; three send it a gradient. For its host it asks one of the
    # other host for a row, and that host sends it one gradient.
    load = load_of(Placement.by_modulo(4, 4))
    assert np.allclose(load.received, 6 * VECTOR) and np.allclose(load.between, 2 * VECTOR)


def test_a_whole_table():
    # Device 1 receives the gradients of four rows from each of three devices, the others its four rows. On
    # the other host it has to do with device 3 alone.
    load = load_of(Placement.on_device(4, 4, 1))
    assert np.allclose(load.received, np.array([4, 12, 4, 4]) * VECTOR)
    assert np.allclose(load.between, np.array([0, 4, 0, 4]) * VECTOR)


def test_explicit_and_replicated_rows():
    # Row 0 is on all devices, rows 1 and 2 on device 0, row 3 on device 3.
    load = load_of(Placement.explicit([-1, 0, 0, 3], 4, [2, 0, 0, 1]))
    rows, gradients, replicated = np.array([1, 3, 3, 2]), np.array([6, 0, 0, 3]), 3
    assert np.allclose(load.received, (rows + gradients + replicated) * VECTOR)
    rows, gradients, replicated = np.array([0, 1, 2, 0]), np.array([2, 0, 0, 1]), np.array([1, 0, 1, 0])
    assert np.allclose(load.between, (rows + gradients + replicated) * VECTOR)


def test_columns():
    # Each device has one column of four: of four rows it receives the other three, and gradients of its own.
    load = load_of(Placement.by_columns(4, 4, 4))
    assert np.allclose(load.received, (4 * 3 + 3 * 4) * 4) and np.allclose(load.between, (4 * 2 + 2 * 4) * 4)


def test_subtrees():
    # Children of the root: 3 classes and a node of 2 classes, which is on device 2 of host 1.
    tree = Tree.from_children([0, 1, 2, [3, 4]])
    owners = np.repeat([-1, 2], tree.node_sizes)
    placement = Placement.explicit(owners, 4)
    counts = np.array([1, 1, 1, 3, 2.0])  # 5/8 of 800 targets are below the node, and all rows are touched
    load = tree_load(tree, placement, counts, dim=4, batch_tokens=800, hosts=HOSTS)
    hidden, returned, root = np.array([0, 0, 375, 0]), np.array([125, 125, 0, 125]), 3 * 4
    assert np.allclose(load.received, (hidden + returned + root) * VECTOR)
    hidden, returned, root = np.array([0, 0, 250, 0]), np.array([125, 125, 0, 0]), np.array([4, 0, 4, 0])
    assert np.allclose(load.between, (hidden + returned + root) * VECTOR)


def test_replicated_rows_of_many_hosts():
    # All four hosts touch the same rows: a fourth of them is summed on each, of which it gets three others'.
    found = replicated_between(4 * 80, 80, (0, 0, 1, 1, 2, 2, 3, 3))
    assert np.allclose(found, [3 * 20 + 3 * 20, 0] * 4)
    assert np.allclose(replicated_between(3 * 80, 80, (0, 1, 2)), 2 * 80)


@pytest.mark.parametrize("devices", [1, 3, 8])
def test_one_host_gets_nothing_from_others(devices):
    owned = np.random.default_rng(0).random(devices) * 1e9
    assert not arriving(owned, 0.1, [7] * devices).any() and not arrivals(owned, 0.1, None)[1].any()
    assert np.array_equal(*arrivals(owned, 0.1, range(devices)))
    result = plan(EVERY_ROW, devices)
    assert not result.expected.between.any() and "host" not in str(result)
    assert np.array_equal(result.exchange_seconds, result.expected.received / 450e9)


def test_hosts_need_not_come_one_after_another():
    turns = load_of(Placement.on_device(4, 4, 1), (5, 2, 5, 2))
    assert np.allclose(turns.between, np.array([4, 4, 0, 0]) * VECTOR)


def some_tables():
    counts = 1.0 / np.arange(1, 4001)
    return [
        TableSpec("rows", 4000, 16, slots=1, counts=counts, ids_per_example=5),
        TableSpec("tiny", 10, 4),
        TableSpec("whole", 300, 4),
    ]


def test_seconds_and_decisions():
    one, two = (plan(some_tables(), 4, small=1000, hosts=hosts) for hosts in (1, 2))
    assert [device.host for device in two.devices] == [0, 0, 1, 1]
    assert [device.name for device in two.devices] == [device.name for device in one.devices]
    assert two.placements == one.placements and np.array_equal(two.seconds, one.seconds)
    received, between = two.expected.received, two.expected.between
    assert np.array_equal(received, one.expected.received) and np.all((between > 0) & (between < received))
    assert np.allclose(two.exchange_seconds, (received - between) / 450e9 + between / 50e9)
    assert str(two).startswith("3 tables on 4 devices of 2 hosts, 4,096 examples per step")
    assert "exchange" in str(one) and "hosts" not in str(one)
    own = [Device(f"d{i}", host=i // 2, within=1e9 * (i + 1), between=1e6) for i in range(4)]
    found = plan(some_tables(), own, small=1000).exchange_seconds
    assert np.allclose(found, (received - between) / [1e9, 2e9, 3e9, 4e9] + between / 1e6)


def test_file(tmp_path):
    path = tmp_path / "plan.json"
    devices = [Device(f"d{i}", host=i // 2, within=1e11, between=2e10) for i in range(4)]
    result = plan(some_tables(), devices, small=1000)
    result.save(path)
    for again in (Plan.load(path), Plan.load(path, some_tables())):
        assert again.devices == result.devices and str(again) == str(result)
        assert np.array_equal(again.exchange_seconds, result.exchange_seconds)
    content = json.loads(path.read_text())
    content["devices"][2]["host"] = 0
    path.write_text(json.dumps(content))
    assert Plan.load(path).exchange_seconds is None  # the estimates were of other hosts
    assert Plan.load(path, some_tables()).expected.between[3] > result.expected.between[3]


def test_file_without_the_fields(tmp_path):
    path = tmp_path / "plan.json"
    result = plan(some_tables(), 4, small=1000)
    result.save(path)
    content = json.loads(path.read_text())
    for device in content["devices"]:
        for field in ("host", "within", "between"):
            del device[field]
    for computed in content["computed"].values():
        del computed["expected"]["between"]
    path.write_text(json.dumps(content))
    again = Plan.load(path)
    assert again.devices == result.devices and str(again) == str(result)
    assert not again.expected.between.any()
