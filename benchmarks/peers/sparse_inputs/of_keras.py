"""Keras 3 and TensorFlow: their hashes, and `Dense` on sparse or dense rows. Its models are ours too."""

import keras
import numpy as np
import tensorflow as tf

from benchmarks._step import Step
from benchmarks.peers.sparse_inputs._inputs import rows, strings

# The gradient of a mean over 4096 rows is small, and Ftrl's first accumulator, 0.1 by default, is not.
RATES = {"learning_rate": 0.2, "initial_accumulator_value": 1e-7}


def hash_strings(function, data, bins):
    """Return the step of a function from a tensor of strings to ids. Its loss: the last id, as a share of
    `bins`.
    """
    values = tf.constant(strings(data))

    @tf.function
    def last(values):
        return tf.cast(tf.reshape(function(values), [-1])[-1], tf.float64) / bins

    return Step(lambda _: float(last(values)))


def hash_fast(config, data):
    return hash_strings(
        lambda values: tf.strings.to_hash_bucket_fast(values, config["bins"]), data, config["bins"]
    )


def hash_layer(config, data):
    return hash_strings(keras.layers.Hashing(config["bins"]), data, config["bins"])


def one_pass(config, data, layer=None, optimizer=None, slots=lambda model: []):
    """Return each step is a `fit` over all rows, from weights of zero.

    Args:
        layer: the linear layer. None: `keras.layers.Dense`.
        optimizer: None: `keras.optimizers.Ftrl`.
        slots: from a model to those variables of the optimizer that it does not list.
    """
    from keras_largeout.datasets import SparseRows

    ids, values, labels = rows(data)
    indptr = np.arange(0, ids.size + 1, ids.shape[1])
    matrix = SparseRows(
        (indptr, ids.ravel(), values.ravel(), (len(ids), config["features"])), labels[:, None]
    )
    batches = matrix.dataset(config["batch"])
    model = _regression(config["features"], layer, optimizer)
    model.optimizer.build(model.trainable_variables)
    changed = [*model.trainable_variables, *model.optimizer.variables, *slots(model)]
    initial = [keras.ops.convert_to_numpy(v) for v in changed]

    def begin(_):
        for variable, value in zip(changed, initial):
            variable.assign(value)

    return Step(lambda _: model.fit(batches, verbose=0).history["loss"][0], before=begin)


def few_rows(config, data, layer=None, optimizer=None, dense=False):
    """Return a step is one batch of few rows."""
    ids, values, labels = (x[: 8 * config["batch"]] for x in rows(data))
    features, n = config["features"], config["batch"]
    model = _regression(features, layer, optimizer, sparse=not dense)
    row = np.repeat(np.arange(n), ids.shape[1])
    batches = []
    for i in range(0, len(ids), n):
        at = np.stack([row, ids[i : i + n].ravel()], 1)
        batches.append(
            (tf.SparseTensor(at, values[i : i + n].ravel(), (n, features)), labels[i : i + n, None])
        )

    def run(i):
        x, y = batches[i % len(batches)]
        if dense:
            x = tf.sparse.to_dense(x)
        return float(model.train_on_batch(x, y))

    return Step(run)


def few_dense_rows(config, data):
    return few_rows(config, data, dense=True)


def _regression(features, layer, optimizer, sparse=True):
    layer = layer or keras.layers.Dense(1, activation="sigmoid", kernel_initializer="zeros")
    inputs = keras.Input((features,), sparse=sparse)
    model = keras.Model(inputs, layer(inputs))
    model.compile(optimizer or keras.optimizers.Ftrl(**RATES), "binary_crossentropy", jit_compile=False)
    return model
