"""The tree softmax ops: equal to their references, strict about their input, touched rows only."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from keras_largeout import trees
from keras_largeout.ops import tree_softmax as ts
from keras_largeout.ops._library import ops

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

    def run(self, graph=False, targets_dtype=np.int32, **options):
        table = tf.Variable(self.table)
        bias = None if self.bias is None else tf.Variable(self.bias)
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

    def check(self, tolerance=3e-6, **options):
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
                rtol=8e-3 if got[name].dtype == tf.bfloat16 else 0,
                atol=20 * tolerance,
            )
        rough = 8e-3 if got["hidden"].dtype == BFLOAT16 else 0
        np.testing.assert_allclose(
            got["hidden"].astype(np.float64), want["hidden"], rtol=rough, atol=20 * tolerance
        )
        if self.weights is not None:
            np.testing.assert_allclose(got["weights"], want["weights"], rtol=1e-5, atol=20 * tolerance)


@pytest.mark.parametrize("dim", [1, 3, 17, 64, 304])
@pytest.mark.parametrize("classes", [1, 2, 123, 507])
@pytest.mark.parametrize("tokens", [1, 252])
def test_equals_reference(rng, dim, classes, tokens):
    Problem(rng, random_tree(rng, classes), dim, tokens, bias=dim != 17, weights=classes != 123).check()


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
@pytest.mark.parametrize("hidden_dtype", [np.float32, BFLOAT16])
@pytest.mark.parametrize("targets_dtype", [np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("graph", [False, True])
def test_types(rng, dtype, hidden_dtype, targets_dtype, graph):
    problem = Problem(rng, random_tree(rng, 130), 33, 60, dtype, hidden_dtype=hidden_dtype, weights=False)
    problem.check(targets_dtype=targets_dtype, graph=graph)


@pytest.mark.parametrize("max_saved_bytes", [0, 20000, 1 << 28])
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_probabilities_saved_or_not(rng, max_saved_bytes, dtype):
    for tree in (trees.two_level(600, 3), trees.huffman(1 / np.arange(1, 508), 2), random_tree(rng, 507)):
        Problem(rng, tree, 40, 301, dtype).check(max_saved_bytes=max_saved_bytes)


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


def test_empty_batch(rng):
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


def test_nan_stays_with_its_token(rng):
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
@pytest.mark.parametrize("k", [0, 1, 10, 123])
@pytest.mark.parametrize("tokens", [0, 1, 57])
def test_top_k_is_exact(rng, dtype, k, tokens):
    problem = Problem(rng, random_tree(rng, 123), 17, tokens, dtype, bias=k != 10, weights=False)
    want, want_ids = ts.tree_top_k_reference(problem.hidden, problem.table, problem.bias, problem.numpy, k)
    log_probs, ids = top_k(problem, k, dtype=tf.int64 if k == 1 else tf.int32)
    assert ids.dtype == (np.int64 if k == 1 else np.int32)
    np.testing.assert_allclose(log_probs, want, rtol=3e-6, atol=3e-6)
    assert (ids == want_ids).mean() > 0.98 if ids.size else ids.shape == (tokens, k)
    if ids.size:  # the loss says the same of the classes found
        problem.hidden, problem.targets = np.repeat(problem.hidden, k, 0), ids.reshape(-1)
        problem.grad_loss = np.ones(tokens * k, np.float32)
        np.testing.assert_allclose(problem.run()[0], -log_probs.reshape(-1), rtol=3e-6, atol=3e-6)


def test_top_k_ties_by_smaller_id(rng):
    problem = Problem(rng, trees.two_level(64, 8), 4, 3, bias=False, weights=False)
    problem.table[:] = 0
    np.testing.assert_array_equal(top_k(problem, 9)[1], np.tile(np.arange(9), (3, 1)))


def error(function, *args, **kwargs):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)) as info:
        function(*args, **kwargs)
    return str(info.value)


@pytest.mark.parametrize("graph", [False, True])
def test_targets_out_of_range(rng, graph):
    problem = Problem(rng, random_tree(rng, 30), 4, 10, weights=False)
    for bad in (30, -1):
        problem.targets[7] = bad
        message = error(problem.run, graph=graph)
        assert "`targets`" in message and f"Received: {bad} at position 7" in message and "[0, 30)" in message


def test_wrong_input(rng):
    problem = Problem(rng, trees.two_level(20), 4, 6, weights=False)
    table, bias = tf.Variable(problem.table), tf.Variable(problem.bias)

    def loss(hidden=problem.hidden, targets=problem.targets, table=table, bias=bias, weights=None, **arrays):
        return ts.tree_softmax_loss(hidden, targets, table, bias, problem.arrays._replace(**arrays), weights)

    assert "`hidden`" in error(loss, hidden=problem.hidden[:, :3])
    assert "`targets`" in error(loss, targets=problem.targets[:5])
    assert "`targets`" in error(loss, targets=problem.targets.astype("float32"))
    assert "`weights`" in error(loss, weights=np.ones(5, "float32"))
    assert "`bias`" in error(loss, bias=tf.Variable(problem.bias[1:]))
    assert "`table`" in error(loss, table=tf.Variable(problem.table[1:]), bias=None)
    assert "`table`" in error(loss, table=tf.Variable(problem.table.astype("float64")))
    with pytest.raises(TypeError, match="`table` must be a"):
        loss(table=problem.table)
    for name in ("node_start", "node_parent", "row_hint"):
        assert f"`{name}`" in error(loss, **{name: getattr(problem.numpy, name)[1:]})
    assert "`node_parent`" in error(loss, node_parent=np.full_like(problem.numpy.node_parent, 3))
    assert "`k`" in error(top_k, problem, 21)
    assert "`k`" in error(top_k, problem, -1)


def test_gradient_checks_what_was_saved(rng):
    problem = Problem(rng, trees.two_level(20), 4, 6, weights=False)
    table, bias = tf.Variable(problem.table), tf.Variable(problem.bias)
    options = {"dtype": tf.float32, "use_bias": True}
    none = tf.zeros([0])
    saved = ops.largeout_tree_softmax_loss(
        problem.hidden, problem.targets, none, table.handle, bias.handle, *problem.arrays[:5], **options
    )

    def grad(**changed):
        values = [changed.get(name, value) for name, value in saved._asdict().items()][1:]
        return ops.largeout_tree_softmax_grad(
            problem.hidden,
            none,
            saved.loss,
            table.handle,
            bias.handle,
            problem.arrays.node_start,
            problem.arrays.node_parent,
            *values,
            **options,
        )

    grad()
    for name in ("pair_token", "pair_row", "group_node", "group_start"):
        assert "must be outputs" in error(grad, **{name: getattr(saved, name) + 1000})
    assert "`probs`" in error(grad, probs=saved.probs[1:])
    assert "`pair_lse`" in error(grad, pair_lse=saved.pair_lse[1:])


def shapes(hidden, targets, table, arrays):
    with tf.Graph().as_default():
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=table)
        bias = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=table[:1] if table.rank else None)
        hold = [tf.raw_ops.Placeholder(dtype=tf.int32, shape=s) for s in arrays]
        hidden = tf.raw_ops.Placeholder(dtype=tf.float32, shape=hidden)
        out = ops.largeout_tree_softmax_loss(
            hidden,
            tf.raw_ops.Placeholder(dtype=tf.int32, shape=targets),
            tf.zeros([0]),
            handle,
            bias,
            *hold[:5],
            dtype=tf.float32,
            use_bias=True,
        )
        grads = ops.largeout_tree_softmax_grad(
            hidden,
            tf.zeros([0]),
            out.loss,
            handle,
            bias,
            hold[1],
            hold[3],
            *out[1:],
            dtype=tf.float32,
            use_bias=True,
        )
        best = ops.largeout_tree_top_k(
            hidden, 7, handle, bias, hold[1], hold[5], dtype=tf.float32, use_bias=True
        )
        return [x.shape for x in (*out, *grads, *best)]


def test_shape_functions():
    unknown = tf.TensorShape(None)
    arrays = [[20], [6], [5], [5], [2], [24]]
    vector = tf.TensorShape([None]).as_list()
    got = shapes([9, 4], [9], tf.TensorShape([24, 4]), arrays)
    want = [[9]] + [vector] * 6 + [[9, 4], vector, [None, 4], vector, [9, 7], [9, 7]]
    assert [s.as_list() for s in got] == want
    got = shapes(unknown, unknown, unknown, [unknown] * 6)
    assert [s.rank for s in got] == [1] * 7 + [2, 1, 2, 1, 2, 2]
    for bad in (
        ([9, 4, 1], [9], [24, 4], arrays),
        ([9, 5], [9], [24, 4], arrays),
        ([9, 4], [8], [24, 4], arrays),
        ([9, 4], [9, 1], [24, 4], arrays),
        ([9, 4], [9], [25, 4], arrays),
        *(([9, 4], [9], [24, 4], [[7] if i == j else s for j, s in enumerate(arrays)]) for i in range(6)),
    ):
        with pytest.raises(ValueError, match=r"must|Dimension|Shape"):
            shapes(bad[0], bad[1], tf.TensorShape(bad[2]), bad[3])
