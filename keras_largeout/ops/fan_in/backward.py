"""The backward pass of `fan_in_loss` called by itself, for classes that lie on several devices."""

import tensorflow as tf

from keras_largeout.ops import _library
from keras_largeout.ops.fan_in._arguments import _check_update, handles, loss_arguments


def fan_in_backward(
    inputs,
    labels,
    row_splits,
    weights,
    indices,
    bias,
    label_weights,
    loss,
    forward,
    grad_loss,
    update=None,
    first_class=0,
    num_classes=None,
    weight_gradient=True,
):
    """Gradients of the losses over the classes of one variable; with `update` its step, taken in place.

    Args:
        inputs, labels, row_splits, weights, indices, bias, label_weights, loss, update: as in `fan_in_loss`.
        forward: the `FanInForward` of these classes; its `lse` and `mass` ("softmax") those over all classes,
            wherever they are.
        grad_loss: float32 `[B]`, the gradient of the losses.
        first_class, num_classes, weight_gradient: as in `fan_in_loss`.

    Returns:
        `(d_inputs, d_weights, d_bias)`: of the types of `inputs` (float32, bfloat16), `weights` and `bias`.
        With `update` the last two are None, as without `weight_gradient`; so is `d_bias` without bias.
    """
    arguments = loss_arguments(
        inputs, labels, row_splits, weights, indices, bias, label_weights, loss, first_class, num_classes
    )
    shared = {
        **handles(arguments),
        "grad_loss": tf.cast(grad_loss, tf.float32),
        "lse": forward.lse,
        "mass": forward.mass,
        "active": forward.active,
        "loss": loss,
    }
    if update is None:
        d_inputs, d_weights, d_bias = _library.ops.largeout_fan_in_loss_grad(
            **shared, weight_gradient=weight_gradient
        )
        if not weight_gradient:
            return d_inputs, None, None
        return d_inputs, d_weights, None if bias is None else d_bias
    slots = _check_update(update, arguments["bias"])
    d_inputs = _library.ops.largeout_fan_in_step(
        **shared,
        slots=[slot.handle for slot in slots],
        hyper=update.hyper,
        seed=tf.cast(update.seed, tf.int64),
        rule=update.rule,
    )
    return d_inputs, None, None
