"""`OnDevice`: a layer whose weights, forward pass, backward pass and update are on one device."""

import functools
import weakref

import keras
import tensorflow as tf

from keras_largeout import _hidden
from keras_largeout._keras import added_losses, all_layers, is_symbolic, mask_of, move_variable, with_mask
from keras_largeout.distribute.tables.shard import ShardVariable
from keras_largeout.ops import export_mode
from keras_largeout.ops._gradients import differentiable, with_gradients

_PENALTIES = "keras_largeout/penalties"  # the collection of a graph: (weight, its penalty)
_placed = weakref.WeakKeyDictionary()  # layer -> device


def OnDevice(layer, device, remat=False):
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
        remat: True: the backward pass computes the forward pass again, whose values need not be kept. Not for
            layers with a state that a call changes, as BatchNormalization and Dropout.

    Returns:
        `layer`.

    Raises:
        ValueError: another kind of layer, a device that is not there, a layer that is placed elsewhere, or
            one with a state, where `remat`.
        NotImplementedError: in a call under a strategy of several replicas.

    Example:

    >>> encoder = kl.distribute.OnDevice(keras.layers.LSTM(512), "GPU:0")
    >>> head = kl.distribute.OnDevice(keras.layers.Dense(1000), "GPU:1")
    >>> model = kl.Sequential([keras.Input((None, 64)), encoder, head])

    Source: [Huang et al., 2019](https://arxiv.org/abs/1811.06965), whose stages lie on devices of their own,
    and who compute forward passes again.
    """
    if not isinstance(layer, keras.layers.Layer):
        raise ValueError(f"`layer` must be a keras.layers.Layer. Received: layer={layer!r}")
    device = _checked(device)
    if _placed.setdefault(layer, device) != device:
        raise ValueError(
            f"`device` must be that on which {layer.name!r} was put before, {_placed[layer]}. "
            f"Received: device={device!r}"
        )
    if not hasattr(layer.call, "placed"):
        _place(layer, device, remat)
    return layer


def device_of(layer):
    """The name of the device on which `OnDevice` put a layer; None where it did not."""
    return _placed.get(layer)


def _checked(device):
    known = [d.name.removeprefix("/device:") for d in tf.config.list_logical_devices()]
    name = str(device).removeprefix("/device:")
    if name not in known:
        raise ValueError(
            f"`device` must be one of {known}. (Logical devices stand for others: "
            "`tf.config.set_logical_device_configuration` makes several of one, before anything else.) "
            f"Received: device={device!r}"
        )
    return name


def _place(layer, device, remat):
    build, call = layer.build, layer.call

    @functools.wraps(build)
    def build_there(*args, **kwargs):
        with tf.device(device):
            build(*args, **kwargs)
        for weight in layer.weights:
            _penalise_there(weight, device)

    @functools.wraps(call)
    def call_there(*args, **kwargs):
        if export_mode.is_exporting() or is_symbolic():
            return call(*args, **kwargs)
        return _called(layer, call, device, remat, args, kwargs)

    call_there.placed = True
    layer.build, layer.call = build_there, call_there
    if layer.built:
        for weight in layer.weights:
            _move(weight, device)
            _penalise_there(weight, device)


def _move(weight, device):
    if isinstance(weight, ShardVariable):
        raise ValueError(
            f"`layer` must not be built yet where it has a table. Received: a layer with {weight.path!r}, "
            f"a table on {weight.value.device}"
        )
    there = weight.value
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
    """Has the penalty of a weight, and its gradient, computed on the device."""
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
        for known, penalty in _penalties():
            if known is weight:
                return penalty
        variable = weight.value if isinstance(weight, keras.Variable) else weight
        (penalty,) = _there(self.device, lambda: [self.inside(weight)], [], lambda: [variable])
        return penalty

    def get_config(self):
        return self.inside.get_config()


def _penalties():
    """Those that layers of the graph have computed in their calls: `(weight, penalty)`.

    So the gradient of a weight that has a penalty arrives in one piece, and is summed on its device.
    """
    if tf.executing_eagerly():
        return []
    return tf.compat.v1.get_default_graph().get_collection_ref(_PENALTIES)


def _called(layer, call, device, remat, args, kwargs):
    """What a call of a layer returns, computed on the device, and so its gradients."""
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync > 1:
        raise NotImplementedError(
            f"A layer on one device cannot be called on several replicas. Received: {layer.name!r} on "
            f"{device} under a {type(strategy).__name__} of {strategy.num_replicas_in_sync}"
        )
    if remat and (layer.non_trainable_variables or not layer.built):
        names = [v.path for v in layer.non_trainable_variables]
        raise ValueError(
            "`remat` must be False for a layer with a state that a call changes, such as "
            f"BatchNormalization or Dropout. Received: remat={remat!r} for {layer.name!r} with {names}"
        )
    flat = tf.nest.flatten((args, kwargs), expand_composites=True)
    at = [i for i, value in enumerate(flat) if tf.is_tensor(value) and value.dtype.is_floating]
    seen, known = {}, _penalties()
    penalised = []
    if not tf.executing_eagerly():
        with_penalty = [w for w in layer.trainable_weights if isinstance(w.regularizer, _Penalty)]
        penalised = [w for w in with_penalty if not any(w is other for other, _ in known)]

    def compute(*inputs):
        values = list(flat)
        for i, value in zip(at, inputs):
            values[i] = with_mask(value, mask_of(flat[i]))
        given, named = tf.nest.pack_sequence_as((args, kwargs), values, expand_composites=True)
        lists = [(losses, len(losses)) for losses in map(added_losses, all_layers(layer))]
        result = call(*given, **named)
        new = [(losses, i) for losses, before in lists for i in range(before, len(losses))]
        seen.update(result=result, new=new)
        outputs = tf.nest.flatten(result, expand_composites=True)
        seen["outputs"] = outputs
        return [
            *(o for o in outputs if _differs(o)),
            *(losses[i] for losses, i in new),
            *(weight.regularizer.inside(weight) for weight in penalised),
        ]

    inputs = [flat[i] for i in at]
    found = _there(device, compute, inputs, lambda: [v.value for v in layer.trainable_variables], remat)
    found = iter(found)
    outputs = [_noted(next(found), o) if _differs(o) else o for o in seen["outputs"]]
    for losses, i in seen["new"]:
        losses[i] = next(found)
    known.extend(zip(penalised, found))
    return tf.nest.pack_sequence_as(seen["result"], outputs, expand_composites=True)


def _differs(value):
    return tf.is_tensor(value) and value.dtype.is_floating


def _noted(wrapped, value):
    """`wrapped`, with the mask and the notes of heads of `value`."""
    _hidden.keep_notes(value, wrapped)
    return with_mask(wrapped, mask_of(value))


def _there(device, compute, inputs, variables, remat=False):
    """`compute(*inputs)`, a list of floating tensors: on a device, and its gradients too.

    Args:
        variables: function that lists the `tf.Variable`s that are used.
    """
    with tf.device(device):
        inner = [tf.identity(value) for value in inputs]
        values, differentiate = differentiable(compute, inner, variables)
    known = list(variables())

    def gradient(*upstream):
        with tf.device(device):
            upstream = [tf.convert_to_tensor(u) for u in upstream]
            if not remat:
                return differentiate(values, upstream)
            with tf.control_dependencies(upstream):
                again = [tf.identity(value) for value in inner]
            with tf.control_dependencies(upstream):
                outputs, of_those = differentiable(compute, again, lambda: known)
                return of_those(outputs, upstream)

    return with_gradients(gradient, values, inputs, known)


def update_beside(optimizer):
    """Has a Keras optimizer make its slots, and update weights, on the devices of the weights."""
    if isinstance(optimizer, getattr(keras.optimizers, "MultiOptimizer", ())):
        for inside in optimizer.optimizers:
            update_beside(inside)
        return
    if hasattr(optimizer, "inner_optimizer"):  # of a LossScaleOptimizer
        return update_beside(optimizer.inner_optimizer)
    if hasattr(optimizer.update_step, "beside"):
        return
    add, update = optimizer.add_variable_from_reference, optimizer.update_step

    @functools.wraps(add)
    def add_beside(reference_variable, *args, **kwargs):
        with _device_of(reference_variable):
            return add(reference_variable, *args, **kwargs)

    @functools.wraps(update)
    def update_there(gradient, variable, learning_rate):
        with _device_of(variable):
            return update(gradient, variable, learning_rate)

    update_there.beside = True
    optimizer.add_variable_from_reference, optimizer.update_step = add_beside, update_there


def _device_of(variable):
    native = variable.value if isinstance(variable, keras.Variable) else variable
    return tf.device(getattr(native, "device", None) or None)
