"""keras_largeout: the exact softmax by its op alone, and the Keras heads with their loss and optimizer."""

import keras
import tensorflow as tf

from benchmarks.peers import tf_common


def _initializer():
    """Seeded, so that the op and the layer must come to the same losses."""
    return keras.initializers.RandomUniform(-0.05, 0.05, seed=1)


def _rotation(data):
    return tf_common.batches(data, "hidden"), tf_common.batches(data, "targets")


def full_ops(config, data):
    """full_softmax_terms, its gradients and row_update in a tf.function: no layer, no optimizer object."""
    from keras_largeout.distribute.tables.table import ShardedTable
    from keras_largeout.ops.full_softmax.wrapper import Expected, full_softmax_terms
    from keras_largeout.ops.row_update import row_update, sgd_hyper

    table = ShardedTable((config["classes"], config["dim"]), _initializer()).variable
    bias = ShardedTable((config["classes"],), "zeros").variable
    rows = tf.range(config["classes"], dtype=tf.int64)

    def step(hidden, targets):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            expected = Expected(tf.ones(config["tokens"]))
            loss = tf.reduce_mean(full_softmax_terms(hidden, targets, table, bias, expected=expected).ce)
        d_hidden, *gradients = tape.gradient(loss, [hidden, table, bias])
        for variable, gradient in zip((table, bias), gradients):
            row_update("sgd", variable, [], rows, gradient, sgd_hyper(config["lr"]))
        with tf.control_dependencies([d_hidden]):
            return tf.identity(loss)

    return tf_common.rotate(step, *_rotation(data))


def _keras_step(config, data, head):
    """A head, `head.loss` and `optimizers.SGD`, as `fit` would run them."""
    from keras_largeout import optimizers

    head.build((None, config["dim"]))
    loss_of, optimizer = head.loss, optimizers.SGD(config["lr"])
    optimizer.build(head.trainable_variables)

    def step(hidden, targets):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = loss_of(targets, head(hidden, training=True))
        weights = head.trainable_variables
        d_hidden, *gradients = tape.gradient(loss, [hidden, *(w.value for w in weights)])
        optimizer.apply(gradients, weights)
        with tf.control_dependencies([d_hidden]):
            return tf.identity(loss)

    return tf_common.rotate(step, *_rotation(data))


def full(config, data):
    from keras_largeout import layers

    return _keras_step(config, data, layers.FullSoftmax(config["classes"], kernel_initializer=_initializer()))


def sampled(config, data):
    """Its log-uniform candidates: classes are sorted by frequency."""
    from keras_largeout import layers

    head = layers.SampledSoftmax(
        config["classes"], config["samples"], seed=1, kernel_initializer=_initializer()
    )
    return _keras_step(config, data, head)
