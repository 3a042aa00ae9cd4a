"""The backward pass of `fan_in_loss` called by itself, for classes that are on several devices."""

import tensorflow as tf

from keras_largeout.ops import _library
from keras_largeout.ops.fan_in._arguments import check_update, handles, loss_arguments, seed_of


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
    input_gradient=True,
    weight_gradient=True,
):
    """Return gradients of the losses over the classes of one variable; with `update` its step, taken in
    place.

    Args:
        inputs, labels, row_splits, weights, indices, bias, label_weights, loss, update: as in `fan_in_loss`.
        forward: the `FanInForward` of these classes; its `lse` and `mass` ("softmax") those over all classes,
            wherever they are.
        grad_loss: float32 `[B]`, the gradient of the losses.
        first_class, num_classes, input_gradient, weight_gradient: as in `fan_in_loss`.

    Returns:
        `(d_inputs, d_weights, d_bias)`: of the types of `inputs` (float32, bfloat16), `weights` and `bias`.
        With `update` the last two are None, as without `weight_gradient`; so is `d_bias` without bias, and
        `d_inputs` without `input_gradient`.
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
        "input_gradient": input_gradient,
        "late_errors": not tf.executing_eagerly(),
    }
    d_weights, d_bias = None, None
    if update is None:
        d_inputs, d_weights, d_bias = _library.ops.largeout_fan_in_loss_grad(
            **shared, weight_gradient=weight_gradient
        )
    else:
        d_inputs = _library.ops.largeout_fan_in_step(
            **shared,
            slots=[slot.handle for slot in check_update(update, arguments["bias"])],
            hyper=update.hyper,
            seed=seed_of(update.seed),
            rule=update.rule,
        )
    return (
        d_inputs if input_gradient else None,
        d_weights if weight_gradient else None,
        d_bias if weight_gradient and bias is not None else None,
    )
