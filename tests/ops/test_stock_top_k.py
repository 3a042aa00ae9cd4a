"""The top-k search in stock ops, against scoring every class in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from keras_largeout import trees
from keras_largeout.ops import export_mode
from keras_largeout.ops.top_k_in_chunks import top_k_in_chunks
from keras_largeout.ops.tree_softmax import stock_top_k
from keras_largeout.ops.tree_softmax.wrapper import TreeArrays
from keras_largeout.trees import Tree


def log_probs(tree, table, bias, hidden):
    """float64 `[queries, classes]` by the definition."""
    logits = hidden.astype(np.float64) @ table.astype(np.float64).T + bias
    total = np.zeros((len(hidden), tree.num_nodes))
    found = np.empty((len(hidden), tree.num_rows))
    for node in range(tree.num_nodes):
        rows = slice(tree.node_start[node], tree.node_start[node + 1])
        if node:
            total[:, node] = found[:, tree.node_row[node]]
        part = logits[:, rows]
        peak = part.max(1, keepdims=True)
        lse = peak + np.log(np.exp(part - peak).sum(1, keepdims=True))
        found[:, rows] = total[:, node, None] + part - lse
    return found[:, tree.class_row]


def random_tree(rng, classes, widest):
    """Nodes of very different sizes, classes and inner nodes mixed."""
    parents, class_parent, free = [-1], [], 0
    while len(class_parent) < classes:
        for _ in range(int(rng.integers(1, widest + 1))):
            if rng.random() < 0.3 or len(class_parent) == classes:
                parents.append(free)
            else:
                class_parent.append(free)
        free += 1
        if free == len(parents):
            parents.append(int(rng.integers(len(parents))))
    # Inner nodes left without children get one class each.
    class_parent += list(range(free, len(parents)))
    class_parent = np.array(class_parent)
    empty = np.setdiff1d(np.arange(len(parents)), np.concatenate([class_parent, parents[1:]]))
    return Tree.from_parents(np.concatenate([class_parent, empty]).astype(int), parents)


def problem(rng, tree, dim=5, spread=1.0, queries=4):
    table = (spread * rng.standard_normal((tree.num_rows, dim))).astype(np.float32)
    bias = rng.standard_normal(tree.num_rows).astype(np.float32)
    hidden = rng.standard_normal((queries, dim)).astype(np.float32)
    return table, bias, hidden


def run(tree, table, bias, hidden, k, graph=True):
    variables = TreeArrays(**{name: tf.Variable(a) for name, a in tree.arrays().items()})
    table, bias = tf.Variable(table), None if bias is None else tf.Variable(bias)

    def search(h):
        return stock_top_k.stock_top_k(h, table, bias, variables, k)

    if graph:
        search = tf.function(search, input_signature=[tf.TensorSpec([None, hidden.shape[1]])])
    scores, ids = search(tf.constant(hidden))
    assert scores.dtype == tf.float32 and ids.dtype == tf.int32
    return scores.numpy(), ids.numpy()


def check(tree, table, bias, hidden, k, **options):
    scores, ids = run(tree, table, bias, hidden, k, **options)
    truth = log_probs(tree, table, np.zeros(tree.num_rows) if bias is None else bias, hidden)
    assert scores.shape == ids.shape == (len(hidden), k)
    best = -np.sort(-truth, axis=1)[:, :k]
    np.testing.assert_allclose(scores, best, rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(np.take_along_axis(truth, ids, 1), best, rtol=1e-5, atol=2e-5)
    assert all(len(set(line)) == k for line in ids.tolist())


@pytest.fixture
def waves(monkeypatch):
    """The search in waves for small trees too, with no way out but to finish it."""
    monkeypatch.setattr(stock_top_k, "_DENSE_CLASSES", 0)
    monkeypatch.setattr(stock_top_k, "_LIMIT_SHARE", 1)
    monkeypatch.setattr(stock_top_k, "_WAVE_ROWS", 16)


TREES = {
    "head_tail": lambda: trees.head_tail(1 / np.arange(1, 3001), head=100, clusters=20, arity=7),
    "huffman": lambda: trees.huffman(1 / np.arange(1, 2001), 3),
    "two_level": lambda: trees.two_level(900),
    "balanced": lambda: trees.balanced(1111, 8),
    "ragged": lambda: random_tree(np.random.default_rng(11), 800, 40),
    "ragged narrow": lambda: random_tree(np.random.default_rng(12), 500, 4),
    "no leaves at the root": lambda: trees.head_tail(np.ones(700), head=0, clusters=20, arity=5),
    "one node": lambda: trees.balanced(60, 64),
    "chain": lambda: trees.huffman(1.7 ** np.arange(60), 2),
}


@pytest.mark.parametrize("name", TREES)
def test_waves_are_exact(name, waves, rng):
    tree = TREES[name]()
    table, bias, hidden = problem(rng, tree, queries=33)
    # Peaked, flat and constant distributions side by side.
    hidden *= np.resize([3.0, 1.0, 0.1, 0.0], 33)[:, None].astype(np.float32)
    check(tree, table, bias, hidden, k=5)


@pytest.mark.parametrize("name", TREES)
def test_dense_is_exact(name, rng):
    tree = TREES[name]()
    check(tree, *problem(rng, tree, queries=7), k=5)


def test_eager(waves, rng):
    tree = trees.huffman(1 / np.arange(1, 200), 8)
    check(tree, *problem(rng, tree, queries=1), k=1, graph=False)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
def test_random_trees(seed, waves):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, int(rng.integers(2, 400)), int(rng.integers(2, 60)))
    table, bias, hidden = problem(rng, tree, dim=int(rng.integers(1, 18)), queries=3)
    check(tree, table, bias, hidden, k=max(1, tree.num_classes // 9))
    check(tree, table, None, hidden, k=1)


@pytest.mark.parametrize("classes", [1, 2, 17])
def test_all_classes(classes, rng):
    tree = trees.balanced(classes, 3)
    check(tree, *problem(rng, tree), k=classes)
    check(tree, *problem(rng, tree), k=1)


def test_all_classes_of_a_large_tree(waves, rng):
    tree = trees.huffman(1 / np.arange(1, 501), 4)
    check(tree, *problem(rng, tree), k=500)


def test_no_queries(waves, rng):
    for tree in (TREES["huffman"](), TREES["one node"](), TREES["ragged"]()):
        scores, ids = run(tree, *problem(rng, tree, queries=0), k=3)
        assert scores.shape == ids.shape == (0, 3)


def test_flat_queries_fall_back_beside_peaked_ones(monkeypatch, rng):
    monkeypatch.setattr(stock_top_k, "_DENSE_CLASSES", 0)
    tree = trees.huffman(np.ones(60_000), 8)
    table, bias, hidden = problem(rng, tree, dim=3, spread=8.0, queries=6)
    bias[:] = 0
    hidden[::2] *= 1e-6
    check(tree, table, bias, hidden, k=4)


def test_more_queries_than_one_chunk(monkeypatch, waves, rng):
    monkeypatch.setattr(stock_top_k, "_QUERIES", 5)
    tree = TREES["head_tail"]()
    check(tree, *problem(rng, tree, queries=23), k=4)


@pytest.mark.parametrize("name", ["head_tail", "ragged", "one node"])
@pytest.mark.parametrize("dense", [True, False])
def test_nan_and_infinity_terminate(name, dense, monkeypatch, rng):
    if not dense:
        monkeypatch.setattr(stock_top_k, "_DENSE_CLASSES", 0)
    tree = TREES[name]()
    table, bias, hidden = problem(rng, tree)
    hidden[1, 2] = np.nan
    scores, ids = run(tree, table, bias, hidden, 5)
    assert np.isnan(scores[1]).all() and np.isfinite(scores[[0, 2, 3]]).all()
    assert ids.min() >= 0 and ids.max() < tree.num_classes
    table[3], bias[5] = np.inf, np.nan
    scores, ids = run(tree, table, bias, hidden, 5)
    assert ids.min() >= 0 and ids.max() < tree.num_classes and scores.shape == (4, 5)


def test_bfloat16_table(waves, rng):
    for name in ("head_tail", "ragged"):
        tree = TREES[name]()
        table, bias, hidden = problem(rng, tree)
        low = tf.cast(table, tf.bfloat16)
        scores, _ = run(tree, low, bias, hidden, 5)
        truth = log_probs(tree, tf.cast(low, tf.float32).numpy(), bias, hidden)
        np.testing.assert_allclose(scores, -np.sort(-truth, 1)[:, :5], rtol=1e-5, atol=2e-5)


def test_bfloat16_table_scored_densely(rng):
    tree = TREES["huffman"]()
    table, bias, hidden = problem(rng, tree)
    low = tf.cast(table, tf.bfloat16)
    scores, _ = run(tree, low, bias, hidden, 5)
    truth = log_probs(tree, tf.cast(low, tf.float32).numpy(), bias, hidden)
    np.testing.assert_allclose(scores, -np.sort(-truth, 1)[:, :5], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("k", [0, -1, 61])
def test_bad_k(k, rng):
    tree = TREES["one node"]()
    with pytest.raises(ValueError, match=rf"`k` must be in \[1, 60\].*Received: k={k}"):
        run(tree, *problem(rng, tree), k=k)


def test_only_stock_ops(rng):
    tree = TREES["ragged"]()
    assert not any(
        op.name.startswith("Largeout")
        for op in tf.function(
            lambda h: stock_top_k.stock_top_k(
                h, tf.zeros([tree.num_rows, 3]), None, TreeArrays(**tree.arrays()), 2
            )
        )
        .get_concrete_function(tf.TensorSpec([None, 3]))
        .graph.get_operations()
    )


def test_exporting_is_per_context():
    assert not export_mode.is_exporting()
    with export_mode.stock_ops():
        with export_mode.stock_ops():
            assert export_mode.is_exporting()
        assert export_mode.is_exporting()
    assert not export_mode.is_exporting()


@pytest.mark.parametrize("k", [1, 5, 64, 65, 300])
@pytest.mark.parametrize("step", [1000, 300, 128, 40])
def test_chunks_and_blocks_of_all_sizes(step, k, rng):
    """Ties go to the smaller id, NaN is last, and what is excluded after it."""
    logits = rng.integers(0, 40, (7, 1000)).astype("float32")
    logits[0, rng.permutation(1000)[:500]] = np.nan
    out = np.argwhere(rng.random((7, 1000)) < 0.3).astype("int32")
    out = np.concatenate([out, [[0, -1], [3, 1000]]]).astype("int32")  # no classes
    for excluded in (None, out):
        scores, ids, total = top_k_in_chunks(
            lambda rows: tf.gather(tf.constant(logits), rows, axis=1), 7, 1000, step, k, excluded
        )
        want = np.where(np.isnan(logits), np.finfo("float32").min, logits)
        np.testing.assert_allclose(total, np.log(np.exp(want).sum(1)), rtol=1e-6)
        if excluded is not None:
            want[tuple(out[:-2].T)] = -np.inf
        order = np.argsort(-want, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(ids, order)
        np.testing.assert_array_equal(scores, np.take_along_axis(want, order, 1))
