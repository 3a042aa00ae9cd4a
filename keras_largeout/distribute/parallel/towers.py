"""Towers: models of one architecture, each on its own device, whose outputs are mixed."""

import keras
import tensorflow as tf

from keras_largeout._keras import is_symbolic, losses_given, uncast
from keras_largeout.distribute.parallel.clones import clone_of, empty_clone, inputs_like, new_model
from keras_largeout.distribute.parallel.on_device import OnDevice
from keras_largeout.distribute.parallel.recording import compute_there
from keras_largeout.ops import export_mode
from keras_largeout.ops._gradients import with_gradients

_MIXED = "_largeout_mixed"  # on an output of `MixedTowers`: `(outputs of the towers, log of the gates)`
_LIKELIHOODS = (
    keras.losses.BinaryCrossentropy,
    keras.losses.CategoricalCrossentropy,
    keras.losses.SparseCategoricalCrossentropy,
)


def in_towers(model, devices, mix, gate):
    """Return a model of as many towers as devices. The first has the values of `model`, the others first
    ones.

    Args:
        model: functional model, built.
        devices: list of names.
        mix: "mean" or "gated".
        gate: None, or a layer from the inputs of the model to `[batch, towers]`.
    """
    _check(model, mix, gate)
    if len(devices) == 1:
        return OnDevice(clone_of(model), devices[0])
    towers = [clone_of(model), *(empty_clone(model, _seeded_anew(k)) for k in range(1, len(devices)))]
    inputs = inputs_like(model)
    outputs = []
    for k, (tower, device) in enumerate(zip(towers, devices)):
        tower.name = f"tower_{k}"
        outputs.append(OnDevice(tower, device)(inputs))
    mixing = MixedTowers(mix, name="mixed")
    mixing.devices = list(devices)
    if mix == "mean":
        mixed = mixing(outputs)
    else:
        gates = gate(inputs) if gate is not None else _gate(inputs, len(devices))
        mixed = mixing(outputs, gates)
    result = new_model(inputs, mixed, model.name)
    _learn_by_towers(result, mixing, devices)
    return result


def _check(model, mix, gate):
    if mix not in ("mean", "gated"):
        raise ValueError(f"`mix` must be 'mean' or 'gated'. Received: mix={mix!r}")
    heads = [layer.name for layer in model.layers if hasattr(layer, "token_losses")]
    if heads:
        raise ValueError(
            "`how` must not be 'towers' for a model with a head, which returns hidden vectors: those of "
            f"several towers cannot be mixed. Received: a model with the head {heads[0]!r}"
        )
    if mix == "gated" and not isinstance(model.output, keras.KerasTensor):
        raise ValueError(f"`mix` must be 'mean' for several outputs. Received: {model.output}")
    floating = all("float" in str(tensor.dtype) and not tensor.sparse for tensor in model.inputs)
    if mix == "gated" and gate is None and not floating:
        raise ValueError(
            "`gate` must be a layer from the model's inputs to [batch, towers] where they are not dense and "
            f"floating. Received: gate=None for inputs of {[tensor.dtype for tensor in model.inputs]}"
        )


def _seeded_anew(tower):
    """Return a function that copies a layer, with other seeds: equal towers would learn the same."""

    def anew(config):
        if isinstance(config, dict):
            return {
                key: value + tower if key == "seed" and isinstance(value, int) else anew(value)
                for key, value in config.items()
            }
        return [anew(value) for value in config] if isinstance(config, list) else config

    return lambda layer: type(layer).from_config(anew(layer.get_config()))


def _gate(inputs, towers):
    flat = [keras.layers.Flatten()(tensor) for tensor in keras.tree.flatten(inputs)]
    joined = flat[0] if len(flat) == 1 else keras.layers.Concatenate()(flat)
    return keras.layers.Dense(towers, activation="softmax", name="gate")(joined)


@keras.saving.register_keras_serializable(package="keras_largeout")
class MixedTowers(keras.layers.Layer):
    """Mixes the outputs of towers.

    Args:
        mix: "mean", or "gated": weighted by gates, `[batch, towers]`, that are positive and sum to 1.
        **kwargs: as of any Keras layer.

    Attributes:
        log_deviation: with gates, `[towers, 1]`: the standard deviations of the towers' outputs, where they
            are gaussian.
    """

    devices = None

    def __init__(self, mix="mean", **kwargs):
        super().__init__(**kwargs)
        self.mix = mix

    def build(self, outputs_shape, gates_shape=None):
        if self.mix == "gated":
            shape = (len(outputs_shape), 1)
            self.log_deviation = self.add_weight(shape=shape, initializer="zeros", name="log_deviation")
        self.built = True

    def call(self, outputs, gates=None):
        def mixed(*leaves):
            if self.mix == "mean":
                return sum(leaves[1:], leaves[0]) / len(leaves)
            axes = [1] * (len(leaves[0].shape) - 1)
            each = [leaf * keras.ops.reshape(gates[:, k], (-1, *axes)) for k, leaf in enumerate(leaves)]
            return sum(each[1:], each[0])

        result = keras.tree.map_structure(mixed, *outputs)
        if self.devices and not (is_symbolic() or export_mode.is_exporting()):
            for leaf in keras.tree.flatten(result):
                setattr(leaf, _MIXED, (list(outputs), gates))
        return result

    def compute_output_spec(self, outputs, gates=None):
        return keras.tree.map_structure(lambda t: keras.KerasTensor(t.shape, t.dtype), outputs[0])

    def get_config(self):
        return {**super().get_config(), "mix": self.mix}


def _learn_by_towers(model, mixing, devices):
    """Make the loss of the model the loss of its towers, each computed on its tower's device."""
    as_keras = model.compute_loss

    def compute_loss(x=None, y=None, y_pred=None, sample_weight=None, training=True):
        noted = getattr(keras.tree.flatten(y_pred)[0], _MIXED, None)
        if noted is None or is_symbolic():
            return as_keras(x, y, y_pred, sample_weight, training)
        outputs, gates = noted
        added = list(model.losses)
        if mixing.mix == "gated":
            losses = [
                _there(device, output, lambda o, k=k: _negative_log(model, mixing, k, y, o), mixing)
                for k, (device, output) in enumerate(zip(devices, outputs))
            ]
            return _mixture(losses, gates, sample_weight) + (tf.add_n(added) if added else 0.0)

        def loss_of(output):
            with losses_given(model, [tf.zeros([])]):  # each tower has its own, added below
                return as_keras(x, y, output, sample_weight, training)

        losses = [_there(device, output, loss_of) for device, output in zip(devices, outputs)]
        return _shown_as_mean([*losses, *added], len(devices))

    model.compute_loss = compute_loss


def _there(device, output, loss, layer=None):
    flat = keras.tree.flatten(output)
    variables = [uncast(v) for v in (layer.trainable_variables if layer is not None else ())]
    return compute_there(
        device,
        lambda *inner: [loss(keras.tree.pack_sequence_as(output, inner))],
        flat,
        lambda: variables,
    )[0]


def _shown_as_mean(losses, towers):
    """Return the sum over the number of towers, with the gradient of the sum: each learns as it would
    alone.
    """
    value = tf.add_n(losses) / towers
    return with_gradients(lambda grad: [grad] * len(losses), [value], losses)[0]


def _negative_log(model, mixing, k, y, output):
    """Return -log of the likelihood that tower k gives the targets of each example, over the number of
    terms.
    """
    loss = keras.losses.get(model.loss)
    name = getattr(loss, "__name__", "")
    if isinstance(loss, keras.losses.MeanSquaredError) or name == "mean_squared_error":
        y = tf.cast(tf.reshape(y, tf.shape(output)), output.dtype)
        log_deviation = mixing.log_deviation.value[k]
        squares = tf.square((y - output) * tf.exp(-log_deviation))
        terms = 0.5 * squares + log_deviation + 0.5 * tf.math.log(2 * 3.141592653589793)
    elif isinstance(loss, _LIKELIHOODS) and not loss.get_config().get("from_logits"):
        terms = loss.call(y, output)
    elif name.endswith("crossentropy"):
        terms = loss(y, output)
    else:
        raise ValueError(
            "`loss` must be a cross-entropy of probabilities, or 'mse' (a gaussian), where towers are "
            f"mixed by gates: it must be -log of a likelihood. Received: loss={model.loss!r}"
        )
    terms += 0.0 * mixing.log_deviation.value[k, 0]  # a gradient where there is none: Keras warns of those
    return tf.reduce_mean(tf.reshape(terms, [tf.shape(output)[0], -1]), axis=1)


def _mixture(losses, gates, sample_weight):
    """Return -log of the likelihood of the mixture.

    Source: Jacobs, Jordan, Nowlan and Hinton, "Adaptive mixtures of local experts", Neural Computation 3
    (1991), equation 1.3.
    """
    logs = tf.math.log(gates + keras.config.epsilon()) - tf.stack(losses, axis=1)
    each = -tf.reduce_logsumexp(logs, axis=1)
    if sample_weight is not None:
        each *= tf.cast(tf.reshape(sample_weight, tf.shape(each)), each.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(each), tf.cast(tf.size(each), each.dtype))
