"""A function that all replicas compute in one call."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

from keras_largeout.replicas.cross_replica import cross_replica_call


def scaled_by_the_sum(values):
    """Every replica's values times the sum of all of them."""

    def forward(*replicas):
        total = tf.add_n([tf.reduce_sum(x) for (x,) in replicas])
        return [x * total for (x,) in replicas], (total, [x for (x,) in replicas])

    def backward(saved, grads):
        total, xs = saved
        back = tf.add_n([tf.reduce_sum(g * x) for g, x in zip(grads, xs)])
        return [(g * total + back,) for g in grads]

    return cross_replica_call(forward, backward, values)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_values_and_gradients(devices, rng):
    strategy = strategy_of(devices)
    x = rng.normal(size=(8, 3)).astype("float32")
    parts = np.split(x, devices)

    @tf.function
    def step():
        def replica():
            ctx = tf.distribute.get_replica_context()
            mine = tf.constant(np.stack(parts))[ctx.replica_id_in_sync_group]
            with tf.GradientTape() as tape:
                tape.watch(mine)
                y = tf.reduce_sum(tf.sin(scaled_by_the_sum(mine)))
            return y, tape.gradient(y, mine)

        return strategy.run(replica)

    y, grads = step()
    local = strategy.experimental_local_results
    variable = tf.Variable(x)
    with tf.GradientTape() as tape:
        want = tf.reduce_sum(tf.sin(variable * tf.reduce_sum(variable)))
    np.testing.assert_allclose(sum(local(y)), want, rtol=1e-5)
    np.testing.assert_allclose(
        np.concatenate(local(grads)), tape.gradient(want, variable), rtol=1e-4, atol=1e-5
    )


def test_in_a_model(rng):
    class Layer(keras.layers.Layer):
        def call(self, inputs):
            return scaled_by_the_sum(inputs)

    x = rng.normal(size=(16, 4)).astype("float32")
    losses = []
    for devices in (1, 2):
        keras.utils.set_random_seed(1)
        with strategy_of(devices).scope():
            model = keras.Sequential([keras.layers.Dense(4), Layer(), keras.layers.Dense(1)])
            model.compile("sgd", "mse", run_eagerly=False)
        losses.append(model.fit(x, x[:, :1], epochs=2, batch_size=16, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
