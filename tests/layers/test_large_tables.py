"""What grows with a table, and what doesn't: rows beyond 2^31 elements, and the memory of a step."""

import json
import os
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from _forked import run
from _memory import need, need_peaks

import keras_largeout as kl

DIM = 128
EDGE = 2**31 // DIM  # the first row whose elements 32 bits don't count
ROWS = EDGE + 5


class Sparse(dict):
    """A file whose chunks of zeros take no memory."""

    def __setitem__(self, key, rows):
        super().__setitem__(key, rows if rows.any() else np.broadcast_to(np.float32(0), rows.shape))


@pytest.mark.soak
def test_rows_beyond_two_to_the_31_elements():
    """4.3 GB of bfloat16: looked up, updated, saved and loaded where 32 bits would wrap."""
    need(9)
    layer = kl.layers.ShardedEmbedding(ROWS, DIM, "zeros", dtype="bfloat16", name="words")
    ids = np.array([[EDGE - 1, EDGE, ROWS - 1, ROWS - 1]])
    inputs = keras.Input((4,), dtype="int64")
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(layer(inputs)))
    model.compile(kl.optimizers.SGD(1.0), "mse")
    loss = model.train_on_batch(ids, np.ones((1, 4, 1)))
    assert loss == 1.0
    # The gradient of a row is -2/4 for each time that it is in the batch.
    touched = np.array([[0.5], [0.5], [1.0]])
    rows = tf.cast(layer(np.array([EDGE - 1, EDGE, ROWS - 1])), tf.float32)
    np.testing.assert_array_equal(rows, np.broadcast_to(touched, (3, DIM)))
    # Nothing else has moved: not where a number of 32 bits would have led, nor beside.
    others = np.array([0, 1, 4, ROWS - 1 - EDGE, EDGE // 2, EDGE - 2, EDGE + 1, ROWS - 2])
    assert not tf.cast(layer(others), tf.float32).numpy().any()

    layer.save_own_variables(store := Sparse())
    del store["digests"]  # a row is changed below
    assert sum(len(chunk) for chunk in store.values()) == ROWS
    *_, before, last = (store[key] for key in sorted(store))
    tail = np.concatenate([before, last])[-7:]
    np.testing.assert_array_equal(tail[:, 0], [0, 0.5, 0.5, 0, 0, 0, 1])
    assert all(not chunk.any() for key, chunk in store.items() if key < sorted(store)[-2])
    last[-2] = 3.0
    layer.load_own_variables(store)
    rows = tf.cast(layer(np.array([ROWS - 2, ROWS - 1, EDGE, 0])), tf.float32).numpy()
    np.testing.assert_array_equal(rows[:, 0], [3, 1, 0.5, 0])


_STEPS = """
import json
import keras, numpy as np
from _memory import peak_of
import keras_largeout as kl

def words(rows):
    ids = keras.Input((8,), dtype="int32")
    return ids, keras.layers.Dense(1)(kl.layers.ShardedEmbedding(rows, 32, combiner="sum")(ids)), "mse"

def tree(rows):
    x = keras.Input((8,))
    head = kl.layers.HierarchicalSoftmax(rows, tree=kl.trees.two_level(rows))
    return x, head(keras.layers.Dense(32)(x)), head.loss

def peak(make, rows):
    inputs, outputs, loss = make(rows)
    model = keras.Model(inputs, outputs)
    model.compile(kl.optimizers.LazyAdam(0.01), loss)
    x = np.random.default_rng(0).integers(0, rows, (64, 8))
    y = np.zeros((64, 1), "int32")
    model.train_on_batch(x, y)  # makes slots, traces
    return peak_of(lambda: [model.train_on_batch(x, y) for _ in range(3)])

for make in (words, tree):
    print(json.dumps([make.__name__, peak(make, 10_000), peak(make, 1_500_000)]))
"""


@pytest.mark.full
def test_memory_of_a_step_does_not_grow_with_the_table():
    """Tables of 1 and of 190 MB: a dense gradient, or one copy, would show as 190 MB."""
    need_peaks()
    tests = str(pathlib.Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, os.environ["PYTHONPATH"]])}
    code, printed = run(["-c", _STEPS], environment)
    assert code == 0, printed
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("[")]
    assert len(found) == 2
    for name, small, large in found:
        assert small < 40 and large < 40, (name, small, large)
