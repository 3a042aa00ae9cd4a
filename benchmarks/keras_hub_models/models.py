"""GPT-2 of keras_hub with random weights: trained with its own dense logits, and with a `FullSoftmax`."""

import keras
import keras_hub
import tensorflow as tf

from benchmarks.peers import tf_common


def _backbone(config):
    keras.utils.set_random_seed(1)
    return keras_hub.models.GPT2Backbone(
        vocabulary_size=config["words"],
        num_layers=config["layers"],
        num_heads=4,
        hidden_dim=config["dim"],
        intermediate_dim=4 * config["dim"],
        max_sequence_length=config["length"],
        dropout=0.0,
    )


def _steps(config, data, model, loss_of, optimizer=None, jit_compile=None):
    """Return what `fit` does with one batch: the loss, its gradients, and a step of Adam."""
    optimizer = optimizer or keras.optimizers.Adam(config["lr"])
    optimizer.build(model.trainable_variables)

    def step(tokens, targets):
        with tf.GradientTape() as tape:
            outputs = model({"token_ids": tokens, "padding_mask": tf.ones_like(tokens)}, training=True)
            loss = loss_of(targets, outputs)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, [w.value for w in weights]), weights)
        return tf.identity(loss)

    return tf_common.rotate(
        step, tf_common.batches(data, "tokens"), tf_common.batches(data, "targets"), jit_compile=jit_compile
    )


def dense(config, data, jit_compile=None):
    """Return the model that keras_hub makes, with the loss that it takes."""
    model = keras_hub.models.GPT2CausalLM(backbone=_backbone(config), preprocessor=None)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return _steps(config, data, model, loss, jit_compile=jit_compile)


def dense_under_xla(config, data):
    return dense(config, data, jit_compile=True)


def full_softmax(config, data, optimizer=None):
    import keras_largeout as kl

    backbone = _backbone(config)
    head = kl.layers.FullSoftmax(config["words"], kernel=backbone.token_embedding, use_bias=False)
    model = kl.Model(backbone.input, head(backbone.output))
    return _steps(config, data, model, head.loss, optimizer)


def full_softmax_and_adam(config, data):
    """Return the same with the `LazyAdam` of this package, whose step on a dense gradient is Adam's."""
    import keras_largeout as kl

    return full_softmax(config, data, kl.optimizers.LazyAdam(config["lr"]))


def without_logits(config, data):
    """Return the memory that every output layer needs: the backbone, and a gradient of the whole table."""
    backbone = _backbone(config)
    table = backbone.token_embedding.embeddings

    def loss_of(targets, hidden):
        return tf.reduce_mean(tf.square(hidden)) + 1e-20 * tf.reduce_sum(table.value)

    return _steps(config, data, backbone, loss_of)
