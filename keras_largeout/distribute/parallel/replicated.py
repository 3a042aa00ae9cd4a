"""Data parallelism: `tf.distribute.MirroredStrategy` for a model that was made without it."""

import functools

import keras
import tensorflow as tf

from keras_largeout.distribute.parallel.clones import copy_values, empty_clone


def in_replicas(model, devices):
    """Return a copy of a model that trains on slices of each batch, one per device; tables are cut over them.

    Args:
        model: functional model, built.
        devices: list of names.
    """
    over = {}
    if all("CPU" in name for name in devices):  # collectives of CPUs hang
        over["cross_device_ops"] = tf.distribute.ReductionToOneDevice()
    strategy = tf.distribute.MirroredStrategy(devices, **over)
    with strategy.scope():
        copy = empty_clone(model)
        copy_values(model, copy)
    as_keras = copy.compile

    @functools.wraps(as_keras)
    def compile_in_scope(optimizer="rmsprop", *args, **kwargs):
        with strategy.scope():
            if isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built:
                # Its counter of steps has to be made here, too.
                optimizer = type(optimizer).from_config(optimizer.get_config())
            as_keras(optimizer, *args, **kwargs)

    copy.compile = compile_in_scope
    return copy
