"""Plans on paper: text, picture, and JSON that is edited and read back."""

import base64
import json
import sys
import zlib

import numpy as np
import pytest

from keras_largeout import trees
from keras_largeout.distribute import Device, Placement, Plan, TableSpec, plan
from keras_largeout.planning.tree_estimator import class_nodes, node_owners

TREE = trees.two_level(2500)


def tables():
    return [
        TableSpec("rows", 60_000, 8, slots=1),
        TableSpec("head", TREE.num_rows, 16, tree=TREE, slots=2),
        TableSpec("bias", TREE.num_rows, 1, slots=2, like="head"),
        TableSpec("tiny", 10, 4),
        TableSpec("wide", 64, 2048),
        TableSpec("one", 40_000, 8),
        TableSpec("two", 40_001, 8, dtype="bfloat16", row_slots=1, ids_per_example=3),
        *(TableSpec(f"few {i}", 30_000, 8) for i in range(8)),
    ]


@pytest.fixture
def saved(tmp_path):
    result = plan(tables(), 4, memory_per_device=12e6, batch_size=256, small=1000)
    path = tmp_path / "plan.json"
    result.save(path)
    return result, path


def edit(path, **changes):
    """Changes entries of tables in a file: `edit(path, rows={"kind": "range"})`."""
    content = json.loads(path.read_text())
    for name, entry in changes.items():
        content["tables"][name] |= entry
    path.write_text(json.dumps(content))


def test_there_and_back(saved):
    result, path = saved
    assert {t.placement.kind for t in result.tables} == {
        "replicated",
        "permutation",
        "explicit",
        "columns",
        "table",
    }
    again = Plan.load(path)
    assert again.placements == result.placements and str(again) == str(result)
    assert again.devices == result.devices and repr(again) == repr(result)
    assert again["two"].spec.row_bytes == result["two"].spec.row_bytes
    known = Plan.load(path, tables())
    assert known.placements == result.placements and str(known) == str(result)
    again.save(path)
    assert Plan.load(path).placements == result.placements
    for index in (0, 1):  # with hot rows, and explicit ones of a table without a tree
        spec = TableSpec("t", 4000, 16, slots=2)
        base = Placement.by_permutation(4000, 4)
        crowd = np.flatnonzero(base.locate(np.arange(4000))[0] == 1)[: [20, 1000][index]]
        counts = np.full(4000, 1e-3)
        counts[crowd] = 100
        uneven = plan([spec], 4, batch_size=64, counts={"t": counts}, small=0)
        assert uneven["t"].placement.hot is not None or uneven["t"].placement.kind == "explicit"
        uneven.save(path)
        assert Plan.load(path).placements == uneven.placements


def test_long_arrays_are_beside_the_editable_part(saved):
    content = json.loads(saved[1].read_text())
    assert set(content["arrays"]) == {"head/owners", "bias/owners"}
    assert content["computed"]["head"]["details"]["owners"] == "head/owners"
    assert content["tables"]["head"]["pin"] == {}
    assert max(map(len, saved[1].read_text().split('"arrays"')[0].split("\n"))) < 500
    assert "pin" in content["about"] and len(json.dumps(content["tables"])) < 10_000


def test_text(saved):
    result, _ = saved
    text = str(result)
    lines = text.split("\n")
    assert lines[0].startswith("15 tables on 4 devices, 256 examples per step: expected max/mean 1.")
    assert "head" in text and "like head" in text and "60,000" in text and "12 MB" in text
    assert lines[-1].startswith("max/mean") and all(line == line.rstrip() for line in lines)
    assert repr(result).startswith("Plan(15 tables on 4 devices, max/mean 1.")


def test_plot(saved, tmp_path, monkeypatch):
    result, path = saved
    pytest.importorskip("matplotlib")
    result.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes()[:4] == b"\x89PNG"
    many = plan([TableSpec(f"t{i}", 50_000, 8) for i in range(20)], [Device("a"), Device("b")])
    many.plot(tmp_path / "many.png")
    edit(path, rows={"kind": "range"})
    Plan.load(path).plot(tmp_path / "unknown.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        result.plot(tmp_path / "plan.png")


def test_edited_kinds(saved):
    result, path = saved
    one = (result["one"].placement.sizes.index(40_000) + 1) % 4
    edit(path, rows={"kind": "modulo"}, one={"device": one}, tiny={"kind": "table", "device": 2})
    edited = Plan.load(path)
    assert edited["rows"].placement.kind == "modulo" and edited["rows"].reason == "as edited"
    assert edited["one"].placement.sizes[one] == 40_000
    assert edited["tiny"].placement.sizes == (0, 0, 10, 0)
    assert edited["head"].placement == result["head"].placement
    # What was edited has to be computed again, for which the tables are needed; memory is known.
    assert edited["rows"].expected is None and edited["wide"].expected is not None
    assert edited.expected is None and edited.imbalance is None and edited.seconds is None
    assert "?" in str(edited) and "unknown" in repr(edited)
    assert np.isclose(edited.memory.sum(), result.memory.sum() - 3 * 10 * 16)
    known = Plan.load(path, tables())
    assert known.imbalance > 1 and known.memory.tolist() == edited.memory.tolist()
    edit(path, rows={"kind": "replicated"}, head={"kind": "replicated"}, wide={"kind": "range"})
    edited = Plan.load(path, tables())
    assert edited["head"].placement.num_hot == TREE.num_rows == edited["bias"].placement.num_hot


def test_pinned_rows(saved):
    result, path = saved
    pins = {"0-99": 3, "50": "device 1", "59999": "all"}
    edit(path, rows={"pin": pins}, one={"pin": {"7": 0}})
    edited = Plan.load(path, tables())
    owners = edited["rows"].placement.owners
    assert owners[49] == owners[99] == 3 and owners[50] == 1 and owners[59_999] == -1
    before = result["rows"].placement.locate(np.arange(100, 59_999))[0]
    assert np.array_equal(owners[100:59_999], before)
    assert edited["rows"].pins == pins and edited["one"].placement.owners[7] == 0
    again = path.with_name("again.json")
    edited.save(again)
    assert Plan.load(again).placements == edited.placements


def test_pinned_classes(saved):
    result, path = saved
    before = node_owners(TREE, result["head"].placement)
    node = int(class_nodes(TREE, 1234))
    device = (int(before[node]) + 1) % 4
    edit(path, head={"pin": {"1234": device}})
    edited = Plan.load(path, tables())
    after = node_owners(TREE, edited["head"].placement)
    assert after[node] == device and np.array_equal(np.flatnonzero(after != before), [node])
    assert edited["bias"].placement == edited["head"].placement
    with pytest.raises(ValueError, match=r"needs `tables`"):
        Plan.load(path)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"rows": {"kind": "best"}}, "`kind` of table 'rows' must be table or one of.*kind='best'"),
        ({"rows": {"kind": "explicit"}}, "explicit as it was saved"),
        ({"one": {"device": 4}}, r"`device` of table 'one' must be an index in \[0, 4\).*device=4"),
        ({"rows": {"kind": "table"}}, "device=None"),
        ({"head": {"kind": "modulo"}}, "a tree, must be explicit or replicated.*kind='modulo'"),
        ({"rows": {"pin": {"60000": 1}}}, "keys such as .* below 60000. Received: '60000'"),
        ({"rows": {"pin": {"9-3": 1}}}, "Received: '9-3'"),
        ({"rows": {"pin": {"first": 1}}}, "Received: 'first'"),
        (
            {"rows": {"pin": {"1": "gpu"}}},
            "must name a device, by index or name, or \"all\". Received: 'gpu'",
        ),
        ({"rows": {"pin": {"1": 4}}}, "Received: 4"),
        ({"wide": {"pin": {"1": 1}}}, "'wide' can't be pinned: it is sharded by columns"),
        ({"head": {"pin": {"0": "all"}}}, "classes 0-0 can't go to all"),
        (
            {"head": {"pin": {"2000": 1, "2001": 2}}},
            "one subtree with others that go to device 1. Received: device 2",
        ),
        ({"rows": {"rows": 59_999}}, "`rows` of table 'rows' is 59999 in the plan. Received: rows=60000"),
        ({"head": {"tree": "another"}}, "another tree of table 'head'"),
        ({"rows": {"kind": "table", "device": 0}, "one": {"device": 0}, "two": {"device": 0}}, None),
    ],
)
def test_edits_that_can_not_be(saved, change, message):
    _, path = saved
    edit(path, **change)
    if message is None:  # not more than fits
        Plan.load(path, tables())
        content = json.loads(path.read_text())
        content["devices"][0]["memory"] = 5_000_000
        path.write_text(json.dumps(content))
        message = "does not fit 'device 0': .* The largest there is 'rows', 3,840,000 bytes"
    with pytest.raises(ValueError, match=message):
        Plan.load(path, tables())


def test_arrays_have_at_most_a_number_for_each_row(saved):
    _, path = saved
    content = json.loads(path.read_text())
    (key, *_) = content["arrays"]
    long = base64.b64encode(zlib.compress(bytes(1 << 24))).decode()
    content["arrays"][key] = {"dtype": "int64", "zlib": long}
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="must have at most a number for each of"):
        Plan.load(path, tables())


def test_other_files_and_tables(saved, tmp_path):
    _, path = saved
    with pytest.raises(ValueError, match=r"`tables` must be those of the plan.*Received: \['rows'\]"):
        Plan.load(path, tables()[:1])
    (tmp_path / "other.json").write_text('{"version": 7}')
    with pytest.raises(ValueError, match=r"version 1. Received: .*other.json, version 7"):
        Plan.load(tmp_path / "other.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ValueError, match="version None"):
        Plan.load(tmp_path / "list.json")


def test_storage_is_kept_and_may_be_edited(tmp_path):
    path = tmp_path / "plan.json"
    specs = [TableSpec("a", 400_000, 64), TableSpec("b", 100_000, 64)]
    made = plan(specs, 2, memory_per_device=30e6, host_memory=1e9)
    made.save(path)
    read = Plan.load(path)
    assert read.storages == made.storages == {"a": "host", "b": "device"}
    assert str(read) == str(made)
    content = json.loads(path.read_text())
    content["tables"]["b"]["storage"] = "host"
    path.write_text(json.dumps(content))
    read = Plan.load(path)
    assert read.storages == {"a": "host", "b": "host"} and not read.memory.any()
    assert read["b"].expected is None and read["a"].expected is not None
    assert Plan.load(path, specs).storages == read.storages
    del content["tables"]["a"]["storage"], content["tables"]["b"]["storage"]  # of an earlier version
    for table in content["computed"].values():
        table["expected"] = None
    content["devices"][0]["memory"] = content["devices"][1]["memory"] = None
    path.write_text(json.dumps(content))
    assert set(Plan.load(path).storages.values()) == {"device"}
