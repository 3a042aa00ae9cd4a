"""keras.layers.Embedding, reduce_sum and a Keras optimizer in one tf.function, as `fit` would run them."""

import keras
import tensorflow as tf

from benchmarks._data import load
from benchmarks.peers import tf_common

OPTIMIZERS = {
    "sgd": lambda lr: keras.optimizers.SGD(lr),
    "adagrad": lambda lr: keras.optimizers.Adagrad(lr, initial_accumulator_value=0.1, epsilon=1e-7),
    "adam": lambda lr: keras.optimizers.Adam(lr, epsilon=1e-7),
}


def train_step(layer, optimizer, data, combine, jit_compile=None):
    """Return the step of any Keras layer of one table: also used for ours, so that both take the same
    path.
    """
    grad = tf.constant(load(data, "grad"))
    ids = tf_common.batches(data, "ids")
    layer.build(ids[0].shape)
    optimizer.build(layer.trainable_variables)

    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(combine(layer(batch)) * grad)
        weights = layer.trainable_variables
        optimizer.apply(tape.gradient(loss, [w.value for w in weights]), weights)
        return loss

    return tf_common.rotate(step, ids, jit_compile=jit_compile)


def step(config, data, jit_compile=None):
    layer = keras.layers.Embedding(
        config["rows"], config["dim"], embeddings_initializer=keras.initializers.Constant(config["init"])
    )
    return train_step(
        layer,
        OPTIMIZERS[config["optimizer"]](config["lr"]),
        data,
        lambda rows: tf.reduce_sum(rows, axis=-2),
        jit_compile,
    )


def jit_step(config, data):
    """Return compiled by XLA. Keras's own choice (`jit_compile="auto"`) is not to, on a machine without a
    GPU.
    """
    return step(config, data, jit_compile=True)
