"""Where the nodes of a tree go: whole subtrees, even loads, for every shape of tree."""

import functools

import numpy as np
import pytest

from keras_largeout import trees
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.tree_estimator import count_pairs, node_owners, tree_load
from keras_largeout.planning.tree_placement import HOW, cut_and_units, place_tree
from keras_largeout.trees import Tree


def zipf(classes, power=1.1):
    return 1.0 / np.arange(1, classes + 1) ** power


SHAPES = {
    "huffman": lambda c: trees.huffman(c, 8),
    "huffman, arity 2": lambda c: trees.huffman(c, 2),
    "two_level": trees.two_level,
    "two_level, ids": lambda c: trees.two_level(len(c)),
    "head_tail": trees.head_tail,
    "balanced": trees.balanced,
}


@functools.cache
def built(shape, classes=30_000):
    counts = zipf(classes)
    if shape.endswith("ids"):
        np.random.default_rng(0).shuffle(counts)
    return SHAPES[shape](counts), counts


def check(tree, placement, devices):
    """Closed upwards, subtrees whole, sizes enough; by a walk down the tree."""
    assert placement.kind == "explicit" and placement.rows == tree.num_rows
    assert placement.devices == devices
    owners = node_owners(tree, placement)
    assert owners[0] == -1
    for node in range(1, tree.num_nodes):
        above = owners[tree.node_parent[node]]
        assert above == -1 or owners[node] == above
    held = np.bincount(placement.owners[placement.owners >= 0], minlength=devices)
    assert np.all(held <= placement.sizes)
    cut, units, owner = cut_and_units(tree, placement)
    assert np.array_equal(cut, owners == -1) and np.array_equal(owner, owners[units])
    assert np.array_equal(units, [n for n in np.flatnonzero(~cut) if cut[tree.node_parent[n]]])
    return owners


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", SHAPES)
def test_subtrees_stay_whole(shape, how, devices):
    tree, counts = built(shape)
    placement = place_tree(tree, devices, counts, how)
    check(tree, placement, devices)
    assert placement == place_tree(tree, devices, counts, how)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_planned_load_is_even(shape, devices):
    tree, counts = built(shape)
    placement = place_tree(tree, devices, counts)
    imbalance = tree_load(tree, placement, counts).imbalance
    assert imbalance["pairs"] <= 1.05 and imbalance["flops"] <= 1.05 and imbalance["bytes"] <= 1.05
    assert imbalance["rows"] <= 1.10
    assert placement.num_hot <= 4096 + tree.node_sizes[0]


@pytest.mark.parametrize("shape, classes", [("two_level", 9_000_000), ("head_tail", 1_000_000)])
def test_planned_load_of_many_classes_is_even(shape, classes):
    counts = zipf(classes)
    tree = SHAPES[shape](counts)
    placement = place_tree(tree, 8, counts)
    load = tree_load(tree, placement, counts)
    assert max(load.imbalance.values()) <= 1.10
    assert max(placement.sizes) * 8 <= 1.10 * tree.num_rows
    assert placement.num_hot <= 0.01 * tree.num_rows
    contiguous = tree_load(tree, place_tree(tree, 8, counts, "range"), counts)
    assert contiguous.imbalance["pairs"] > 3
    targets = np.random.default_rng(0).choice(classes, 25_600, p=counts / counts.sum())
    own, shared = count_pairs(tree, placement, targets)
    pairs = own + shared / 8
    assert pairs.max() <= 1.05 * pairs.mean()


def test_contiguous_and_modulo():
    tree = trees.two_level(900, 30)
    owners = node_owners(tree, place_tree(tree, 4, how="range"))
    assert np.array_equal(owners[1:], np.sort(owners[1:]))
    assert sorted(np.bincount(owners[1:])) == [7, 7, 8, 8]
    owners = node_owners(tree, place_tree(tree, 4, how="modulo"))
    assert np.array_equal(owners[1:], np.arange(30) % 4)
    # A root of two is too few for four devices: the smallest cut that suffices is deeper.
    tree = trees.balanced(1024, 2)
    placement = place_tree(tree, 4, how="range")
    assert placement.num_hot == 30 and len(cut_and_units(tree, placement)[1]) == 16


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_equal_classes_are_spread(devices):
    tree = trees.two_level(9_000, 96)
    placement = place_tree(tree, devices, np.ones(9_000))
    owners = node_owners(tree, placement)[1:]
    for start in range(0, 96, devices):  # every device in every round
        assert np.array_equal(np.sort(owners[start : start + devices]), np.arange(devices))
    # So a batch that stays within one stretch of classes is spread as well.
    for first in range(0, 7_000, 500):
        own, _ = count_pairs(tree, placement, np.arange(first, first + 94 * 2 * devices))
        assert own.max() <= 1.5 * own.mean()


def test_expected_load_is_what_batches_show():
    tree, counts = built("head_tail")
    placement = place_tree(tree, 4, counts, "range")
    load = tree_load(tree, placement, counts, batch_tokens=50_000)
    targets = np.random.default_rng(0).choice(len(counts), 50_000, p=counts / counts.sum())
    own, shared = count_pairs(tree, placement, targets.reshape(100, 500))
    assert np.allclose(own + shared / 4, load.pairs, rtol=0.05)
    # One by one, along the paths.
    owners = node_owners(tree, placement)
    nodes = np.concatenate([tree.path(int(t))[0] for t in targets[:200]])
    expected = np.bincount(owners[nodes] + 1, minlength=5)
    own, shared = count_pairs(tree, placement, targets[:200])
    assert shared == expected[0] and np.array_equal(own, expected[1:])
    own, shared = count_pairs(tree, placement, np.zeros(0, np.int32))
    assert shared == 0 and not own.any()


def test_load_by_hand():
    # The root {0, 1, a, b}, a {2, 3}, b {4, 5, 6}.
    tree = Tree.from_children([0, 1, [2, 3], [4, 5, 6]])
    placement = Placement.explicit([-1] * 4 + [0] * 2 + [1] * 3, 2)
    counts = np.array([4, 0, 1, 1, 2, 0, 0])
    load = tree_load(tree, placement, counts, dim=10, batch_tokens=8)
    assert np.allclose(load.pairs, [4 + 2, 4 + 2])
    assert np.allclose(load.flops, [60 * (4 * 4 + 2 * 2), 60 * (4 * 4 + 2 * 3)])
    assert np.array_equal(load.rows, [6, 7])
    passed = 1 - 0.75**8
    assert np.allclose(load.bytes, [200 * (4 + 2 * passed), 200 * (4 + 3 * passed)])
    assert load.imbalance["rows"] == 7 / 6.5


@pytest.mark.parametrize("shape", SHAPES)
def test_trees_and_plans_have_one_cost_model(shape):
    """What `Tree.cost` and `head_tail` count is what the planner counts, on one device and without slots."""
    tree, counts = built(shape)
    cost = tree.cost(counts, dim=64, tokens=500)
    for how in HOW:
        load = tree_load(tree, place_tree(tree, 1, counts, how), counts, dim=64, batch_tokens=500)
        assert np.allclose(load.pairs, 500 * cost.nodes)
        assert np.allclose(load.flops, 2 * 500 * cost.multiply_adds)
        assert np.allclose(load.touched, cost.rows_touched)
        assert np.allclose(load.bytes, cost.bytes_touched)
        # A slot is read and written like the value itself: 8 of the 20 bytes again.
        slots = tree_load(tree, place_tree(tree, 1, counts, how), counts, 64, 500, slots=1)
        assert np.allclose(slots.bytes, 1.4 * cost.bytes_touched)


def test_room_for_a_rebalance():
    tree, counts = built("two_level")
    exact = place_tree(tree, 4, counts, sizes_slack=0)
    assert np.array_equal(exact.sizes, np.bincount(exact.owners[exact.owners >= 0], minlength=4))
    roomy = place_tree(tree, 4, counts, sizes_slack=0.25)
    assert np.array_equal(roomy.owners, exact.owners)
    assert min(roomy.sizes) >= 1.25 * sum(exact.sizes) / 4
    assert min(place_tree(tree, 4, counts, sizes_slack=1e-9).sizes) >= sum(exact.sizes) / 4 + 170


def test_devices_of_unequal_speed():
    tree, counts = built("two_level")
    placement = place_tree(tree, 3, counts, shares=[2, 1, 1])
    cut = cut_and_units(tree, placement)[0]
    below = [tree.num_rows - cut @ tree.node_sizes]
    held = np.bincount(placement.owners[placement.owners >= 0])
    assert np.allclose(held / below, [0.5, 0.25, 0.25], atol=0.03)


def test_small_trees():
    flat = Tree.from_children([0, 1, 2])
    for how in HOW:
        placement = place_tree(flat, 4, how=how)
        assert placement.num_hot == 3 and placement.sizes == (0, 0, 0, 0)
    chain = Tree.from_children([0, [1, [2, [3, 4]]]])
    for how in HOW:
        check(chain, place_tree(chain, 2, how=how), 2)
    check(chain, place_tree(chain, 8, np.array([0, 0, 0, 0, 1])), 8)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"how": "random"}, "`how` must be one of.*how='random'"),
        ({"counts": np.ones(5)}, r"`counts` must be numbers of shape \(100,\).*\(5,\)"),
        ({"counts": np.zeros(100)}, "`counts` must be finite, at least 0 and not all 0.*from 0 to 0"),
        ({"counts": np.full(100, np.nan)}, "`counts` must be finite"),
        ({"counts": -np.ones(100)}, "from -1"),
        ({"counts": np.array(["a"] * 100)}, "`counts` must be numbers"),
        ({"sizes_slack": -0.1}, "`sizes_slack` at least 0.*sizes_slack=-0.1"),
        ({"unit": 0}, "`unit` must be positive.*unit=0"),
        ({"devices": 0}, "`devices` must be a positive integer.*devices=0"),
        ({"shares": [1, 2, 3]}, r"`shares` must be 2 positive numbers.*\[1, 2, 3\]"),
        ({"shares": [1, 0]}, "`shares` must be 2 positive numbers"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(ValueError, match=message):
        place_tree(**{"tree": trees.two_level(100), "devices": 2, **change})


def test_placements_that_do_not_fit_a_tree():
    tree = Tree.from_children([0, 1, [2, 3, [4, 5]]])  # rows: root 0..2, a 3..5, b 6..7
    cases = [
        (Placement.explicit([-1] * 3 + [0] * 4, 2), "one of the tree's 8 rows"),
        (Placement.by_range(8, 2), "must be explicit"),
        (Placement.explicit([-1] * 3 + [0, 0, 1, 0, 0], 2), r"children of node 1 on devices \[0, 1\]"),
        (Placement.explicit([-1] * 3 + [0] * 3 + [1] * 2, 2), "node 2 on device 1, its parent on device 0"),
        (Placement.explicit([-1] * 3 + [0] * 3 + [-1] * 2, 2), "node 2 on device -1, its parent on device 0"),
        (Placement.explicit([0] * 8, 2), "node 0 on device 0"),
    ]
    for placement, message in cases:
        with pytest.raises(ValueError, match=message):
            cut_and_units(tree, placement)
    assert np.array_equal(node_owners(tree, Placement.replicated(8, 2)), [-1] * 3)
