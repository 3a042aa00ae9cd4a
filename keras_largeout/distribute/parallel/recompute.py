"""Rematerialization: the backward pass recomputes activations from the state that layers had before."""

import contextlib

import keras
import tensorflow as tf

from keras_largeout._keras import LazyTfVariable, all_layers, same_call, uncast

#: Values that are computed twice differ by this part of their size at most, also on a GPU.
_NOISE = {2: 0.1, 4: 0.01, 8: 0.01}  # by bytes


class Recompute:
    """The state in which layers begin a computation, to be made once more later.

    Args:
        layers: list of the layers that are called in it.

    Raises:
        ValueError: one of them changes a state that cannot be given back.
    """

    def __init__(self, layers):
        for layer in (inside for outer in layers for inside in all_layers(outer)):
            if getattr(layer, "counts_calls", False):
                raise ValueError(
                    "`remat` must be False for a layer that counts what passes through it. "
                    f"Received: remat=True for {layer.name!r}, a {type(layer).__name__}"
                )
        states = {id(v): v for layer in layers for v in layer.non_trainable_variables}
        self._before = [(v, uncast(v).value()) for v in states.values() if not isinstance(v, LazyTfVariable)]
        self._in_same_call = same_call()

    @contextlib.contextmanager
    def computing(self):
        """A context for it: the same random numbers are drawn, and nothing is assigned to states."""
        states = keras.StatelessScope(self._before)
        with self._in_same_call(), states:
            yield


def check_same(before, now):
    """Raises tf.errors.InvalidArgumentError where values that were computed twice are others.

    Args:
        before, now: lists of floating tensors.
    """
    for first, second in zip(before, now, strict=True):
        difference = tf.reduce_sum(tf.abs(tf.cast(first - second, tf.float32)))
        limit = _NOISE[first.dtype.size] * tf.reduce_sum(tf.abs(tf.cast(first, tf.float32)))
        tf.debugging.Assert(
            tf.logical_not(difference > limit),  # NaN is the business of others
            [
                "`remat` must be False for layers that compute another result when they are called again. "
                "(Random numbers must come from keras.random, with a keras.random.SeedGenerator of the "
                "layer as their seed.) Received: results of summed magnitude and difference",
                limit / _NOISE[first.dtype.size],
                difference,
            ],
        )
