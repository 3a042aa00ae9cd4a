"""TensorFlow's own ways: a dense layer by `tf.matmul`, a sparse one by `tf.sparse.sparse_dense_matmul`.

Both train by a Keras optimizer, with the losses of ours from logits that are whole.
"""

import keras
import numpy as np
import tensorflow as tf

from benchmarks.peers import tf_common


def squared_hinge(logits, targets):
    """Return mean over the examples of `logits` [batch, labels]; `targets` [batch, n] are label ids."""
    of_labels = tf.gather(logits, targets, batch_dims=1)
    terms = tf.square(tf.nn.relu(1 - of_labels)) - tf.square(tf.nn.relu(1 + of_labels))
    losses = tf.reduce_sum(tf.square(tf.nn.relu(1 + logits)), -1) + tf.reduce_sum(terms, -1)
    return tf.reduce_mean(losses)


def _train(config, data, weights, logits_of):
    """Return loss, gradients of the weights and of the inputs, Keras's Adam."""
    optimizer = keras.optimizers.Adam(config["lr"])
    optimizer.build(weights)

    def step(hidden, targets):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = squared_hinge(logits_of(hidden), targets)
        d_hidden, *gradients = tape.gradient(loss, [hidden, *(w.value for w in weights)])
        optimizer.apply(gradients, weights)
        with tf.control_dependencies([d_hidden]):
            return tf.identity(loss)

    return tf_common.rotate(step, tf_common.batches(data, "hidden"), tf_common.batches(data, "targets"))


def baseline(config, data):
    """Return a small layer and a step of it: what a process with TensorFlow and Keras takes, whatever it
    does.
    """
    return dense_train(config, data)


def _dense(config):
    limit = config["inputs"] ** -0.5
    kernel = keras.Variable(
        lambda shape, dtype: tf.random.stateless_uniform(shape, [1, 2], -limit, limit),
        shape=(config["inputs"], config["labels"]),
        dtype="float32",
    )
    bias = keras.Variable("zeros", shape=(config["labels"],), dtype="float32")
    return kernel, bias


def dense_forward(config, data):
    """Return all logits. One of them is read back."""
    kernel, bias = _dense(config)
    return tf_common.rotate(
        lambda hidden: (tf.matmul(hidden, kernel.value) + bias.value)[0, 0], tf_common.batches(data, "hidden")
    )


def dense_top_k(config, data):
    kernel, bias = _dense(config)
    return tf_common.rotate(
        lambda hidden: tf.math.top_k(tf.matmul(hidden, kernel.value) + bias.value, config["k"])[0][0, 0],
        tf_common.batches(data, "hidden"),
    )


def dense_train(config, data):
    kernel, bias = _dense(config)
    return _train(config, data, [kernel, bias], lambda hidden: tf.matmul(hidden, kernel.value) + bias.value)


def _sparse(config):
    """Return connections [labels * fan_in, 2], ascending, the values of the weights, and the bias."""
    labels, fan_in, inputs = config["labels"], config["fan_in"], config["inputs"]
    columns = np.sort(np.random.default_rng(3).integers(0, inputs - fan_in, (labels, fan_in)), -1)
    columns += np.arange(fan_in)  # no two alike in a row
    pairs = np.stack([np.repeat(np.arange(labels), fan_in), columns.reshape(-1)], -1)
    limit = fan_in**-0.5
    values = keras.Variable(
        lambda shape, dtype: tf.random.stateless_uniform(shape, [1, 2], -limit, limit),
        shape=(labels * fan_in,),
        dtype="float32",
    )
    bias = keras.Variable("zeros", shape=(labels,), dtype="float32")
    pairs = tf.Variable(pairs)  # a constant would be a part of the graph, which must stay below 2 GB

    def logits(hidden):
        matrix = tf.SparseTensor(pairs, values.value, (labels, inputs))
        return tf.transpose(tf.sparse.sparse_dense_matmul(matrix, hidden, adjoint_b=True)) + bias.value

    return values, bias, logits


def sparse_forward(config, data):
    *_, logits = _sparse(config)
    return tf_common.rotate(lambda hidden: logits(hidden)[0, 0], tf_common.batches(data, "hidden"))


def sparse_train(config, data):
    """Return the gradient of the values gathers [labels * fan_in, batch] twice: gigabytes."""
    values, bias, logits = _sparse(config)
    return _train(config, data, [values, bias], logits)
