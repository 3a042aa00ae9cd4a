"""Plans: what goes where and why, and that it fits."""

import functools

import numpy as np
import pytest

from keras_largeout import trees
from keras_largeout.distribute import Device, Plan, TableSpec, plan
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.row_estimator import device_load, row_load, row_owners, rows_held
from keras_largeout.planning.row_placement import water_fill
from keras_largeout.trees import Tree


def zipf(rows, power=1.1):
    return 1.0 / np.arange(1, rows + 1) ** power


@functools.cache
def tree():
    return trees.head_tail(zipf(50_000), head=128, clusters=32, arity=16)


def tables():
    head = {"tree": tree(), "ids_per_example": 20, "slots": 2}
    return [
        TableSpec("users", 400_000, 64, slots=2),
        TableSpec("items", 100_000, 64, row_slots=1, counts=zipf(100_000), ids_per_example=50),
        TableSpec("head", tree().num_rows, 300, counts=zipf(50_000), **head),
        TableSpec("bias", tree().num_rows, 1, slots=2, ids_per_example=20, like="head"),
        TableSpec("country", 200, 16, slots=2),
        TableSpec("wide", 500, 4096, slots=1),
        *(TableSpec(f"small {i}", 3_000 + 500 * i, 32, slots=1) for i in range(26)),
    ]


class Layer:
    """Stands for a layer that says which tables it has."""

    def table_specs(self):
        return tables()


@functools.cache
def planned(devices=8):
    return plan(tables(), devices, memory_per_device=1e9)


def by_hand(spec, placement, batch_size):
    """Expected requests of each device for each row, summed in a loop."""
    p = spec.counts / spec.counts.sum()
    n, devices = batch_size * spec.ids_per_example, placement.devices
    rows, moved = np.zeros(devices), np.zeros(devices)
    for i, owner in enumerate(placement.locate(np.arange(spec.rows))[0]):
        local, touched = 1 - (1 - p[i]) ** (n / devices), 1 - (1 - p[i]) ** n
        for d in range(devices):
            served = local if owner < 0 else devices * local * (owner == d)
            rows[d] += served
            moved[d] += served * spec.dim * (spec.itemsize + 4)
            if owner in (-1, d):
                moved[d] += devices * local * spec.dim * 4 + touched * 2 * spec.row_bytes
    return rows, moved


@pytest.mark.parametrize("dtype, slots, row_slots", [("float32", 0, 0), ("bfloat16", 2, 1)])
def test_expected_load_by_hand(dtype, slots, row_slots):
    spec = TableSpec("t", 60, 8, dtype, slots, row_slots, counts=zipf(60), ids_per_example=2.5)
    assert spec.row_bytes == 8 * ((2 if dtype == "bfloat16" else 4) + 4 * slots) + 4 * row_slots
    modulo = Placement.by_modulo(60, 3)
    for placement in (modulo, modulo.with_hot_rows([0, 4]), Placement.replicated(60, 3)):
        load = device_load(spec, placement, 16)
        rows, moved = by_hand(spec, placement, 16)
        assert np.allclose(load.rows, rows) and np.allclose(load.bytes, moved)
        assert np.array_equal(
            load.memory, [(placement.num_hot + n) * spec.row_bytes for n in placement.sizes]
        )
    columns = device_load(spec, Placement.by_columns(60, 8, 3), 16)
    whole = device_load(spec, Placement.on_device(60, 3, 1), 16)
    assert np.isclose(columns.bytes.sum(), whole.bytes[1]) and whole.bytes[0] == 0
    assert np.isclose(columns.memory.sum(), whole.memory.sum() + 2 * 60 * 4 * row_slots)
    assert np.isclose(columns.received.sum(), whole.received.sum())
    # Rows that are all alike need no array of the table's size.
    alike = TableSpec("t", 60, 8, dtype, slots, row_slots, ids_per_example=2.5)
    even = TableSpec("t", 60, 8, dtype, slots, row_slots, counts=np.ones(60), ids_per_example=2.5)
    assert row_load(alike, 3, 16).asked.shape == (1,)
    for placement in (modulo, modulo.with_hot_rows([0, 4]), Placement.by_columns(60, 8, 3)):
        ours, theirs = device_load(alike, placement, 16), device_load(even, placement, 16)
        assert np.allclose(ours.bytes, theirs.bytes) and np.allclose(ours.received, theirs.received)


def test_expected_rows_are_what_batches_show(rng):
    spec = TableSpec("t", 1000, 4, counts=zipf(1000), ids_per_example=3)
    placement = Placement.by_range(1000, 4).with_hot_rows(np.arange(5))
    p = spec.counts / spec.counts.sum()
    owners, seen = row_owners(placement), np.zeros(4)
    for _ in range(50):
        for replica in rng.choice(1000, (4, 240), p=p):
            seen += np.bincount(owners[np.unique(replica)] + 1, minlength=5)[1:]
            seen += np.sum(owners[np.unique(replica)] < 0) / 4
    assert np.allclose(seen / 50, device_load(spec, placement, 320).rows, rtol=0.03)


def test_what_goes_where():
    kinds = {name: placement.kind for name, placement in planned().placements.items()}
    assert kinds.pop("users") == kinds.pop("items") == "permutation"
    assert kinds.pop("head") == kinds.pop("bias") == "explicit"
    assert kinds.pop("country") == "replicated" and kinds.pop("wide") == "columns"
    small = [kinds[name] for name in kinds]
    assert small.count("table") + small.count("replicated") == 26 and "table" in small
    assert list(planned().placements) == [spec.name for spec in tables()]
    assert planned()["bias"].placement == planned()["head"].placement
    assert planned()["bias"].reason == "like head"
    with pytest.raises(KeyError, match="No table 'x'"):
        planned()["x"]


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_loads_are_even_and_add_up(devices):
    result = planned(devices)
    assert result.imbalance <= 1.10
    assert result.memory.max() <= 1.25 * result.memory.mean()
    assert np.allclose(result.memory, sum(t.expected.memory for t in result.tables))
    assert np.allclose(result.expected.memory, result.memory)
    seconds = result.expected.bytes / 4.8e12 + result.expected.flops / 67e12
    assert np.allclose(result.seconds, seconds)
    for table in result.tables:
        assert (table.placement.rows, table.placement.devices) == (table.spec.rows, devices)
        if devices == 1:
            assert table.placement.kind in ("table", "explicit") and table.expected.received.sum() == 0


def test_equal_arguments_equal_plans():
    again = plan([Layer()], 8, memory_per_device=1e9)
    assert again.placements == planned().placements and str(again) == str(planned())
    assert plan(Layer(), 8, memory_per_device=1e9).placements == planned().placements


def test_hot_rows_where_a_permutation_is_uneven():
    # Few rows are asked for in a step, and two of them always are on one device.
    counts = np.ones(50_000)
    crowd = np.flatnonzero(row_owners(Placement.by_permutation(50_000, 8)) == 3)[:40]
    counts[crowd] = 1e5
    spec = TableSpec("t", 50_000, 64, slots=2)
    result = plan([spec], 8, batch_size=512, counts={"t": counts})
    placement = result["t"].placement
    assert result.imbalance <= 1.05 and "a permutation alone has max/mean" in result["t"].reason
    assert placement.kind == "explicit" or np.isin(placement.hot, crowd).mean() > 0.9
    unaware = Plan(result.devices, plan([spec], 8).tables, 512)["t"].placement
    load = device_load(TableSpec("t", 50_000, 64, slots=2, counts=counts), unaware, 512)
    assert load.bytes.max() > 1.5 * load.bytes.mean()
    assert result.expected.bytes.max() < load.bytes.max()


def test_replicated_rows_are_named():
    named = planned().replicated
    assert set(named) >= {"head", "bias", "country"} and "users" not in named
    rows, why = named["country"]
    assert rows == 200 and "small" in why


def test_devices_that_differ():
    devices = [Device("a"), Device("b", bandwidth=9.6e12, flops=134e12), Device("c", memory=60_000_000)]
    result = plan(tables(), devices)
    load = result.expected
    assert load.bytes[1] > 1.5 * load.bytes[0] and result.memory[2] <= 60_000_000
    users = rows_held(result["users"].placement)
    assert users[1] > 1.5 * users[0]
    even = plan(tables(), devices[:2])
    # (The top of a tree costs both the same, whatever their speed.)
    assert even.imbalance <= 1.20 and even.expected.bytes[1] > 1.7 * even.expected.bytes[0]


def test_memory_decides_where_it_is_short():
    spec = TableSpec("t", 1_000_003, 32)
    result = plan([spec], [Device("a", 30_000_000), Device("b"), Device("c")])
    assert rows_held(result["t"].placement).tolist() == [234_375, 382_814, 382_814]
    assert result.memory[0] <= 30_000_000
    tight = plan([spec, TableSpec("u", 400_000, 16)], 4, memory_per_device=40_000_000)
    assert tight.memory.max() <= 40_000_000
    head = [spec for spec in tables() if spec.name in ("head", "bias")]
    needed = sum(spec.nbytes for spec in head)
    limits = [Device("a", int(needed * 0.1)), Device("b", needed), Device("c", needed)]
    result = plan(head, limits)
    assert result.memory[0] <= needed * 0.1


def test_what_does_not_fit_is_refused():
    spec = TableSpec("t", 1_000_000, 32, slots=1)
    with pytest.raises(
        ValueError, match=r"Table 't' does not fit: it misses 56,000,000 bytes. It takes 256,"
    ):
        plan([spec], 2, memory_per_device=100_000_000)
    with pytest.raises(
        ValueError, match=r"'b' would have to hold 128,000,000 and has 50,000,000 left of 50,"
    ):
        plan([spec], [Device("a", 200_000_000), Device("b", 50_000_000)])
    # Equal tables that fit only where each of them takes more of a device than is fair, and one too many.
    many = [TableSpec(f"t{i}", 50_000 * (1 + i % 3), 8) for i in range(20)]
    full = plan(many, 4, memory_per_device=15.65e6)
    assert full.memory.max() <= 15.65e6 and full.memory.sum() == sum(spec.nbytes for spec in many)
    with pytest.raises(ValueError, match=r"Table 't\d+' does not fit: it misses \d"):
        plan(many, 4, memory_per_device=15e6)
    with pytest.raises(ValueError, match="Table 'u' does not fit: it misses 28,"):
        plan([spec, TableSpec("u", 1_000_000, 16)], 2, memory_per_device=146_000_000)
    with pytest.raises(ValueError, match="Table 'head' does not fit"):
        plan([s for s in tables() if s.name == "head"], 2, memory_per_device=90_000_000)
    with pytest.raises(ValueError, match=r"does not fit 'a': its tables take 128,000,000 .* 28,000,000 more"):
        big = plan([spec], [Device("a"), Device("b")])
        Plan((Device("a", 100_000_000), Device("b")), big.tables, 1)


def test_sizes_follow_shares_and_room():
    assert water_fill(10, [1, 1, 2], [100, 100, 100]).tolist() == [3, 2, 5]
    assert water_fill(10, [1, 1, 2], [100, 100, 3]).tolist() == [4, 3, 3]
    assert water_fill(10, [1, 1, 1], [4, 4, 2]).tolist() == [4, 4, 2]
    with pytest.raises(ValueError, match="must be enough for 10 rows"):
        water_fill(10, [1, 1, 1], [4, 4, 1])
    assert water_fill(3, [1.0] * 8, [5] * 8).sum() == 3


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: TableSpec("t", 0, 4), "`rows` of table 't' must be an integer of at least 1.*rows=0"),
        (lambda: TableSpec("t", 4, 2.5), "`dim` of table 't'.*dim=2.5"),
        (lambda: TableSpec("t", 4, 4, slots=-1), "`slots` of table 't'"),
        (lambda: TableSpec("t", 4, 4, "float64"), "`dtype` of table 't' must be one of.*float64"),
        (lambda: TableSpec("t", 4, 4, ids_per_example=0), "`ids_per_example` of table 't' must be positive"),
        (lambda: TableSpec("t", 4, 4, counts=[1, 2]), r"numbers of shape \(4,\), one per row.*\(2,\)"),
        (lambda: TableSpec("t", 4, 4, counts=[0] * 4), "`counts` of table 't' must be finite"),
        (lambda: TableSpec("t", 4, 4, counts=[np.inf, 1, 1, 1]), "`counts` of table 't' must be finite"),
        (lambda: TableSpec("t", 9, 4, tree=Tree.from_children([0, 1])), "those of its tree, 2.*rows=9"),
        (lambda: Device("d", memory=0), "`memory` of device 'd' must be positive"),
        (lambda: Device("d", bandwidth=-1), "`bandwidth` of device 'd'"),
        (lambda: Device("d", within=0), "`within` of device 'd' must be positive. Received: within=0"),
        (lambda: Device("d", between=None), "`between` of device 'd' must be positive.*between=None"),
        (lambda: Device("d", host=-1), "`host` of device 'd' must be an integer of at least 0.*host=-1"),
        (lambda: Device("d", host=0.5), "`host` of device 'd' must be an integer.*host=0.5"),
        (lambda: plan([], 2), "`tables` must hold tables of different names"),
        (lambda: plan([TableSpec("t", 4, 4)] * 2, 2), r"different names. Received: \['t', 't'\]"),
        (lambda: plan(["t"], 2), "`tables` must hold TableSpecs.*'t'"),
        (lambda: plan([TableSpec("t", 4, 4)], 0), "`devices` must be a positive int"),
        (lambda: plan([TableSpec("t", 4, 4)], [1, 2]), "list of Devices"),
        (lambda: plan([TableSpec("t", 4, 4)], 4, hosts=3), "`hosts` must divide .*hosts=3, devices=4"),
        (lambda: plan([TableSpec("t", 4, 4)], 4, hosts=0), "`hosts` must be a positive int.*hosts=0"),
        (lambda: plan([TableSpec("t", 4, 4)], [Device("a")], hosts=2), "`hosts` must be 1 where .*hosts=2"),
        (lambda: plan([TableSpec("t", 4, 4)], [Device("a")] * 2), "`devices` must have different names"),
        (lambda: plan([TableSpec("t", 4, 4)], 2, counts={"u": [1]}), r"counts of \['u'\]"),
        (lambda: plan([TableSpec("t", 4, 4)], 2, counts={"t": [1]}), r"shape \(4,\)"),
        (lambda: plan([TableSpec("t", 4, 4)], 2, batch_size=0), "`batch_size` must be positive"),
        (lambda: plan([TableSpec("t", 4, 4, like="u")], 2), "`like` of table 't' must name.*like='u'"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_host_memory_takes_what_the_devices_have_no_room_for():
    """367 MB of tables, of which 300 fit: those go to the host of which a step uses least per byte."""
    specs = [
        TableSpec("cold", 400_000, 64),
        TableSpec("hot", 400_000, 64, ids_per_example=50),
        TableSpec("warm", 400_000, 64, ids_per_example=5),
        TableSpec("kernel", tree().num_rows, 300, tree=tree()),
        TableSpec("bias", tree().num_rows, 1, like="kernel"),
    ]
    with pytest.raises(ValueError, match="does not fit"):
        plan(specs, 2, memory_per_device=150e6)
    found = plan(specs, 2, memory_per_device=150e6, host_memory=1e9)
    assert found.storages == dict.fromkeys(("hot", "warm", "kernel", "bias"), "device") | {"cold": "host"}
    assert found.host_memory == 400_000 * 256
    assert found.memory.max() <= 150e6
    assert found["cold"].memory.max() == 0 and found["cold"].placement.devices == 2
    assert "on the host" in str(found)
    smaller = plan(specs, 2, memory_per_device=100e6, host_memory=1e9)
    assert [name for name, storage in smaller.storages.items() if storage == "host"] == ["cold", "warm"]
    # All fit: nothing moves.
    assert set(plan(specs, 2, memory_per_device=1e9, host_memory=1e9).storages.values()) == {"device"}
    with pytest.raises(ValueError, match="does not fit"):
        plan(specs, 2, memory_per_device=100e6, host_memory=110e6)
    with pytest.raises(ValueError, match=r"`host_memory` must be at least .* 102,400,000 bytes"):
        plan(TableSpec("cold", 400_000, 64, storage="host"), 2, host_memory=1e6)
    with pytest.raises(ValueError, match="`storage` of table 'cold' must be one of"):
        TableSpec("cold", 4, 64, storage="disk")
