"""What is rounded where values travel in bfloat16, and that only what is narrow travels."""

import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from keras_largeout.ops.full_softmax.wrapper import full_softmax_terms
from keras_largeout.replicas.exchange_dtype import gather_narrowed, send_narrowed

HERE, HOME = "CPU:0", "CPU:1"


def bfloat16(values):
    return tf.cast(tf.cast(values, tf.bfloat16), tf.float32).numpy()


def variable_at_home(rows=20, dim=3, dtype="float32"):
    values = np.random.default_rng(0).normal(size=(rows, dim))
    with tf.device(HOME):
        return tf.Variable(values, dtype=dtype)


def run(function, graph):
    with tf.device(HERE):
        return tf.function(function)() if graph else function()


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("wanted", [[], [7], [1, 4, 19]])
def test_rows_are_rounded_on_their_way_and_their_gradients_are(graph, wanted):
    home, indices = variable_at_home(), tf.constant(wanted, tf.int64)
    upstream = tf.constant(np.random.default_rng(1).normal(size=(len(wanted), 3)), tf.float32)

    def step():
        with tf.GradientTape() as tape:
            rows = gather_narrowed(home, indices, "bfloat16")
        return rows, tape.gradient(rows, home, output_gradients=upstream)

    rows, gradient = run(step, graph)
    assert rows.dtype == tf.float32 and gradient.dtype == tf.bfloat16
    np.testing.assert_array_equal(rows, bfloat16(home.numpy()[wanted]))
    np.testing.assert_array_equal(gradient.indices, wanted)
    np.testing.assert_array_equal(tf.cast(gradient.values, tf.float32), bfloat16(upstream))


@pytest.mark.parametrize("graph", [False, True])
def test_hidden_vectors_are_rounded_on_both_ways(graph):
    home, hidden = variable_at_home(), tf.random.stateless_normal([5, 3], [1, 2])

    def step():
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            arrived = send_narrowed(hidden, home, "bfloat16")
            with tf.device(HOME):
                score = tf.reduce_sum(arrived**2)
        return arrived, tape.gradient(score, hidden)

    arrived, gradient = run(step, graph)
    np.testing.assert_array_equal(arrived, bfloat16(hidden))
    np.testing.assert_array_equal(gradient, bfloat16(2 * arrived))


def test_what_is_not_float32_or_not_asked_for_travels_as_it_is():
    home, narrow = variable_at_home(), variable_at_home(dtype="bfloat16")
    indices, whole = tf.constant([3, 5], tf.int64), tf.constant([[0.1, 0.2, 0.3]])
    np.testing.assert_array_equal(gather_narrowed(home, indices, None), home.numpy()[[3, 5]])
    assert gather_narrowed(narrow, indices, "bfloat16").dtype == tf.bfloat16
    assert send_narrowed(whole, home, None) is whole
    assert send_narrowed(whole := tf.cast(whole, tf.bfloat16), home, "bfloat16") is whole


def test_only_bfloat16_travels():
    home, kernel, hidden = variable_at_home(), variable_at_home(), tf.ones([2, 3])
    indices = tf.constant([3, 5], tf.int64)

    @tf.function
    def step():
        with tf.device(HERE), tf.GradientTape() as tape:
            tape.watch(hidden)
            rows = gather_narrowed(home, indices, "bfloat16")
            arrived = send_narrowed(hidden + 1.0, kernel, "bfloat16")
            with tf.device(HOME):
                terms = full_softmax_terms(arrived, tf.constant([4, 9]), kernel, None)
            loss = tf.reduce_sum(rows) + tf.reduce_sum(terms.ce)
        return tape.gradient(loss, [hidden, home, kernel])

    with tf.device(HERE):
        graph = step.get_concrete_function().graph
    ways = set()
    for op in graph.get_operations():
        for tensor in op.inputs:
            devices = [tensor.op.device[-5:], op.device[-5:]]
            if "" not in devices and devices[0] != devices[1] and tensor.shape.rank == 2:
                ways.add((*devices, tensor.dtype))
    assert ways == {(HERE, HOME, tf.bfloat16), (HOME, HERE, tf.bfloat16)}


@pytest.mark.parametrize("wrong", ["float16", "int8", 2])
def test_other_dtypes_are_refused(wrong):
    with pytest.raises(ValueError, match=f"`exchange_dtype` must be None.*exchange_dtype={wrong!r}"):
        kl.distribute.strategy(exchange_dtype=wrong)
    assert kl.distribute.strategy(1, exchange_dtype="bfloat16") is tf.distribute.get_strategy()
