"""A rebalance: the same shards, other rows in them."""

import numpy as np
import pytest

from keras_largeout import trees
from keras_largeout.distribute import Device, Placement, Plan, TableSpec, plan
from keras_largeout.distribute.planning.replan import replan
from keras_largeout.distribute.planning.row_cost import device_load, row_owners
from keras_largeout.distribute.planning.tree_cost import class_nodes, count_pairs, node_owners, tree_load
from keras_largeout.distribute.planning.tree_placement import cut_and_units, place_tree


def zipf(rows, power=1.1):
    return 1.0 / np.arange(1, rows + 1) ** power


def rows_busy(placement, counts, batch_size):
    load = device_load(TableSpec("t", placement.rows, 300, counts=counts), placement, batch_size)
    return load.bytes.max() / load.bytes.mean()


@pytest.mark.parametrize(
    "old",
    [
        Placement.by_range(40_000, 8),
        Placement.by_permutation(40_003, 8),
        Placement.by_modulo(40_001, 8).with_hot_rows(np.arange(0, 400, 3)),
        Placement.explicit(np.arange(40_000) % 9 - 1, 8, sizes=(5000,) * 8),
    ],
    ids=lambda placement: placement.kind,
)
def test_rows(old):
    owners = row_owners(old)
    counts = np.where(owners == 2, 1.0, 1e-9)  # all the load on one device
    new = replan(old, counts, batch_size=4000)
    assert new.kind == "explicit" and new.sizes == old.sizes and new.num_hot == old.num_hot
    assert np.array_equal(new.owners < 0, owners < 0)
    assert rows_busy(old, counts, 4000) > 4 and rows_busy(new, counts, 4000) <= 1.05
    assert np.mean(new.owners != owners) < 0.30
    # Nothing new, nothing moves.
    assert np.mean(replan(new, counts, batch_size=4000).owners != new.owners) < 0.02


def test_rows_that_have_no_choice():
    for old in (Placement.replicated(10, 2), Placement.by_columns(10, 4, 2), Placement.on_device(10, 2, 0)):
        assert replan(old, np.ones(10)) is old


@pytest.mark.parametrize("shape", [trees.two_level, trees.head_tail, trees.huffman])
def test_subtrees(shape):
    counts = zipf(100_000)
    tree = shape(counts)
    old = place_tree(tree, 8, counts)
    cut, units, _ = cut_and_units(tree, old)
    counts = counts * np.random.default_rng(0).lognormal(0, 1, 100_000)
    new = replan(old, counts, tree)
    assert new.sizes == old.sizes and np.array_equal(new.owners < 0, old.owners < 0)
    again, same, _ = cut_and_units(tree, new)
    assert np.array_equal(again, cut) and np.array_equal(same, units)
    before, after = (tree_load(tree, placement, counts).imbalance for placement in (old, new))
    assert after["pairs"] <= 1.05 and after["bytes"] <= 1.05 and after["pairs"] <= before["pairs"]
    assert np.mean(replan(new, counts, tree).owners != new.owners) < 0.05


def test_all_targets_in_the_classes_of_one_device():
    """The worst case: before, one device computes everything below the root."""
    counts = zipf(1_000_000)
    tree = trees.two_level(counts)
    old = place_tree(tree, 8, counts)
    owners = node_owners(tree, old)[class_nodes(tree, np.arange(1_000_000))]
    rng = np.random.default_rng(0)
    for one in (np.where(owners == 3, counts, 0), np.where(owners == 3, 1.0, 0)):
        new = replan(old, one, tree)
        targets = rng.choice(1_000_000, 40_000, p=one / one.sum())
        own, shared = count_pairs(tree, old, targets)
        assert own.max() == own.sum()
        own, shared = count_pairs(tree, new, targets)
        pairs = own + shared / 8
        assert pairs.max() <= 1.25 * pairs.mean()
        assert np.mean(new.owners != old.owners) < 0.25


def test_what_is_kept():
    keep = np.zeros(1000, bool)
    keep[::3] = True
    old = Placement.by_range(1000, 4)
    new = replan(old, zipf(1000), batch_size=200, keep=keep)
    assert np.array_equal(new.owners[keep], row_owners(old)[keep])
    assert rows_busy(new, zipf(1000), 200) < rows_busy(old, zipf(1000), 200)
    counts = zipf(10_000)
    tree = trees.two_level(counts)
    old = place_tree(tree, 4, counts, "range")
    new = replan(old, counts, tree, keep=np.arange(10_000) >= 7_000)
    nodes = class_nodes(tree, np.arange(7_000, 10_000))
    assert np.array_equal(node_owners(tree, new)[nodes], node_owners(tree, old)[nodes])
    assert tree_load(tree, new, counts).imbalance["pairs"] < tree_load(tree, old, counts).imbalance["pairs"]


def test_devices_of_unequal_speed():
    old = Placement.explicit(np.arange(3000) % 3, 3, sizes=(2000,) * 3)
    new = replan(old, np.ones(3000), batch_size=10, shares=[2, 1, 1])
    assert np.allclose(np.bincount(new.owners), [1500, 750, 750], atol=40)


def test_plans(tmp_path):
    counts = zipf(20_000)
    tree = trees.two_level(counts)
    tables = [
        TableSpec("t", 50_000, 16, slots=1),
        TableSpec("head", tree.num_rows, 32, tree=tree, counts=counts),
        TableSpec("bias", tree.num_rows, 1, like="head"),
        TableSpec("tiny", 10, 4),
    ]
    old = plan(tables, [Device("a"), Device("b")], batch_size=512)
    news = {"t": zipf(50_000)[::-1], "head": counts * np.random.default_rng(0).lognormal(0, 1, 20_000)}
    new = replan(old, news)
    assert list(new.placements) == list(old.placements) and new.devices == old.devices
    assert new["tiny"] is old["tiny"] and new["bias"].placement is new["head"].placement
    for name in ("t", "head", "bias"):
        assert new[name].placement.sizes == old[name].placement.sizes
        assert new[name].reason == "rebalanced for new counts"
    assert new.imbalance <= 1.05
    new.save(tmp_path / "new.json")
    assert Plan.load(tmp_path / "new.json").placements == new.placements
    # Rows that a person has pinned stay.
    text = (tmp_path / "new.json").read_text().replace('"pin": {}', '"pin": {"0-9": 1}', 1)
    (tmp_path / "new.json").write_text(text)
    pinned = replan(Plan.load(tmp_path / "new.json", tables), {"t": zipf(50_000)})
    assert np.all(pinned["t"].placement.owners[:10] == 1) and pinned["t"].pins
    with pytest.raises(ValueError, match=r"counts of \['bias'\]"):
        replan(old, {"bias": counts})


def test_refusals():
    counts = zipf(900)
    tree = trees.two_level(900)
    tight = place_tree(tree, 4, sizes_slack=0, how="range")
    assert replan(tight, counts, tree).sizes == tight.sizes  # equal subtrees change places
    uneven = trees.Tree.from_parents(np.repeat([1, 2, 3], [50, 40, 30]), [-1, 0, 0, 0])
    owners = np.repeat([-1, 0, 1, 1], uneven.node_sizes)
    full = Placement.explicit(owners, 2, sizes=(70, 70))
    moved = np.repeat([1e-6, 1.0, 1.0], [50, 40, 30])
    with pytest.raises(
        ValueError, match=r"are too small for a rebalance.*A unit of 50 rows fits on no device"
    ):
        replan(full, moved, uneven)
    with pytest.raises(ValueError, match=r"`counts` .* shape \(900,\)"):
        replan(tight, np.ones(930), tree)
    with pytest.raises(ValueError, match=r"`counts` .* shape \(10,\)"):
        replan(Placement.by_range(10, 2), np.ones(9))
