"""What the full softmax ops refuse, what they say then, the shapes that they infer, and their threads."""

import os
import sys

import numpy as np
import pytest
import tensorflow as tf
from _cluster import Running
from ops._full_softmax import Problem

from keras_largeout.ops._library import ops
from keras_largeout.ops.full_softmax import wrapper as fs


@pytest.fixture
def problem(rng):
    return Problem(rng, 20, 4, 6)


def error(function, *args, **kwargs):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)) as info:
        function(*args, **kwargs)
    return str(info.value)


def in_graph(loss):
    """On a GPU an error comes with the next call."""
    step = tf.function(loss)

    def twice(targets):
        step(targets).ce.numpy()  # waits
        step(targets)

    return twice if tf.config.list_logical_devices("GPU") else step


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("dtype, expects", [(tf.int32, False), (tf.int64, True)])
def test_targets_out_of_range(problem, graph, dtype, expects):
    hidden, _, table, bias = problem.arguments()
    expected = fs.Expected(tf.ones([6])) if expects else None

    def loss(targets):
        return fs.full_softmax_terms(hidden, targets, table, bias, expected=expected)

    for bad in (20, -2, 2**31 - 1, *([2**32 + 3] if dtype is tf.int64 else [])):
        problem.targets[4] = bad
        targets = tf.constant(problem.targets, dtype)
        message = error(in_graph(loss) if graph else loss, targets)
        assert "`targets` must be in [0, 20)" in message and f"Received: {bad} at position 4" in message
    with pytest.raises(IndexError, match=r"`targets` must be in \[0, 20\), or -1. Received: .* position 4"):
        problem.truth()


def test_a_graph_leaves_errors_of_targets_to_a_later_call(problem):
    """On a GPU: that neither op waits there is tested without TensorFlow."""
    hidden, targets, table, bias = problem.arguments()
    table = tf.Variable(table)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(fs.full_softmax_terms(hidden, targets, table, bias).ce)
        return tape.gradient(loss, table)

    graph = step.get_concrete_function().graph
    found = {op.type: op.get_attr("late_errors") for op in graph.get_operations() if "FullSoftmax" in op.type}
    assert found == {"Largeout>FullSoftmax": True, "Largeout>FullSoftmaxGrad": True}


@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_a_gpu_tells_of_targets_late(problem, device):
    hidden, targets, table, bias = problem.arguments()

    @tf.function
    def loss(targets):
        return fs.full_softmax_terms(hidden, targets, table, bias).ce

    loss(tf.tensor_scatter_nd_update(targets, [[4]], [20])).numpy()  # waits
    with pytest.raises(tf.errors.InvalidArgumentError, match="20 at position 4 of an earlier batch"):
        loss(targets)
    assert np.isfinite(loss(targets).numpy()).all()


def test_wrong_input(problem):
    hidden, targets, table, bias = problem.arguments()

    def terms(**changed):
        given = {"hidden": hidden, "targets": targets, "table": table, "bias": bias, **changed}
        return fs.full_softmax_terms(**given)

    def expecting(weights, positive=None, **more):
        return terms(expected=fs.Expected(tf.zeros(weights), positive), **more)

    assert "`hidden` must have the shape [tokens, 4]" in error(terms, hidden=hidden[:, :3])
    assert "`hidden` must have the shape [tokens, 4]" in error(terms, hidden=hidden[0])
    assert "`hidden` must be floating. Received: dtype=int32" in error(
        terms, hidden=tf.zeros([6, 4], "int32")
    )
    assert "`targets` must have the shape [6]. Received: shape [5]" in error(terms, targets=targets[:5])
    assert "`targets` must have the shape [6]" in error(terms, targets=targets[:, None])
    assert "`targets` must be integers. Received: dtype=float32" in error(terms, targets=tf.zeros([6]))
    assert "`bias`" in error(terms, bias=tf.Variable(tf.zeros([19])))
    assert "`bias`" in error(terms, bias=tf.Variable(tf.zeros([20, 1])))
    assert "`table` must have the shape [rows, dim]" in error(terms, table=tf.zeros([20]), bias=None)
    assert "`table` must be of dtype float32 or bfloat16" in error(terms, table=tf.zeros([20, 4], "float64"))
    assert "`bias` must be of dtype float32" in error(terms, bias=tf.zeros([20], "bfloat16"))
    mixed = error(terms, table=tf.zeros([20, 4]))
    assert "`table` and `bias` must both be variables, or both tensors" in mixed
    for name in ("table", "bias"):
        with pytest.raises(TypeError, match=f"`{name}` must be a tf.Variable or tf.Tensor"):
            terms(**{name: np.zeros([20, 4], "float32")})
    assert "`weights` must have the shape [6] or [0]" in error(expecting, [5])
    assert "`positive` must have the shape [6]" in error(expecting, [6], tf.zeros([5]), skip_target=True)
    assert "`positive` must have the shape [6]" in error(expecting, [6], skip_target=True)
    assert "`positive` must have the shape [0]" in error(expecting, [6], tf.zeros([6]))
    assert "scratch_bytes" in error(terms, scratch_bytes=-1)


def shapes(hidden, targets, table, weights=(0,), positive=(0,), make=tf.raw_ops.VarHandleOp, **options):
    """Those that are inferred for both ops, of placeholders."""

    def hold(shape, dtype=tf.float32):
        return tf.raw_ops.Placeholder(dtype=dtype, shape=tf.TensorShape(shape))

    with tf.Graph().as_default():
        table = tf.TensorShape(table)
        rows = tf.TensorShape(table[:1] if table.rank else None)
        operands = [make(dtype=tf.float32, shape=shape) for shape in (table, rows)]
        options = {"use_bias": True, **options}
        inputs = hold(hidden), hold(targets, tf.int32), hold(weights), *operands
        out = ops.largeout_full_softmax(*inputs, hold(positive), dtype=tf.float32, **options)
        gradients = ops.largeout_full_softmax_grad(
            *inputs, *out[:3], out[0], *out[3:], hold(positive), **options
        )
        return [x.shape.as_list() for x in (*out, *gradients)]


@pytest.mark.parametrize("make", [tf.raw_ops.VarHandleOp, tf.raw_ops.Placeholder])
def test_shape_functions(make):
    expected = [[None, 4], [None, 4], [None]]
    got = shapes([9, 4], [9], [24, 4], make=make)
    assert got == [[9]] * 3 + expected + [[9, 4], [24, 4], [24]]
    assert shapes([9, 4], [9], [24, 4], [9], [9], make=make) == got
    frozen = shapes([9, 4], [9], [24, 4], weight_gradient=False)
    assert frozen[6:] == [[9, 4], [0, 4], [0]]
    assert shapes([9, 4], [9], [24, 4], use_bias=False)[6:] == [[9, 4], [24, 4], [0]]
    unknown = shapes(None, None, None, None, None, make=make)
    assert [len(shape) for shape in unknown] == [1, 1, 1, 2, 2, 1, 2, 2, 1]
    assert shapes([None, 4], None, [None, None], make=make)[6:] == [[None, 4], [None, 4], [None]]
    for name, *bad in (
        ("rank", [9, 4, 1], [9], [24, 4]),
        ("`hidden` must have as many columns as `table`", [9, 5], [9], [24, 4]),
        (r"`targets` must have the shape \[9\]. Received: \[8\]", [9, 4], [8], [24, 4]),
        ("rank", [9, 4], [9, 1], [24, 4]),
        ("rank", [9, 4], [9], [24, 4, 1]),
        (r"`weights` must have the shape \[9\] or \[0\]. Received: \[8\]", [9, 4], [9], [24, 4], [8]),
        (r"`positive` must have the shape \[9\] or \[0\]", [9, 4], [9], [24, 4], [9], [8]),
    ):
        with pytest.raises(ValueError, match=name):
            shapes(*bad, make=make)


def test_what_is_unknown_until_it_runs(problem):
    """A function for batches of any shape, and a variable of any number of rows."""
    _, _, table, bias = problem.arguments()
    spec = [tf.TensorSpec(None, tf.float32), tf.TensorSpec(None, tf.int64)]

    @tf.function(input_signature=spec)
    def step(hidden, targets):
        with tf.GradientTape() as tape:
            terms = tf.stack(fs.full_softmax_terms(hidden, targets, table, bias))
        return terms, tape.gradient(terms, [table, bias])

    for tokens in (6, 3, 0):
        hidden, targets = problem.hidden[:tokens], problem.targets[:tokens]
        terms, gradients = step(hidden, targets)
        want_terms, want = fs.full_softmax_reference(hidden, targets, problem.table, problem.bias)
        np.testing.assert_allclose(terms, want_terms, atol=1e-5)
        for name, got in zip(("table", "bias"), gradients):
            np.testing.assert_allclose(got, want[name], atol=1e-5)
    assert "`hidden` must have the shape [tokens, 4]" in error(step, problem.hidden[:, :3], problem.targets)
    assert "`targets` must have the shape [6]" in error(step, problem.hidden, problem.targets[:5])


THREADS = """
import hashlib, sys, numpy as np, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from ops._full_softmax import BFLOAT16, Problem, expected_of
bits = hashlib.sha256()
for dtype in (np.float32, BFLOAT16):
    problem = Problem(np.random.default_rng(0), 1500, 70, 600, dtype)
    for options in ({}, {"expected": expected_of(np.ones(600))}, {"skip_target": True}):
        terms, gradients = problem.run(**options)
        for array in (terms, *gradients.values()):
            bits.update(array.tobytes())
print(tf.config.threading.get_intra_op_parallelism_threads(), bits.hexdigest())
"""


@pytest.mark.full
def test_same_bits_for_any_number_of_threads(tmp_path):
    script = tmp_path / "bits.py"
    script.write_text(THREADS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "2"}
    runs = [Running([str(script), str(threads)], environment, forked=True) for threads in (1, 4)]
    bits = [run.wait_for(rf"^{threads} ([0-9a-f]{{64}})$") for run, threads in zip(runs, (1, 4))]
    for run in runs:
        run.close()
    assert bits[0].group(1) == bits[1].group(1)
