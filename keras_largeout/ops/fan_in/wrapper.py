"""Fixed fan-in layers: every class has K incoming connections. Logits, loss with fused training step, top-k.

Kernels: `custom_ops/fan_in/fan_in.h`. Connections are drawn, pruned and regrown by `ops/fan_in/rewire.py`.
"""

import tensorflow as tf

from keras_largeout.ops import _library
from keras_largeout.ops._gradients import with_gradient
from keras_largeout.ops.fan_in._arguments import (
    LOSSES,
    RULES,
    FanInForward,
    FanInUpdate,
    check_update,
    loss_arguments,
    loss_op,
    operands,
    optional_handle,
    watch,
)
from keras_largeout.ops.fan_in.backward import fan_in_backward
from keras_largeout.ops.fan_in.reference import (
    fan_in_logits_reference,
    fan_in_loss_reference,
    fan_in_top_k_reference,
    fan_in_update_reference,
)

__all__ = [
    "LOSSES",
    "RULES",
    "FanInForward",
    "FanInUpdate",
    "fan_in_forward",
    "fan_in_logits",
    "fan_in_logits_reference",
    "fan_in_loss",
    "fan_in_loss_reference",
    "fan_in_top_k",
    "fan_in_top_k_reference",
    "fan_in_update_reference",
]


def fan_in_logits(inputs, weights, indices, bias=None):
    """Return `logits[b, c] = bias[c] + sum over k of weights[c, k] * inputs[b, indices[c, k]]`.

    For small numbers of classes, tests and losses of one's own: it forms `[B, C]`. Gradients go to inputs,
    weights and bias, those of the variables dense. The same bits come out for any number of threads.

    Args:
        inputs: Floating tensor `[B, I]`, float32 or bfloat16 (other types are cast to float32).
        weights: `tf.Variable` (or `keras.Variable` that holds one) `[C, K]`, float32 or bfloat16.
        indices: Variable `[C, K]`, uint16 (where I <= 65536) or uint32, values in `[0, I)`.
        bias: `None`, or a variable `[C]`, float32.

    Returns:
        float32 `[B, C]`.

    Raises:
        TypeError: `weights`, `indices` or `bias` is no variable.
        ValueError: A wrong dtype, or shapes that are known to be wrong.
        tf.errors.InvalidArgumentError: An index outside `[0, I)` (its class is named), K > I, or shapes that
            turn out to be wrong. A graph on a GPU does not wait to learn about indices: the class is left
            out, and the error is that of a later call.

    References:
        [Schultheis and Babbar, 2023](https://arxiv.org/abs/2306.03725), section 3.1 (fixed fan-in).
    """
    inputs, weights, indices, bias = operands(inputs, weights, indices, bias)
    watch(weights, bias)
    return _library.ops.largeout_fan_in_logits(
        inputs=inputs,
        weights=weights.handle,
        indices=indices.handle,
        bias=optional_handle(bias, weights),
        dtype=weights.dtype,
        Tindices=indices.dtype,
        use_bias=bias is not None,
        late_errors=not tf.executing_eagerly(),
    )


def fan_in_loss(
    inputs,
    labels,
    row_splits,
    weights,
    indices,
    bias=None,
    label_weights=None,
    loss="squared_hinge",
    update=None,
    trigger=None,
    first_class=0,
    num_classes=None,
    input_gradient=True,
    weight_gradient=True,
):
    """Return the losses of a batch; neither logits `[B, C]` nor (with `update`) gradients `[C, K]` are ever
    whole.

    With z the logits of `fan_in_logits`, w the weight of a label (1 without `label_weights`), the loss of an
    example is

    * "squared_hinge": sum over its labels of w * max(0, 1 - z)^2 + sum over all other classes of
      max(0, 1 + z)^2;
    * "binary_crossentropy": sum over its labels of w * softplus(-z) + sum over all others of softplus(z);
    * "softmax": sum over its labels of w * (logsumexp(all z) - z).

    All are sums over classes: scale as you like. An example without labels is valid (and has softmax loss 0).
    A label that an example has several times counts once, with the weight of its first occurrence.

    With `update`, weights and bias and their slots are updated in place *in the backward pass*, once each
    time a gradient of the result is taken, class by class, with the gradient that arrives (loss scale and
    sample weights included); `tape.gradient` then gives `None` for weights and bias. Without it their
    gradients are dense tensors, `[C, K]` and `[C]`, for the model's optimizer. The same bits come out for
    any number of threads.

    Args:
        inputs: Floating tensor `[B, I]`, float32 or bfloat16 (other types are cast to float32).
        labels: int32 or int64 `[L]`: the labels of all examples, one after the other, in any order within an
            example; values in `[0, num_classes)`, or -1 for "no label" (padding, so that a padded matrix
            `[B, M]` of labels is `reshape(-1)` with `row_splits = range(B + 1) * M`).
        row_splits: int32 or int64 `[B + 1]`: labels `row_splits[b] .. row_splits[b + 1]` are those of example
            b.
        weights: Variable `[C, K]`, float32 or bfloat16.
        indices: Variable `[C, K]`, uint16 (where I <= 65536) or uint32.
        bias: `None`, or a variable `[C]`, float32.
        label_weights: `None`, or float32 `[L]`, one for each label (propensities). Not differentiable.
        loss: One of `LOSSES`.
        update: `None`, or `FanInUpdate`.
        trigger: `None`, or a float32 tensor or variable, any shape, whose gradient is zero. Where `inputs`
            depends on nothing that is trained, no gradient would be taken and `update` would not happen: give
            a variable of shape `[0]` that the model trains.
        first_class: Integer: row 0 of `weights` is this class (the classes may be on several devices; labels
            of other parts are skipped here).
        num_classes: The number of all classes; `None`: `first_class` + C.
        input_gradient: False: the gradient of `inputs` is not computed (`None` is given).
        weight_gradient: False: those of `weights` and `bias` are not computed (`None` is given); without
            `update`.

    Returns:
        float32 `[B]`.

    Raises:
        TypeError: `weights`, `indices` or `bias` is no variable.
        ValueError: An unknown `loss` or rule, a wrong dtype, a wrong number of slots, or shapes that are
            known to be wrong.
        tf.errors.InvalidArgumentError: A label outside `[-1, num_classes)` (named, with its position), row
            splits that do not ascend from 0 to L, an index outside `[0, I)` (its class is named), K > I, or
            shapes that turn out to be wrong. Indices in a graph on a GPU: as in `fan_in_logits`.

    References:
        [Schultheis and Babbar, 2023](https://arxiv.org/abs/2306.03725), sections 3 and 4 (fixed fan-in,
        squared hinge); [Jain et al., 2016](https://doi.org/10.1145/2939672.2939756), section 4
        (propensities).
    """
    arguments = loss_arguments(
        inputs, labels, row_splits, weights, indices, bias, label_weights, loss, first_class, num_classes
    )
    if update is None:
        return loss_op(arguments, loss, trigger, input_gradient, weight_gradient).loss
    check_update(update, arguments["bias"])
    shared = labels, row_splits, weights, indices, bias, label_weights, loss
    options = {"first_class": first_class, "num_classes": num_classes}

    forward = loss_op(arguments, loss)
    inputs = arguments["inputs"]
    trigger = tf.zeros([0]) if trigger is None else tf.convert_to_tensor(trigger)

    def gradient(upstream):
        step = {"forward": forward, "grad_loss": upstream, "update": update}
        d_inputs, _, _ = fan_in_backward(inputs, *shared, **step, input_gradient=input_gradient, **options)
        return d_inputs, tf.zeros_like(trigger)

    return with_gradient(gradient, forward.loss, [inputs, trigger])


def fan_in_forward(
    inputs,
    labels,
    row_splits,
    weights,
    indices,
    bias=None,
    label_weights=None,
    loss="squared_hinge",
    first_class=0,
    num_classes=None,
):
    """Return the forward pass of `fan_in_loss` alone, with what its backward pass reads; arguments as there.

    Returns:
        `FanInForward`. It has no gradient.
    """
    arguments = loss_arguments(
        inputs, labels, row_splits, weights, indices, bias, label_weights, loss, first_class, num_classes
    )
    return FanInForward(*(tf.stop_gradient(t) for t in loss_op(arguments, loss)))


def fan_in_top_k(inputs, weights, indices, bias, k, dtype=tf.int32):
    """Return the `k` largest logits of every example, without ever holding all of them.

    Args:
        inputs: Floating tensor `[B, I]`.
        weights: Variable `[C, K]`, float32 or bfloat16.
        indices: Variable `[C, K]`, uint16 or uint32.
        bias: `None`, or a variable `[C]`, float32.
        k: Integer (or int32 scalar tensor), from 0 to C.
        dtype: int32 or int64, the type of the ids.

    Returns:
        `scores`, float32 `[B, k]`, descending, and `ids`, `[B, k]`. Of equal scores the smaller id comes
        first; NaN counts as the lowest score.

    Raises:
        TypeError, ValueError, tf.errors.InvalidArgumentError: As `fan_in_logits`; `k` outside `[0, C]`.
    """
    inputs, weights, indices, bias = operands(inputs, weights, indices, bias)
    return tuple(
        _library.ops.largeout_fan_in_top_k(
            inputs=inputs,
            k=tf.cast(k, tf.int32),
            weights=weights.handle,
            indices=indices.handle,
            bias=optional_handle(bias, weights),
            dtype=weights.dtype,
            Tindices=indices.dtype,
            out_type=dtype,
            use_bias=bias is not None,
        )
    )
