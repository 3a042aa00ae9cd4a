"""Checks of what `compile` was given for the output of a head: one early error that says what to write.

Hidden vectors look like scores of classes to Keras's losses and metrics: "sparse_categorical_crossentropy"
would take the 17th hidden unit for class 17, "accuracy" would ask which hidden unit is the largest. Behind
layers without weights (a reshape, a slice, an activation) they are hidden vectors still.

A `kl.Model` is checked when it is compiled, if it knows its outputs by then, and else before its first loss.
Any other model is checked when the head is called in it. Of a subclassed one it is unknown there which tensor
it will return: there is a warning.
"""

import inspect
import warnings
import weakref

import keras
import tensorflow as tf

from keras_largeout._head_annotations import heads_of
from keras_largeout._keras import compiled_metrics, made_from, outermost_layer
from keras_largeout.layers.heads.head_loss import HeadLoss, match_losses

_warned = weakref.WeakSet()  # models


def check_outputs(model, outputs):
    """Checks the losses and metrics of a compiled model.

    Args:
        model: `keras.Model`.
        outputs: its outputs, tensors or `KerasTensor`s in the model's structure.

    Raises:
        ValueError: one of those for a head's output takes hidden vectors for something else.
    """
    names = getattr(model, "output_names", None)
    for hidden, loss in _by_output(model.loss, outputs, names):
        check_loss(loss, hidden)
    for metrics in compiled_metrics(model):
        for hidden, metric in _by_output(metrics, outputs, names):
            _check_metric(metric, _head_behind(hidden))


def check_call(head):
    """Checks the compiled model in which `head` is being called, as far as it knows its outputs.

    Raises:
        ValueError: as `check_outputs`.
    """
    model = outermost_layer(head)
    if not isinstance(model, keras.Model) or not model.compiled:
        return
    match_losses(model, head)
    outputs = keras.tree.flatten(getattr(model, "outputs", None) or [])
    if any(map(_head_behind, outputs)):
        check_outputs(model, outputs)
        return
    losses = keras.tree.flatten(model.loss)
    for loss in losses:
        if _is_head(loss):
            check_loss(loss, head=head)
    # A `kl.Model` checks what it returns. Of a head that is a layer of a functional model all is known.
    knows_better = hasattr(model, "before_first_step") or (outputs and head in model.layers)
    if not knows_better and len(losses) == 1 and _of_keras(losses[0]) and model not in _warned:
        _warned.add(model)
        try:
            check_loss(losses[0], head=head)
        except ValueError as error:
            warnings.warn(str(error), stacklevel=3)


def check_loss(loss, hidden=None, head=None):
    """Raises ValueError where `loss` is not valid for the output of a head.

    Args:
        loss: as in `compile`.
        hidden: the output, or None.
        head: the head of the output, where `hidden` is None.
    """
    head = _head_behind(hidden) if head is None else head
    if isinstance(loss, HeadLoss):
        if hidden is None or heads_of(hidden):
            loss.resolve_head(hidden)
    elif _is_head(loss):
        raise ValueError(
            "`loss` must be a loss, not a layer: write `loss=head.loss`. "
            f"Received: the layer {head.name!r}" + (", or a method of it" if inspect.ismethod(loss) else "")
        )
    elif _of_keras(loss):
        raise ValueError(
            f"`loss` must be that of the head {head.name!r}, as the output is its hidden vectors and no "
            f"scores of classes: write `loss=head.loss`. Received: loss={_called(loss)}"
        )


def _check_metric(metric, head):
    wraps = type(metric) is keras.metrics.MeanMetricWrapper  # a function of the user's, it may be
    if _of_keras(metric) and not wraps:
        raise ValueError(
            f"`metrics` for the output of the head {head.name!r} must be made for hidden vectors, which are "
            "no scores of classes: `kl.metrics.Perplexity()`, `kl.metrics.TopKAccuracy(k)` and the others of "
            f"`kl.metrics` find the head. Received: {_called(metric)}"
        )


def _is_head(loss):
    return isinstance(getattr(loss, "__self__", loss), keras.layers.Layer)


def _of_keras(given):
    """Return whether a loss or metric is one of Keras's own, which know nothing of heads."""
    if isinstance(given, str):
        return True
    kind = given if inspect.isroutine(given) or inspect.isclass(given) else type(given)
    return getattr(kind, "__module__", "").partition(".")[0] == "keras"


def _called(given):
    return repr(given) if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)


def _by_output(given, outputs, names):
    """Yields `(hidden, entry)` for each loss or metric that `given` has for an output of a head.

    What is given for several outputs in another structure is left to Keras.
    """
    if given is None:
        return
    flat = keras.tree.flatten(outputs)
    keys = sorted(outputs) if isinstance(outputs, dict) else names
    if len(flat) == 1 or not isinstance(given, (list, tuple, dict)):
        each = [given] * len(flat)
    elif isinstance(given, dict):
        each = [given.get(name) for name in (keys or ())]
    else:
        each = given
    if len(each) == len(flat):
        for hidden, entries in zip(flat, each):
            for entry in keras.tree.flatten(entries):
                if entry is not None and _head_behind(hidden):
                    yield hidden, entry


def _head_behind(output):
    """Return the head from whose hidden vectors alone, without weights, an output of a model was made, or
    None.

    What has one number per token, or `num_classes` of them, is taken for what was made of scores.

    Args:
        output: a `KerasTensor` or a tensor. Outside a graph only what a head itself returned is known.
    """
    if heads_of(output):
        return heads_of(output)[-1]
    sources = _sources(output)
    heads = [_head_behind(source) for source in sources]
    if not heads or None in heads:
        return None
    shape, before = tf.TensorShape(output.shape), [source.shape[-1] for source in sources]
    others = (1, *({heads[0].num_classes} - set(before)))
    return None if shape.rank is None or shape.rank < 2 or shape[-1] in others else heads[0]


def _sources(output):
    """Return the tensors from which one was made without weights: the floating ones, but constants."""
    if isinstance(output, keras.KerasTensor):
        return made_from(output)
    if not isinstance(output, tf.Tensor) or not tf.is_symbolic_tensor(output):
        return []
    inputs = [tensor for tensor in output.op.inputs if tensor.op.type != "Const"]
    if any(tensor.dtype == tf.resource for tensor in inputs):
        return []
    return [tensor for tensor in inputs if tensor.dtype.is_floating]
