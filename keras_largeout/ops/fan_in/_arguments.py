"""Check the arguments that the fan-in ops of `wrapper.py` and `rewire.py` share."""

from typing import NamedTuple

import keras
import tensorflow as tf

from keras_largeout._checks import check_one_of
from keras_largeout.ops import _gradients, _library
from keras_largeout.ops.labels import on_the_host

LOSSES = ("squared_hinge", "binary_crossentropy", "softmax")
INDEX_DTYPES = (tf.uint16, tf.uint32)  # not int32: TensorFlow keeps int32 variables off GPUs
RULES = ("sgd", "adagrad", "adam", "lazy_adam")  # of the fused step
_SLOTS = {"sgd": 0, "adagrad": 1, "adam": 2, "lazy_adam": 2}


class FanInUpdate(NamedTuple):
    """The optimizer of a fused training step: `fan_in_loss(update=...)`.

    Attributes:
        rule: "sgd", "adagrad", "adam" (every class moves in every step, as with Keras's Adam) or "lazy_adam"
            (classes without gradient are not touched, nor do their moments decay).
        hyper: float32 vector from `row_update.sgd_hyper`, `adagrad_hyper` or (both Adams) `lazy_adam_hyper`;
            `decay` is applied to weights, not to biases, of the classes that are updated.
        slots: float32 variables `[C, K]` of the weights: () for sgd, (accumulator,), or (m, v).
        bias_slots: float32 variables `[C]` of the bias, as many; () without bias.
        seed: int64 `[2]`, (seed, step): bfloat16 weights are rounded stochastically, by random numbers of
            seed, step, class and connection alone. Not used for float32 weights.
    """

    rule: str
    hyper: tf.Tensor
    slots: tuple = ()
    bias_slots: tuple = ()
    seed: tuple = (0, 0)


class FanInForward(NamedTuple):
    """The results of the forward pass of `fan_in_loss` over the classes of one variable.

    Attributes:
        loss: float32 `[B]`. For "softmax" over a part of the classes: the loss as if there were no others.
        lse: float32 `[B]`, logsumexp of the logits ("softmax"; else `[0]`).
        mass: float32 `[B]`, sum of the weights of the labels among these classes ("softmax"; else `[0]`).
            With the classes in several parts: lse = logsumexp over parts, mass = sum, and the loss is the sum
            over parts of (part.loss + part.mass * (lse - part.lse)).
        active: uint8, one bit for every class and block of examples that has a loss gradient other than zero
            ("squared_hinge"; else `[0]`).
    """

    loss: tf.Tensor
    lse: tf.Tensor
    mass: tf.Tensor
    active: tf.Tensor


def loss_arguments(
    inputs, labels, row_splits, weights, indices, bias, label_weights, loss, first_class, num_classes
):
    """Return what the ops of the loss share, checked: tensors and `tf.Variable`s by name."""
    check_one_of("loss", loss, LOSSES)
    inputs, weights, indices, bias = operands(inputs, weights, indices, bias)
    rows = tf.raw_ops.VariableShape(input=weights.handle, out_type=tf.int64)
    with on_the_host():
        first_class = int64(first_class)
        num_classes = first_class + rows[0] if num_classes is None else int64(num_classes)
        labels = tf.convert_to_tensor(labels)
        if labels.dtype not in (tf.int32, tf.int64):
            raise ValueError(f"`labels` must be int32 or int64. Received: dtype={labels.dtype.name}")
        of_labels = {
            "labels": labels,
            "row_splits": tf.cast(row_splits, tf.int64),
            "label_weights": tf.cast([] if label_weights is None else label_weights, tf.float32),
            "classes": tf.stack([first_class, num_classes]),
        }
    return {"inputs": inputs, **of_labels, "weights": weights, "indices": indices, "bias": bias}


def handles(arguments):
    """Return the inputs and attributes that the ops of the loss share."""
    weights, indices, bias = arguments["weights"], arguments["indices"], arguments["bias"]
    return {
        **arguments,
        "weights": weights.handle,
        "indices": indices.handle,
        "bias": optional_handle(bias, weights),
        "dtype": weights.dtype,
        "Tindices": indices.dtype,
        "use_bias": bias is not None,
    }


def loss_op(arguments, loss, trigger=None, input_gradient=False, weight_gradient=False):
    """Return `FanInForward` of `loss_arguments`, differentiable."""
    if weight_gradient:
        watch(arguments["weights"], arguments["bias"])
    return FanInForward(
        *_library.ops.largeout_fan_in_loss(
            **handles(arguments),
            trigger=tf.zeros([0], tf.float32) if trigger is None else tf.convert_to_tensor(trigger),
            loss=loss,
            input_gradient=input_gradient,
            weight_gradient=weight_gradient,
            late_errors=not tf.executing_eagerly(),
            # Of an update, which the forward pass does not read: `fan_in_backward` brings it to the step.
            slots=[],
            hyper=tf.zeros([0], tf.float32),
            seed=seed_of((0, 0)),
            rule="none",
        )
    )


def check_update(update, bias):
    """Return the variables of the slots: of the weights, then of the bias."""
    if update.rule not in RULES:
        raise ValueError(f"`update.rule` must be one of {RULES}. Received: rule={update.rule!r}")
    count = _SLOTS[update.rule]
    for name, slots, want in (
        ("slots", update.slots, count),
        ("bias_slots", update.bias_slots, 0 if bias is None else count),
    ):
        if len(slots) != want:
            raise ValueError(
                f"`update.{name}` of rule {update.rule!r} must be {want} variables"
                f"{'' if bias is not None else ' without bias'}. Received: {len(slots)}"
            )
    return [variable("slots", slot, (tf.float32,)) for slot in (*update.slots, *update.bias_slots)]


def operands(inputs, weights, indices, bias):
    weights = variable("weights", weights, (tf.float32, tf.bfloat16))
    indices = variable("indices", indices, INDEX_DTYPES)
    bias = None if bias is None else variable("bias", bias, (tf.float32,))
    inputs = tf.convert_to_tensor(inputs)
    if not inputs.dtype.is_floating:
        raise ValueError(f"`inputs` must be floating. Received: dtype={inputs.dtype.name}")
    return inputs if inputs.dtype == tf.bfloat16 else tf.cast(inputs, tf.float32), weights, indices, bias


def variable(name, value, dtypes):
    """Return the `tf.Variable` in `value`, checked; `name` is what errors call it."""
    if isinstance(value, keras.Variable):
        value = value.value
    if not isinstance(value, tf.Variable):
        raise TypeError(f"`{name}` must be a tf.Variable. Received: {type(value).__name__}")
    if value.dtype not in dtypes:
        names = " or ".join(d.name for d in dtypes)
        raise ValueError(f"`{name}` must be of dtype {names}. Received: dtype={value.dtype.name}")
    return value


def int64(value):
    """Return a host number (or a few) as int64; Python's numbers stay constants that shapes can be
    inferred from.
    """
    if isinstance(value, (tuple, list)) and any(map(tf.is_tensor, value)):
        return tf.stack([int64(v) for v in value])
    return tf.cast(value, tf.int64) if tf.is_tensor(value) else tf.constant(value, tf.int64)


def seed_of(pair):
    """Return an update's `seed` as the ops read it: in host memory."""
    with on_the_host():
        return int64(pair)


def watch(weights, bias):
    for watched in (weights, bias):
        if watched is not None:
            _gradients.watch(watched)


def optional_handle(bias, weights):
    """Return the bias's handle. Without bias the op takes any handle in its place and does not read it."""
    return (weights if bias is None else bias).handle


@tf.RegisterGradient("Largeout>FanInLogits")
def _logits_gradient(op, grad):
    d_inputs, d_weights, d_bias = _library.ops.largeout_fan_in_logits_grad(
        *op.inputs, d_logits=grad, **_attributes(op, "dtype", "Tindices", "use_bias", "late_errors")
    )
    return d_inputs, d_weights, None, d_bias if op.get_attr("use_bias") else None


@tf.RegisterGradient("Largeout>FanInLoss")
def _loss_gradient(op, grad_loss, *_):
    shared, trigger = op.inputs[:8], op.inputs[-1]
    wanted = op.get_attr("weight_gradient")
    d_inputs, d_weights, d_bias = _library.ops.largeout_fan_in_loss_grad(
        *shared,
        tf.convert_to_tensor(grad_loss),
        *op.outputs[1:],
        **_attributes(op, "loss", "dtype", "Tindices", "use_bias", "late_errors"),
        **_attributes(op, "input_gradient", "weight_gradient"),
    )
    d_inputs = d_inputs if op.get_attr("input_gradient") else None
    d_weights = d_weights if wanted else None
    d_bias = d_bias if wanted and op.get_attr("use_bias") else None
    others = [None] * (len(op.inputs) - 9)
    return d_inputs, None, None, None, None, d_weights, None, d_bias, *others, tf.zeros_like(trigger)


def _attributes(op, *names):
    return {name: op.get_attr(name) for name in names}
