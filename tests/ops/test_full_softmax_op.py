"""The full softmax ops: equal to their float64 reference, whatever is kept, expected or left out."""

import numpy as np
import pytest
import tensorflow as tf
from ops._full_softmax import BFLOAT16, Problem, expected_of, upstream_of

from keras_largeout.ops._library import ops
from keras_largeout.ops.full_softmax import wrapper as fs


@pytest.mark.parametrize("skip_target", [False, True])
@pytest.mark.parametrize("dim", [0, 17, 64])
@pytest.mark.parametrize("classes", [1, 513])
def test_equals_reference(rng, device, classes, dim, skip_target):
    for tokens in (0, 1, 259):
        problem = Problem(rng, classes, dim, tokens, bias=dim != 17)
        problem.check(device, skip_target=skip_target and classes > 1)


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
@pytest.mark.parametrize("hidden_dtype", [np.float16, np.float32, BFLOAT16])
def test_types(rng, device, dtype, hidden_dtype):
    problem = Problem(rng, 130, 33, 60, dtype, hidden_dtype)
    for graph in (False, True):
        problem.check(device, targets_dtype=np.int64, graph=graph)
    for targets_dtype in (np.int32, np.int8, np.int16):
        problem.targets = np.minimum(problem.targets, 100)
        problem.check(device, targets_dtype=targets_dtype)


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
@pytest.mark.parametrize("bias", [False, True])
def test_tables_may_be_tensors(rng, device, dtype, bias):
    problem = Problem(rng, 130, 33, 60, dtype, bias=bias)
    for graph in (False, True):
        of_variables, of_tensors = problem.run(graph=graph), problem.run(graph=graph, make=tf.constant)
        tf.nest.map_structure(np.testing.assert_array_equal, of_variables, of_tensors)


def errors_and_stocks(rng, dtype, hidden_dtype):
    """Of each quantity the errors of the op and of TensorFlow's own path in the type of the hidden vectors,
    against float64."""
    problem = Problem(rng, 507, 304, 252, dtype, hidden_dtype)
    problem.targets = np.abs(problem.targets)
    problem.upstream[[0, 2]] = 0  # what TensorFlow's loss has
    hidden, targets, table, bias = problem.arguments(make=tf.constant)
    with tf.GradientTape() as tape:
        tape.watch([hidden, table, bias])
        logits = tf.matmul(hidden, tf.cast(table, hidden.dtype), transpose_b=True) + tf.cast(
            bias, hidden.dtype
        )
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, tf.cast(logits, tf.float32))
    gradients = tape.gradient(loss, [hidden, table, bias], problem.upstream[1])
    stock = [loss, *gradients]
    terms, got = problem.run()
    want_terms, want = problem.truth()
    ours, truths = [terms[1], *got.values()], [want_terms[1], *want.values()]
    for mine, theirs, truth in zip(ours, stock, truths):
        yield [np.abs(np.asarray(x).astype(np.float64) - truth) for x in (mine, theirs)]


@pytest.mark.parametrize("hidden_dtype", [np.float32, BFLOAT16])
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_error_is_that_of_the_framework(rng, dtype, hidden_dtype):
    if tf.config.list_logical_devices("GPU") and dtype == BFLOAT16 and hidden_dtype == np.float32:
        pytest.skip("tensor cores take 16 bits of a vector beside rows of bfloat16")
    for ours, theirs in errors_and_stocks(rng, dtype, hidden_dtype):
        assert ours.max() <= 2 * theirs.max() + 1e-7 and ours.mean() <= 2 * theirs.mean() + 1e-8


@pytest.mark.parametrize("skip_target", [False, True])
def test_gradient_is_that_of_the_terms(rng, skip_target):
    """Central differences of all three terms, by each input."""
    problem = Problem(rng, 11, 4, 7)
    hidden, targets, table, bias = problem.arguments(make=tf.constant)
    weights = tf.constant(problem.upstream)

    def total(hidden, table, bias):
        terms = fs.full_softmax_terms(hidden, targets, table, bias, skip_target=skip_target)
        return tf.reduce_sum(tf.stack(terms) * weights)

    for theory, numeric in zip(*tf.test.compute_gradient(total, [hidden, table, bias], delta=1e-2)):
        np.testing.assert_allclose(theory, numeric, atol=2e-3)


@pytest.mark.parametrize("skip_target", [False, True])
def test_gradient_in_float64(rng, skip_target):
    """The reference, to which all else is compared, has the gradients of its own terms."""
    problem = Problem(rng, 9, 3, 5)
    arrays = {"hidden": problem.hidden, "table": problem.table, "bias": problem.bias}
    arrays = {name: array.astype(np.float64) for name, array in arrays.items()}

    def total():
        terms, gradients = fs.full_softmax_reference(
            targets=problem.targets, skip_target=skip_target, upstream=problem.upstream, **arrays
        )
        return np.sum(np.stack(terms) * problem.upstream), gradients

    _, want = total()
    for name, array in arrays.items():
        for at in np.ndindex(array.shape):
            kept, ends = array[at], []
            for step in (1e-5, -1e-5):
                array[at] = kept + step
                ends.append(total()[0])
            array[at] = kept
            assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(want[name][at], abs=1e-8), name


EXPECTED = {
    "cross-entropy": {},
    "smoothing": {"smoothing": 0.1},
    "z-loss": {"z_loss": 0.01},
    "both": {"smoothing": 0.2, "z_loss": 0.01},
    "others": {"positive": 0.5},
}


def problem_and_expected(rng, kind, dtype=np.float32, tokens=259):
    """A problem whose upstream is what is expected of it, times 1 / tokens."""
    problem = Problem(rng, 150, 20, tokens, dtype)
    problem.targets = np.abs(problem.targets)
    options = dict(EXPECTED[kind])
    if "positive" in options:
        options["positive"] = rng.normal(size=tokens)
    expected = expected_of(rng.random(tokens) * (rng.random(tokens) < 0.8), classes=150, **options)
    lse = problem.truth(skip_target=kind == "others")[0][0]
    problem.upstream = upstream_of(expected, lse, 1 / tokens)
    return problem, {"expected": expected, "skip_target": kind == "others"}


@pytest.mark.parametrize("kind", EXPECTED)
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_expected_and_right(rng, device, kind, dtype):
    problem, options = problem_and_expected(rng, kind, dtype)
    for scratch_bytes in (0, 400_000, 1 << 27):  # nothing is kept; two chunks of tokens; one
        problem.check(device, scratch_bytes=scratch_bytes, **options)
    problem.check(device, graph=True, **options)


@pytest.mark.parametrize("kind", EXPECTED)
def test_expected_and_wrong(rng, device, kind):
    """Other gradients than the expected ones: everything is computed again."""
    problem, options = problem_and_expected(rng, kind)
    right = problem.upstream
    for change in (2.0, 1 + 1e-4, 0.0, -1.0):
        wrong = right.copy()
        wrong[:, 3:5] *= change
        problem.check(device, upstream=wrong, **options)
    problem.check(device, upstream=rng.normal(size=right.shape).astype(np.float32), **options)
    for factor in (-3.0, 0.0):
        problem.check(device, upstream=right * np.float32(factor), **options)


def grad_op(problem, options, upstream, given):
    """The gradient op by itself, with the gradients that it is to scale."""
    expected, (hidden, targets, table, bias) = options["expected"], problem.arguments(make=tf.constant)
    lse = problem.truth(options["skip_target"])[0][0].astype(np.float32)
    return ops.largeout_full_softmax_grad(
        hidden,
        targets,
        expected.weights,
        table,
        bias,
        lse,
        *upstream,
        *given,
        [] if expected.positive is None else expected.positive,
        use_bias=True,
        skip_target=options["skip_target"],
        weight_gradient=True,
        smoothing=expected.smoothing,
        per_class=expected.smoothing / expected.num_classes,
        z_loss=expected.z_loss,
    )


@pytest.mark.parametrize("kind", EXPECTED)
def test_what_was_expected_is_only_scaled(rng, on_cpu, kind):
    """Given ones in the place of the gradients, they come back, times the factor."""
    problem, options = problem_and_expected(rng, kind, tokens=2000)
    given = [tf.ones_like(x) for x in problem.arguments()[::2]] + [tf.ones([150])]
    for got in grad_op(problem, options, problem.upstream, given):
        np.testing.assert_allclose(got, np.full(got.shape, 1 / 2000), rtol=1e-5)
    wrong = problem.upstream.copy()
    wrong[0] += 0.01
    for got in grad_op(problem, options, wrong, given):
        assert np.ptp(got) > 1e-3
    with pytest.raises(tf.errors.InvalidArgumentError, match="`expected_table` must have the shape"):
        grad_op(problem, options, problem.upstream, [given[0], given[1][1:], given[2]])


def test_zero_weights(rng, device):
    problem = Problem(rng, 70, 9, 30)
    expected = expected_of(np.zeros(30))
    problem.check(device, expected=expected)
    terms, gradients = problem.run(expected=expected, upstream=np.zeros((3, 30), np.float32))
    assert np.isfinite(terms).all() and not any(g.any() for g in gradients.values())


@pytest.mark.parametrize("expects", [False, True])
def test_frozen(rng, device, expects):
    problem, options = problem_and_expected(rng, "both")
    options = options if expects else {}
    want, of_all = problem.run(**options)
    got, gradients = problem.run(weight_gradient=False, **options)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(gradients["hidden"], of_all["hidden"])
    assert gradients["table"] is None and gradients["bias"] is None


def test_the_table_may_change_between(rng, on_cpu):
    """The gradient is that of the loss which was computed, where it was expected."""
    problem, options = problem_and_expected(rng, "cross-entropy")
    hidden, targets, table, bias = problem.arguments()
    with tf.GradientTape() as tape:
        terms = fs.full_softmax_terms(hidden, targets, table, bias, **options)
        loss = tf.reduce_sum(terms.ce * problem.upstream[1])
    table.assign(tf.zeros_like(table))
    np.testing.assert_allclose(tape.gradient(loss, table), problem.truth()[1]["table"], atol=1e-5)


@pytest.mark.parametrize("expects", [False, True])
@pytest.mark.parametrize("skip_target", [False, True])
def test_nan_stays_with_its_token(rng, device, skip_target, expects):
    problem = Problem(rng, 600, 9, 20)
    problem.hidden[3, 2] = np.nan
    positive = np.zeros(20) if skip_target else None
    options = {"expected": expected_of(np.ones(20), positive=positive)} if expects else {}
    (lse, ce, total), gradients = problem.run(skip_target=skip_target, **options)
    assert np.isnan(lse[3]) and (skip_target or (np.isnan(ce[3]) and np.isnan(total[3])))
    clean = Problem(np.random.default_rng(0), 600, 9, 20)
    want_terms, want = clean.run(skip_target=skip_target, **options)
    for got, wanted in zip((lse, ce, total), want_terms):
        np.testing.assert_array_equal(np.delete(got, 3), np.delete(wanted, 3))
    np.testing.assert_allclose(
        np.delete(gradients["hidden"], 3, 0), np.delete(want["hidden"], 3, 0), atol=1e-5
    )


def test_nothing_but_the_target(rng, device):
    """Without another class the softmax is empty: its log is -inf, and no gradient is NaN."""
    problem = Problem(rng, 1, 4, 6)
    problem.targets[:] = 0
    expected = expected_of(np.ones(6), positive=np.zeros(6))
    for options in ({}, {"expected": expected}):
        terms, gradients = problem.run(skip_target=True, upstream=np.zeros((3, 6), np.float32), **options)
        assert (terms[0] == -np.inf).all() and not terms[1:].any()
        assert not any(g.any() for g in gradients.values())
