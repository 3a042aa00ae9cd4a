"""The tree softmax ops: equal to their references, for trees of every shape, touched rows only."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from ops._products import in_bfloat16

from keras_largeout import trees
from keras_largeout.ops.tree_softmax import wrapper as ts

BFLOAT16 = ml_dtypes.bfloat16


def random_tree(rng, classes, widest=600):
    """Irregular: nodes of 1 to `widest` children, leaves at any depth."""
    left = list(rng.permutation(classes).tolist())

    def grow(ids, depth):
        if len(ids) <= 1 or depth == 6 or rng.random() < 0.1:
            return ids
        parts = min(len(ids), int(rng.integers(1, widest if rng.random() < 0.3 else 9)))
        cuts = np.sort(rng.choice(len(ids) - 1, parts - 1, replace=False) + 1).tolist() if parts > 1 else []
        pieces = [ids[a:b] for a, b in zip([0] + cuts, cuts + [len(ids)])]
        return [p[0] if len(p) == 1 and rng.random() < 0.8 else grow(p, depth + 1) for p in pieces]

    return trees.Tree.from_children(grow(left, 0))


class Problem:
    def __init__(self, rng, tree, dim, tokens, dtype=np.float32, bias=True, weights=True, hidden_dtype=None):
        self.tree, self.numpy = tree, ts.TreeArrays(*tree.arrays().values())
        self.arrays = ts.TreeArrays(*(tf.constant(a) for a in self.numpy))
        rows = tree.num_rows
        self.hidden = rng.normal(size=(tokens, dim)).astype(hidden_dtype or np.float32)
        self.table = (rng.normal(size=(rows, dim)) / np.sqrt(dim)).astype(dtype)
        self.bias = rng.normal(size=rows).astype(np.float32) if bias else None
        self.targets = rng.integers(0, tree.num_classes, tokens)
        self.targets[: tokens // 2] %= 3  # many tokens on few classes
        self.weights = None
        self.grad_loss = rng.normal(size=tokens).astype(np.float32)
        if weights:
            self.weights = rng.normal(size=tokens).astype(np.float32) * (rng.random(tokens) < 0.7)
            self.targets[self.weights == 0] = -1  # never looked at

    def run(self, graph=False, targets_dtype=np.int32, make=tf.Variable, **options):
        table = make(self.table)
        bias = None if self.bias is None else make(self.bias)
        hidden = tf.constant(self.hidden)
        weights = None if self.weights is None else tf.constant(self.weights)
        sources = [x for x in (hidden, table, bias, weights) if x is not None]

        def step():
            with tf.GradientTape() as tape:
                tape.watch([x for x in sources if not isinstance(x, tf.Variable)])
                targets = self.targets.astype(targets_dtype)
                loss = ts.tree_softmax_loss(hidden, targets, table, bias, self.arrays, weights, **options)
            return loss, tape.gradient(loss, sources, self.grad_loss)

        loss, grads = (tf.function(step) if graph else step)()
        grads = iter(grads)
        named = {"hidden": next(grads).numpy(), "table": next(grads)}
        named["bias"] = None if bias is None else next(grads)
        named["weights"] = None if weights is None else next(grads).numpy()
        return loss.numpy(), named

    def check(self, device="cpu", **options):
        # On GPUs those of the kernel's own test: tensor cores take bfloat16 tables.
        tolerance = 3e-6 if device == "cpu" else 5e-5 if self.table.dtype == BFLOAT16 else 5e-6
        of_gradients, of_size = 20 * tolerance, 0
        if in_bfloat16(self.hidden, device):
            of_gradients = of_size = 2e-2  # of wide nodes
            if self.table.dtype != BFLOAT16:
                tolerance = 1e-2
        loss, got = self.run(**options)
        want_loss, want = ts.tree_softmax_reference(
            self.hidden, self.targets, self.table, self.bias, self.numpy, self.weights, self.grad_loss
        )
        np.testing.assert_allclose(loss, want_loss, rtol=tolerance, atol=tolerance)
        rows = want["rows"]
        for name in ("table", "bias"):
            if got[name] is None:
                continue
            assert isinstance(got[name], tf.IndexedSlices)
            np.testing.assert_array_equal(got[name].indices, rows)
            np.testing.assert_array_equal(got[name].dense_shape, want[name].shape)
            np.testing.assert_allclose(
                got[name].values.numpy().astype(np.float64),
                want[name][rows],
                rtol=8e-3 if got[name].dtype == tf.bfloat16 else of_size,
                atol=of_gradients,
            )
        rough = 8e-3 if got["hidden"].dtype == BFLOAT16 else 0
        np.testing.assert_allclose(
            got["hidden"].astype(np.float64), want["hidden"], rtol=rough, atol=of_gradients
        )
        if self.weights is not None:
            rtol = max(1e-5, of_size)
            np.testing.assert_allclose(got["weights"], want["weights"], rtol=rtol, atol=of_gradients)


@pytest.mark.parametrize("dim", [17, 64])
@pytest.mark.parametrize("classes", [1, 123, 507])
def test_equals_reference(rng, device, dim, classes):
    for tokens in (1, 252):
        Problem(rng, random_tree(rng, classes), dim, tokens, bias=dim != 17, weights=classes != 123).check(
            device
        )


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
@pytest.mark.parametrize("hidden_dtype", [np.float32, BFLOAT16])
def test_types(rng, device, dtype, hidden_dtype):
    problem = Problem(rng, random_tree(rng, 130), 33, 60, dtype, hidden_dtype=hidden_dtype, weights=False)
    for targets_dtype in (np.int32, np.int64, np.uint8):
        for graph in (False, True):
            problem.check(device, targets_dtype=targets_dtype, graph=graph)


@pytest.mark.parametrize("max_saved_bytes", [0, 20000, 1 << 28])
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_probabilities_saved_or_not(rng, device, max_saved_bytes, dtype):
    for tree in (trees.two_level(600, 3), trees.huffman(1 / np.arange(1, 508), 2), random_tree(rng, 507)):
        Problem(rng, tree, 40, 301, dtype).check(device, max_saved_bytes=max_saved_bytes)


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
@pytest.mark.parametrize("bias", [False, True])
def test_tables_may_be_tensors(rng, device, dtype, bias):
    problem = Problem(rng, random_tree(rng, 130), 33, 60, dtype, bias=bias)
    for graph in (False, True):
        problem.check(device, graph=graph, make=tf.constant)
        of_variables, of_tensors = problem.run(graph=graph), problem.run(graph=graph, make=tf.constant)
        same = np.testing.assert_array_equal
        tf.nest.map_structure(same, of_variables, of_tensors, expand_composites=True)


def test_error_is_that_of_the_framework(rng):
    """Against float64, one node over all classes: not worse than TensorFlow's own cross-entropy."""
    problem = Problem(rng, trees.balanced(507, 507), 304, 252, weights=False)
    want, _ = ts.tree_softmax_reference(
        problem.hidden, problem.targets, problem.table, problem.bias, problem.numpy
    )
    loss, _ = problem.run()
    logits = tf.constant(problem.hidden) @ tf.transpose(tf.constant(problem.table)) + problem.bias
    rows = problem.tree.class_row[problem.targets]
    stock = tf.nn.sparse_softmax_cross_entropy_with_logits(rows, logits).numpy()
    ours, theirs = np.abs(loss - want), np.abs(stock - want)
    assert ours.max() <= 2 * theirs.max() + 1e-7 and ours.mean() <= 2 * theirs.mean() + 1e-8


def test_gradient_is_that_of_the_loss(rng):
    """Central differences of the loss itself."""
    problem = Problem(rng, random_tree(rng, 30, 8), 5, 7, weights=False)
    table, bias = tf.Variable(problem.table), tf.Variable(problem.bias)

    def loss(hidden):
        return ts.tree_softmax_loss(hidden, problem.targets, table, bias, problem.arrays)

    theory, numeric = tf.test.compute_gradient(loss, [tf.constant(problem.hidden)], delta=1e-2)
    np.testing.assert_allclose(theory[0], numeric[0], atol=2e-3)


def test_empty_batch(rng, device):
    problem = Problem(rng, trees.two_level(20), 6, 0, weights=False)
    loss, grads = problem.run()
    assert loss.shape == (0,) and grads["hidden"].shape == (0, 6) and grads["table"].values.shape == (0, 6)
    problem = Problem(rng, trees.two_level(20), 6, 4)
    problem.weights[:] = 0
    loss, grads = problem.run()
    assert not loss.any() and not grads["hidden"].any() and grads["table"].values.shape == (0, 6)


def test_row_gradients_outlive_the_next_step(rng):
    """The op hands out kept memory again only when nobody holds it."""
    first, second = (Problem(rng, trees.huffman(np.ones(50), 4), 8, 30, weights=False) for _ in range(2))
    held = first.run()[1]["table"].values
    before = held.numpy().copy()
    for _ in range(3):
        second.run()
    np.testing.assert_array_equal(held.numpy(), before)


def test_nan_stays_with_its_token(rng, device):
    problem = Problem(rng, random_tree(rng, 100), 9, 20, weights=False)
    problem.hidden[3, 2] = np.nan
    loss, grads = problem.run()
    assert np.isnan(loss[3]) and np.isfinite(np.delete(loss, 3)).all()
    assert np.isfinite(np.delete(grads["hidden"], 3, 0)).all()
    log_probs, ids = top_k(problem, 5)
    assert np.isnan(log_probs[3]).all() and np.isfinite(np.delete(log_probs, 3, 0)).all()
    assert (ids >= 0).all() and (ids < 100).all()


def top_k(problem, k, **options):
    bias = None if problem.bias is None else tf.Variable(problem.bias)
    result = ts.tree_softmax_top_k(
        problem.hidden, tf.Variable(problem.table), bias, problem.arrays, k, **options
    )
    return [x.numpy() for x in result]


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
@pytest.mark.parametrize("k", [0, 1, 10])
def test_top_k_is_exact(rng, device, dtype, k):
    for tokens in (0, 1, 57):
        check_top_k(rng, dtype, k, tokens, device)


def check_top_k(rng, dtype, k, tokens, device):
    problem = Problem(rng, random_tree(rng, 123), 17, tokens, dtype, bias=k != 10, weights=False)
    # All classes in the order of their float64 scores.
    want, want_ids = ts.tree_top_k_reference(problem.hidden, problem.table, problem.bias, problem.numpy, 123)
    log_probs, ids = top_k(problem, k, dtype=tf.int64 if k == 1 else tf.int32)
    assert ids.dtype == (np.int64 if k == 1 else np.int32) and ids.shape == (tokens, k)
    tolerance = {"rtol": 3e-6, "atol": 3e-6} if device == "cpu" else {"rtol": 3e-5, "atol": 3e-5}
    np.testing.assert_allclose(log_probs, want[:, :k], **tolerance)
    # The score is that of the class, and no class comes twice: rounding may only exchange neighbours.
    scores = np.empty_like(want)
    np.put_along_axis(scores, want_ids, want, 1)
    np.testing.assert_allclose(log_probs, np.take_along_axis(scores, ids.astype(np.int64), 1), **tolerance)
    assert all(len(set(row)) == k for row in ids.tolist())
    gaps = np.pad(-np.diff(want, axis=1), ((0, 0), (1, 1)), constant_values=np.inf)
    clear = np.minimum(gaps[:, :-1], gaps[:, 1:]) > 2 * tolerance["atol"] * (1 + np.abs(want))
    assert not tokens or clear.mean() > 0.9
    np.testing.assert_array_equal(ids[clear[:, :k]], want_ids[:, :k][clear[:, :k]])
    if ids.size:  # the loss says the same of the classes found
        problem.hidden, problem.targets = np.repeat(problem.hidden, k, 0), ids.reshape(-1)
        problem.grad_loss = np.ones(tokens * k, np.float32)
        np.testing.assert_allclose(problem.run()[0], -log_probs.reshape(-1), **tolerance)


def test_top_k_ties_by_smaller_id(rng):
    classes = np.arange(64).reshape(8, 8)
    for children in (classes, classes[::-1, ::-1]):  # in either order of the tree
        tree = trees.Tree.from_children(children.tolist())
        problem = Problem(rng, tree, 4, 3, bias=False, weights=False)
        problem.table[:] = 0
        np.testing.assert_array_equal(top_k(problem, 9)[1], np.tile(np.arange(9), (3, 1)))
