"""keras_largeout: a layer with fixed fan-in by its ops alone, and as `SparseOutput` with an optimizer."""

import keras
import tensorflow as tf

from benchmarks.peers import tf_common

LOSS, SEED = "squared_hinge", 1
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7


def _rotation(data):
    return tf_common.batches(data, "hidden"), tf_common.batches(data, "targets")


def _weights(config):
    """Return the weights that the layer below would have: the ops and the layer must come to the same
    losses.
    """
    from keras_largeout.distribute.outputs.fan_in_weights import FanInWeights

    shape = config["labels"], config["fan_in"], config["inputs"]
    return FanInWeights(*shape, config["dtype"], True, _initializer(config), "zeros", SEED, trainable=True)


def _initializer(config):
    limit = config["fan_in"] ** -0.5
    return keras.initializers.RandomUniform(-limit, limit, seed=SEED)


def _loss(weights, hidden, targets, **options):
    from keras_largeout.ops.fan_in.wrapper import fan_in_loss

    (part,) = weights.parts()
    splits = tf.range(targets.shape[0] + 1) * targets.shape[1]
    losses = fan_in_loss(hidden, tf.reshape(targets, [-1]), splits, *part.operands, loss=LOSS, **options)
    return tf.reduce_mean(losses)


def logits(config, data):
    """Return all logits, [batch, labels]. One of them is read back."""
    from keras_largeout.ops.fan_in.wrapper import fan_in_logits

    (part,) = _weights(config).parts()
    return tf_common.rotate(lambda hidden: fan_in_logits(hidden, *part.operands)[0, 0], _rotation(data)[0])


def loss(config, data):
    """Return the loss of a batch, forward only: no logits are kept."""
    weights = _weights(config)
    return tf_common.rotate(lambda hidden, targets: _loss(weights, hidden, targets), *_rotation(data))


def top_k(config, data):
    from keras_largeout.ops.fan_in.wrapper import fan_in_top_k

    (part,) = _weights(config).parts()
    return tf_common.rotate(
        lambda hidden: fan_in_top_k(hidden, *part.operands, config["k"])[0][0, 0], _rotation(data)[0]
    )


def _slots(weights):
    """Return two float32 variables for the kernel and two for the bias."""
    return [
        [table.shards[0].new_slot(name, 0.0).value for name in ("m", "v")]
        for table in (weights.kernel, weights.bias)
    ]


def gradients_ops(config, data):
    """Return gradients [labels, fan_in] by the tape, then TensorFlow's own op of Adam: no layer."""
    weights = _weights(config)
    (part,) = weights.parts()
    slots, steps = _slots(weights), tf.Variable(0, dtype=tf.int64)

    def step(hidden, targets):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = _loss(weights, hidden, targets)
        variables = part.kernel, part.bias
        d_hidden, *gradients = tape.gradient(loss, [hidden, *variables])
        count = tf.cast(steps.assign_add(1), tf.float32)
        for variable, (m, v), gradient in zip(variables, slots, gradients):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=BETA_1**count,
                beta2_power=BETA_2**count,
                lr=config["lr"],
                beta1=BETA_1,
                beta2=BETA_2,
                epsilon=EPSILON,
                grad=gradient,
            )
        with tf.control_dependencies([d_hidden]):
            return tf.identity(loss)

    return tf_common.rotate(step, *_rotation(data))


def fused_ops(config, data):
    """Return the step in the backward pass of the op: Adam, and for bfloat16 weights SGD."""
    from keras_largeout.ops import row_update as rows
    from keras_largeout.ops.fan_in.wrapper import FanInUpdate

    weights = _weights(config)
    adam = config["dtype"] == "float32"
    slots, steps = _slots(weights) if adam else ((), ()), tf.Variable(0, dtype=tf.int64)

    def step(hidden, targets):
        count = steps.assign_add(1)
        hyper = rows.sgd_hyper(config["lr"])
        if adam:
            alpha = rows.adam_alpha(config["lr"], BETA_1, BETA_2, count)
            hyper = rows.lazy_adam_hyper(alpha, BETA_1, BETA_2, EPSILON)
        update = FanInUpdate("adam" if adam else "sgd", hyper, *map(tuple, slots), (SEED, count))
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = _loss(weights, hidden, targets, update=update)
        with tf.control_dependencies([tape.gradient(loss, hidden)]):
            return tf.identity(loss)

    return tf_common.rotate(step, *_rotation(data))


def gradients_keras(config, data):
    """Return `SparseOutput` and `LazyAdam`, which gets its gradients whole."""
    from keras_largeout import optimizers

    return _keras_step(config, data, optimizers.LazyAdam(config["lr"], epsilon=EPSILON), fused=False)


def fused_keras(config, data):
    """Return `SparseOutput(optimizer=...)`: Adam, and for bfloat16 weights SGD."""
    adam = config["dtype"] == "float32"
    make = keras.optimizers.Adam if adam else keras.optimizers.SGD
    return _keras_step(config, data, make(config["lr"]), fused=True)


def _keras_step(config, data, optimizer, fused):
    from keras_largeout import layers

    head = layers.SparseOutput(
        config["labels"],
        config["fan_in"],
        loss=LOSS,
        optimizer=optimizer if fused else None,
        kernel_initializer=_initializer(config),
        seed=SEED,
        dtype=config["dtype"],
    )
    head.build((None, config["inputs"]))
    loss_of = head.loss
    if not fused:
        optimizer.build(head.trainable_variables)

    def step(hidden, targets):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = loss_of(targets, head(hidden))
        weights = head.trainable_variables
        d_hidden, *gradients = tape.gradient(loss, [hidden, *(w.value for w in weights)])
        if not fused:
            optimizer.apply(gradients, weights)
        with tf.control_dependencies([d_hidden]):
            return tf.identity(loss)

    return tf_common.rotate(step, *_rotation(data))
