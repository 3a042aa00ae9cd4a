"""Losses on devices: those that layers add there, and that of a model, computed where its outputs are."""

import contextlib

import keras
import tensorflow as tf

from keras_largeout._head_annotations import heads_of
from keras_largeout._keras import is_symbolic, losses_given, mask_of, with_mask
from keras_largeout.distribute.parallel.recording import compute_there


def compute_loss_there(model, device):
    """Make `model.compute_loss` compute on a device.

    The loss of a head computes where its table is, and so is left alone; so are steps without a graph.

    Args:
        model: `keras.Model`; it is changed.
        device: name of a device.
    """
    as_keras = model.compute_loss

    def compute_loss(x=None, y=None, y_pred=None, sample_weight=None, training=True):
        flat = keras.tree.flatten(y_pred)
        if is_symbolic() or any(map(heads_of, flat)):
            return as_keras(x, y, y_pred, sample_weight, training)
        if tf.executing_eagerly():
            with tf.device(device):
                return as_keras(x, y, y_pred, sample_weight, training)
        at = [i for i, value in enumerate(flat) if tf.is_tensor(value) and value.dtype.is_floating]
        added = [loss for loss in model.losses if tf.is_tensor(loss)]

        def compute(*inner):
            predicted = list(flat)
            for i, value in zip(at, inner):
                predicted[i] = with_mask(value, mask_of(flat[i]))
            with losses_given(model, inner[len(at) :]):
                return [
                    as_keras(x, y, keras.tree.pack_sequence_as(y_pred, predicted), sample_weight, training)
                ]

        inputs = [*(flat[i] for i in at), *added]
        return compute_there(device, compute, inputs, list)[0]

    model.compute_loss = compute_loss


@contextlib.contextmanager
def losses_collected(layers):
    """A context in which losses that layers add are collected in the place of being added.

    Args:
        layers: list of layers.

    Returns:
        A list of `(layer, loss)`, in the order of the calls of `add_loss`.
    """
    found, before = [], [(layer, vars(layer).get("add_loss")) for layer in layers]
    for layer in layers:
        vars(layer)["add_loss"] = lambda loss, layer=layer: found.extend(
            (layer, value) for value in keras.tree.flatten(loss)
        )
    try:
        yield found
    finally:
        for layer, add_loss in before:
            del vars(layer)["add_loss"]
            if add_loss is not None:
                vars(layer)["add_loss"] = add_loss
