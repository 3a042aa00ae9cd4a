"""Slots of a Keras optimizer on the devices of the weights that they belong to, and updates there."""

import functools

import keras

from keras_largeout._keras import uncast
from keras_largeout.distribute.parallel.sharded_slots import note_slot
from keras_largeout.replicas.devices import device_scope


def update_beside(optimizer):
    """Make a Keras optimizer create its slots, and update weights, on the devices of the weights."""
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
        with _beside(reference_variable):
            slot = add(reference_variable, *args, **kwargs)
        note_slot(slot, reference_variable)
        return slot

    @functools.wraps(update)
    def update_there(gradient, variable, learning_rate):
        with _beside(variable):
            return update(gradient, variable, learning_rate)

    update_there.beside = True
    optimizer.add_variable_from_reference, optimizer.update_step = add_beside, update_there


def _beside(variable):
    return device_scope(uncast(variable) if isinstance(variable, keras.Variable) else variable)
