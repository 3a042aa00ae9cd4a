"""keras_largeout: the exact softmax by its op alone, and the Keras heads with their loss and optimizer."""

import tensorflow as tf

from benchmarks.peers import tf_common
from benchmarks.peers.ours_heads import head_step, initializer, rotation


def full_ops(config, data):
    """Return full_softmax_terms, its gradients and row_update in a tf.function: no layer, no optimizer
    object.
    """
    from keras_largeout.ops.full_softmax.wrapper import Expected, full_softmax_terms
    from keras_largeout.ops.row_update import row_update, sgd_hyper
    from keras_largeout.tables.table import ShardedTable

    table = ShardedTable((config["classes"], config["dim"]), initializer()).variable
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

    return tf_common.rotate(step, *rotation(data))


def _policy(config):
    return "mixed_bfloat16" if config["bfloat16"] else None


def full(config, data):
    from keras_largeout import layers

    head = layers.FullSoftmax(config["classes"], kernel_initializer=initializer(), dtype=_policy(config))
    return head_step(config, data, head, training=True)


def sampled(config, data):
    """Return its log-uniform candidates: classes are sorted by frequency."""
    from keras_largeout import layers

    head = layers.SampledSoftmax(
        config["classes"], config["samples"], seed=1, kernel_initializer=initializer(), dtype=_policy(config)
    )
    return head_step(config, data, head, training=True)
