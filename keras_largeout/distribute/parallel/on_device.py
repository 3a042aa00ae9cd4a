"""`OnDevice`: a layer whose weights, forward pass, backward pass and update are on one device."""

import functools
import weakref
from typing import TypeVar

import keras
import tensorflow as tf

from keras_largeout import _head_annotations
from keras_largeout._keras import (
    all_layers,
    is_symbolic,
    mask_of,
    move_variable,
    uncast,
    with_mask,
)
from keras_largeout.distribute.parallel.losses import losses_collected
from keras_largeout.distribute.parallel.recording import compute_there
from keras_largeout.ops import export_mode
from keras_largeout.tables.shard import ShardVariable

_PENALTIES = "keras_largeout/penalties"  # the collection of a graph: (weight, its penalty)
_placed = weakref.WeakKeyDictionary()  # layer -> device


Layer = TypeVar("Layer", bound=keras.Layer)


def OnDevice(layer: Layer, device: str, remat: bool = False) -> Layer:
    """Puts a layer, or a model, on a device: weights, slots, forward pass, backward pass and update.

    (`with tf.device(...)` around a call puts the forward pass there, and nothing else.) The layer stays the
    same object, with the same names, config and files: what was saved with it loads without, and the reverse.
    A clone is placed nowhere. In an export it is an ordinary layer.

    Masks, the argument `training`, several inputs and outputs, losses that layers inside it add, and
    penalties of its weights work as before. The penalty of an output (`activity_regularizer`) of the layer
    itself is computed where Keras calls it, and gradients are clipped where the loss is. The model must be a
    `kl.Model` or `kl.Sequential`, whose `compile` has the optimizer make its slots beside the weights.

    Args:
        layer: `keras.layers.Layer` or `keras.Model`, built or not.
        device: name of a device, such as "GPU:1".
        remat: True: the backward pass computes the forward pass again, whose values need not be kept. It
            draws the same random numbers (those of `keras.random` with a `SeedGenerator` of the layer), and
            states such as the averages of BatchNormalization change once. Defaults to `False`.

    Returns:
        `layer`.

    Raises:
        ValueError: another kind of layer, a device that is not there, a layer that is placed elsewhere or has
            a table over several; with `remat`, in a call, a DynamicVocabulary.
        NotImplementedError: in a call under a strategy of several replicas.
        tf.errors.InvalidArgumentError: with `remat`, in the backward pass: the forward pass, computed again,
            has another result.

    Example:

    >>> encoder = kl.distribute.OnDevice(keras.layers.LSTM(512), "GPU:0")
    >>> head = kl.distribute.OnDevice(keras.layers.Dense(1000), "GPU:1")
    >>> model = kl.Sequential([keras.Input((None, 64)), encoder, head])

    References:
        - [Huang et al., 2019](https://arxiv.org/abs/1811.06965) (a device for each stage, forward passes
          computed again).
    """
    if not isinstance(layer, keras.layers.Layer):
        raise ValueError(f"`layer` must be a keras.layers.Layer. Received: layer={layer!r}")
    device = checked_device(device)
    own(layer, device)
    if not hasattr(layer.call, "placed"):
        _place(layer, device, remat)
    return layer


def own(layer, device):
    """Puts the weights of a layer on a device, those that it will make too, and remembers it.

    Where the layer is called is another's business. The weights of a head that shares the table of an
    embedding go where that is.

    Raises:
        ValueError: it was put elsewhere before, or has a table over several devices.
    """
    shared = getattr(layer, "tied_to", lambda: None)()
    if shared is not None:
        device = _placed.get(shared, device)
        own(shared, device)
    if _placed.get(layer, device) != device:
        raise ValueError(
            f"`device` must be that on which {layer.name!r} was put before, {_placed[layer]}. "
            f"Received: device={device!r}"
        )
    if layer in _placed:
        return
    for weight in layer.weights:
        _move(weight, device)
        _penalise_there(weight, device)
    _placed[layer] = device
    for inside in all_layers(layer):
        inside.supports_jit = False  # XLA compiles for one device
    if not layer.built:
        _build_there(layer, device)


def device_of(layer):
    """Return the name of the device on which `OnDevice` put a layer; None where it did not."""
    return _placed.get(layer)


def note_placed(layer, device):
    """Notes that the weights of a layer were put where they are, on that device among others."""
    _placed[layer] = device


def checked_device(device):
    known = [d.name.removeprefix("/device:") for d in tf.config.list_logical_devices()]
    name = str(device).removeprefix("/device:")
    if name not in known:
        raise ValueError(
            f"`device` must be one of {known}. (Logical devices stand for others: "
            "`tf.config.set_logical_device_configuration` makes several of one, before anything else.) "
            f"Received: device={device!r}"
        )
    return name


def _build_there(layer, device):
    build = layer.build

    @functools.wraps(build)
    def build_there(*args, **kwargs):
        with tf.device(device):
            build(*args, **kwargs)
        for weight in layer.weights:
            _penalise_there(weight, device)

    layer.build = build_there


def _place(layer, device, remat):
    call = layer.call

    @functools.wraps(call)
    def call_there(*args, **kwargs):
        if export_mode.is_exporting() or is_symbolic():
            return call(*args, **kwargs)
        return _called(layer, call, device, remat, args, kwargs)

    call_there.placed = True
    layer.call = call_there


def _move(weight, device):
    if isinstance(weight, ShardVariable):
        weight.move(device)
        return
    there = uncast(weight)
    with tf.init_scope(), tf.device(device):
        moved = tf.Variable(
            tf.identity(there),
            trainable=there.trainable,
            dtype=there.dtype,
            name=weight.name,
            aggregation=there.aggregation,
        )
    move_variable(weight, moved)


def _penalise_there(weight, device):
    """Compute the penalty of a weight, and its gradient, on the device."""
    regularizer = getattr(weight, "regularizer", None)
    if regularizer is None or isinstance(regularizer, _Penalty):
        return
    weight.regularizer = _Penalty(regularizer, device)


class _Penalty(keras.regularizers.Regularizer):
    """A regularizer whose penalty is computed on a device. It has the config of the one inside it."""

    def __init__(self, inside, device):
        self.inside, self.device = inside, device

    def __call__(self, weight):
        if export_mode.is_exporting() or is_symbolic():
            return self.inside(weight)
        for known, penalty in penalties_known():
            if known is weight:
                return penalty
        variable = uncast(weight) if isinstance(weight, keras.Variable) else weight
        (penalty,) = compute_there(self.device, lambda: [self.inside(weight)], [], lambda: [variable])
        return penalty

    def get_config(self):
        return self.inside.get_config()


def penalties_known():
    """Return those that layers of the graph have computed in their calls: a list of `(weight, penalty)`.

    So the gradient of a weight that has a penalty arrives in one piece, and is summed on its device.
    """
    if tf.executing_eagerly():
        return []
    return tf.compat.v1.get_default_graph().get_collection_ref(_PENALTIES)


def penalised_weights(layers):
    """Return the weights of placed layers whose penalties no call of the same graph has computed; none
    outside.
    """
    if tf.executing_eagerly():
        return []
    known = penalties_known()
    weights = {id(w): w for layer in layers for w in layer.trainable_weights}
    return [
        weight
        for weight in weights.values()
        if isinstance(getattr(weight, "regularizer", None), _Penalty)
        and not any(weight is other for other, _ in known)
    ]


def refuse_replicas(what):
    """Raises NotImplementedError in a call under a strategy of several replicas."""
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync > 1:
        raise NotImplementedError(
            f"{what} cannot be called on several replicas. Received: a {type(strategy).__name__} of "
            f"{strategy.num_replicas_in_sync}"
        )


def _called(layer, call, device, remat, args, kwargs):
    """Return what a call of a layer returns, computed on the device, and so its gradients."""
    refuse_replicas(f"A layer on one device ({layer.name!r} on {device})")
    flat = tf.nest.flatten((args, kwargs), expand_composites=True)
    at = [i for i, value in enumerate(flat) if tf.is_tensor(value) and value.dtype.is_floating]
    seen, penalised = {}, penalised_weights([layer])

    def compute(*inputs):
        values = list(flat)
        for i, value in zip(at, inputs):
            values[i] = with_mask(value, mask_of(flat[i]))
        given, named = tf.nest.pack_sequence_as((args, kwargs), values, expand_composites=True)
        with losses_collected(all_layers(layer)) as added:
            result = call(*given, **named)
        outputs = tf.nest.flatten(result, expand_composites=True)
        seen.update(result=result, outputs=outputs, added=[inside for inside, _ in added])
        return [
            *(o for o in outputs if _differs(o)),
            *(loss for _, loss in added),
            *(weight.regularizer.inside(weight) for weight in penalised),
        ]

    inputs = [flat[i] for i in at]
    variables = lambda: [uncast(v) for v in layer.trainable_variables]  # noqa: E731
    found = iter(compute_there(device, compute, inputs, variables, [layer] if remat else None))
    outputs = [_noted(next(found), o) if _differs(o) else o for o in seen["outputs"]]
    for inside in seen["added"]:
        inside.add_loss(next(found))
    penalties_known().extend(zip(penalised, found))
    return tf.nest.pack_sequence_as(seen["result"], outputs, expand_composites=True)


def _differs(value):
    return tf.is_tensor(value) and value.dtype.is_floating


def _noted(wrapped, value):
    """Return `wrapped`, with the mask and the notes of heads of `value`."""
    _head_annotations.copy_annotations(value, wrapped)
    return with_mask(wrapped, mask_of(value))
