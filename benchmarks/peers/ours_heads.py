"""What the cases of keras_largeout's output heads share."""

import keras
import tensorflow as tf

from benchmarks.peers import tf_common


def initializer():
    """Return a seeded initializer, so that the op and the layer must have the same losses."""
    return keras.initializers.RandomUniform(-0.05, 0.05, seed=1)


def rotation(data):
    return tf_common.batches(data, "hidden"), tf_common.batches(data, "targets")


def head_step(config, data, head, **call):
    """Return a head, `head.loss` and `optimizers.SGD`, as `fit` would run them. `call`: arguments of its
    call.
    """
    from keras_largeout import optimizers

    head.build((None, config["dim"]))
    loss_of, optimizer = head.loss, optimizers.SGD(config["lr"])
    optimizer.build(head.trainable_variables)

    def step(hidden, targets):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = loss_of(targets, head(hidden, **call))
        weights = head.trainable_variables
        d_hidden, *gradients = tape.gradient(loss, [hidden, *(w.value for w in weights)])
        optimizer.apply(gradients, weights)
        with tf.control_dependencies([d_hidden]):
            return tf.identity(loss)

    return tf_common.rotate(step, *rotation(data))
