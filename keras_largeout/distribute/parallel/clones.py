"""Copies of functional models: other layers of the same names, with the same values."""

import keras

from keras_largeout._keras import all_layers


def same_layers(model):
    """Return a `kl.Model` of the very layers of a functional or sequential model."""
    if isinstance(model, keras.Sequential):
        return new_model(model.inputs[0], model.outputs[0], model.name)
    return new_model(model.input, model.output, model.name)


def clone_of(model, copied=None):
    """Return a `kl.Model` of layers that are copies of a model's, with its values.

    Args:
        model: functional model, built.
        copied: None, or the function of a layer that returns another with its name and config.
    """
    clone = empty_clone(model, copied)
    copy_values(model, clone)
    return clone


def empty_clone(model, copied=None):
    """Return a copy with its own initial values."""
    copied = copied or (lambda layer: type(layer).from_config(layer.get_config()))
    clone = keras.models.clone_model(model, input_tensors=inputs_like(model), clone_function=copied)
    return new_model(clone.input, clone.output, model.name)


def inputs_like(model):
    """Return inputs such as a functional model has: their structure, names, shapes and dtypes."""
    inputs = [layer for layer in model.layers if isinstance(layer, keras.layers.InputLayer)]

    def input_like(tensor):
        (name,) = (layer.name for layer in inputs if layer.output is tensor)
        shape = {"batch_shape": tensor.shape, "dtype": tensor.dtype}
        return keras.Input(**shape, sparse=tensor.sparse, ragged=tensor.ragged, name=name)

    return keras.tree.map_structure(input_like, model.input)


def copy_values(model, clone):
    """Gives the layers of `clone` the values of the layers of the same names in `model`."""
    for layer in model.layers:
        twin = clone.get_layer(layer.name)
        for source, target in zip(all_layers(layer), all_layers(twin), strict=True):
            store = {}
            source.save_own_variables(store)
            if store:
                target.load_own_variables(store)
            for seeds, others in zip(_seeds(source), _seeds(target)):
                others.state.assign(seeds.state)


def _seeds(layer):
    return [value for value in vars(layer).values() if isinstance(value, keras.random.SeedGenerator)]


def new_model(inputs, outputs, name):
    kind = keras.saving.get_registered_object("keras_largeout>Model")  # its room is above this one
    return kind(inputs, outputs, name=name)
