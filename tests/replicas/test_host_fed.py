"""Batches that stay in host memory, and their ids, which are cut into runs there. CPUs stand for GPUs."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.planning.placement import Placement
from keras_largeout.replicas._tensorflow import is_host_fed, move_to_host
from keras_largeout.replicas.host_fed import HostFed


def _of_floats(ids, x, variable):
    return tf.cast(2.0 * x, tf.int32)


def _in_a_branch(ids, x, variable):
    return tf.cond(ids[0, 0] > 3, lambda: ids, lambda: ids + 1)


CASES = {
    "argument": (lambda ids, x, variable: ids, None),
    "joined": (lambda ids, x, variable: tf.concat([tf.cast(ids[:, 0], tf.int64) + 7, [1, 2]], axis=0), 0),
    "hashed": (lambda ids, x, variable: tf.where(ids > 3, ids % 4, tf.unique(ids[0]).y[0]), 0),
    "cast": (lambda ids, x, variable: tf.cast(x, tf.int32), 0),
    "of floats": (_of_floats, 1),
    "of a variable": (lambda ids, x, variable: tf.gather(variable, ids), 1),
    "random": (lambda ids, x, variable: ids + tf.random.uniform([], 0, 3, tf.int32), 1),
    "of a branch": (_in_a_branch, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_graph_makes_of_its_arguments_moves_to_the_host(case, gpus):
    make, device = CASES[case]
    variable, found = tf.Variable([2, 0, 1, 5]), []

    @tf.function
    def step(ids, x):
        with tf.device("CPU:1"):
            made = make(ids, x, variable)
        found.append((move_to_host(made), tf.DeviceSpec.from_string(made.device).device_index))
        return made

    step(tf.constant([[3, 1], [0, 2]]), tf.constant([[3.0, 1.0]]))
    assert found == [(device != 1, device)]


def test_a_branch_has_what_it_captures(gpus):
    found = []

    @tf.function
    def step(ids, variable):
        with tf.device("CPU:1"):
            made = [ids + 1, tf.gather(variable, ids)]

            def branch():
                found.extend(move_to_host(tf.cast(one, tf.int64)) for one in made)
                return 0

            return tf.cond(ids[0] > 0, branch, lambda: 1)

    variable = tf.Variable([2, 0, 1])
    step(tf.constant([1]), variable)
    assert found == [True, False]


def test_tensors_are_where_they_are(gpus):
    for device, on_host in (("CPU:0", True), ("CPU:1", False)):
        with tf.device(device):
            assert move_to_host(tf.constant([1]) + 1) == on_host


def test_data_are_where_the_strategy_leaves_them(gpus):
    strategy = strategy_of(2, beside_host=True)
    for fed, on_host in ((HostFed(strategy), True), (strategy, False)):
        iterator = iter(fed.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4)))
        assert is_host_fed(iterator) == on_host
        found = [strategy.experimental_local_results(batch) for batch in iterator]
        assert [[part.numpy().tolist() for part in parts] for parts in found] == [
            [[0, 1], [2, 3]],
            [[4, 5], [6, 7]],
        ]
        assert all(("CPU:0" in part.device) == on_host for parts in found for part in parts)


ROWS = 40
PLACEMENTS = {
    "modulo": "modulo",
    "hot rows": Placement.by_permutation(ROWS, 2).with_hot_rows([1, 5, 8]),
    "explicit": Placement.explicit(np.arange(ROWS) // 3 % 2, 2),
    "columns": "columns",
}


def _fitted(placement, per_call):
    with strategy_of(2, beside_host=True).scope():
        keras.utils.set_random_seed(7)
        ids = keras.Input((3,), dtype="int32")
        table = kl.layers.ShardedEmbedding(ROWS, 4, combiner="sum", placement=PLACEMENTS[placement])
        model = kl.Model(ids, keras.layers.Dense(1)(table(ids)))
        model.compile(kl.optimizers.LazyAdam(0.1), "mse", steps_per_execution=per_call)
    x = np.random.default_rng(0).integers(0, ROWS, (28, 3))  # 64 bits: Keras casts them
    y = np.sin(x.sum(axis=1, keepdims=True))
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0).history
    return history, table.table.numpy().tolist(), model.predict(x, verbose=0).tolist()


@pytest.mark.parametrize("per_call", [1, 3])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_numbers_are_the_same_wherever_ids_become_runs(placement, per_call, request):
    want = _fitted(placement, per_call)
    request.getfixturevalue("gpus")
    assert _fitted(placement, per_call) == want
