"""A rebalance: the same shards, other rows in them."""

import numpy as np
import pytest

from keras_largeout import trees
from keras_largeout.distribute import Placement
from keras_largeout.planning.repacking import spread_rows, spread_subtrees
from keras_largeout.planning.row_estimator import row_owners
from keras_largeout.planning.tree_estimator import class_nodes, count_pairs, node_owners, tree_load
from keras_largeout.planning.tree_placement import cut_and_units, place_tree
from keras_largeout.trees.parts import split_tree


def zipf(rows, power=1.1):
    return 1.0 / np.arange(1, rows + 1) ** power


def repacked(tree, old, counts, prior=None):
    """`spread_subtrees` of `old`, where classes were targets in proportion to `counts`."""
    leaf_of_class = split_tree(tree, node_owners(tree, old), old.devices).top_class
    targets = np.bincount(leaf_of_class, counts)
    return spread_subtrees(old, tree, targets, leaf_of_class, counts if prior is None else prior, dim=300)


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
    lookups = np.where(owners == 2, 1.0, 1e-9)  # all the load on one device
    new, work = spread_rows(old, lookups)
    assert new.kind == "explicit" and new.sizes == old.sizes and new.num_hot == old.num_hot
    assert np.array_equal(new.owners < 0, owners < 0)
    assert np.allclose(work, np.bincount(new.owners + 1, lookups, 9)[1:])
    assert work.max() <= 1.05 * work.mean()
    # Nothing new, nothing moves.
    again, _ = spread_rows(new, lookups)
    assert again == new


def test_rows_that_have_no_choice():
    for old in (Placement.replicated(10, 2), Placement.by_columns(10, 4, 2), Placement.on_device(10, 2, 0)):
        new, work = spread_rows(old, np.ones(10))
        assert new is old and np.array_equal(work, [1, 1])


def test_equal_rows_go_to_the_devices_in_turn():
    new, work = spread_rows(Placement.by_range(4000, 8), np.ones(4000))
    assert np.array_equal(work, [500] * 8)
    for start in range(0, 4000, 8):
        assert len(np.unique(new.owners[start : start + 8])) == 8


@pytest.mark.parametrize("shape", [trees.two_level, trees.head_tail, trees.huffman])
def test_subtrees(shape):
    counts = zipf(100_000)
    tree = shape(counts)
    old = place_tree(tree, 8, counts)
    cut, units, _ = cut_and_units(tree, old)
    counts = counts * np.random.default_rng(0).lognormal(0, 1, 100_000)
    new, work = repacked(tree, old, counts)
    assert new.sizes == old.sizes and np.array_equal(new.owners < 0, old.owners < 0)
    again, same, _ = cut_and_units(tree, new)
    assert np.array_equal(again, cut) and np.array_equal(same, units)
    before, after = (tree_load(tree, placement, counts).imbalance for placement in (old, new))
    assert after["pairs"] <= 1.05 and after["bytes"] <= 1.05 and after["pairs"] <= before["pairs"]
    # The work is in pairs of the targets that were measured.
    assert np.allclose(work, tree_load(tree, new, counts, batch_tokens=counts.sum()).pairs)
    assert repacked(tree, new, counts)[0] == new


def test_all_targets_in_the_classes_of_one_device():
    """The worst case: before, one device computes everything below the root."""
    counts = zipf(1_000_000)
    tree = trees.two_level(counts)
    old = place_tree(tree, 8, counts)
    owners = node_owners(tree, old)[class_nodes(tree, np.arange(1_000_000))]
    rng = np.random.default_rng(0)
    for one in (np.where(owners == 3, counts, 0), np.where(owners == 3, 1.0, 0)):
        new, _ = repacked(tree, old, one, prior=counts)
        targets = rng.choice(1_000_000, 40_000, p=one / one.sum())
        own, shared = count_pairs(tree, old, targets)
        assert own.max() == own.sum()
        own, shared = count_pairs(tree, new, targets)
        pairs = own + shared / 8
        assert pairs.max() <= 1.25 * pairs.mean()


def test_refusals():
    counts = zipf(900)
    tree = trees.two_level(900)
    tight = place_tree(tree, 4, sizes_slack=0, how="range")
    assert repacked(tree, tight, counts)[0].sizes == tight.sizes  # equal subtrees change places
    uneven = trees.Tree.from_parents(np.repeat([1, 2, 3], [50, 40, 30]), [-1, 0, 0, 0])
    owners = np.repeat([-1, 0, 1, 1], uneven.node_sizes)
    full = Placement.explicit(owners, 2, sizes=(70, 70))
    moved = np.repeat([1e-6, 1.0, 1.0], [50, 40, 30])
    with pytest.raises(
        ValueError, match=r"are too small for a rebalance.*A unit of 50 rows fits on no device"
    ):
        repacked(uneven, full, moved)
    with pytest.raises(ValueError, match=r"`counts` .* shape \(900,\)"):
        repacked(tree, tight, np.ones(900), prior=np.ones(930))
