"""Layers: those inside others, those that replace others, and those that Keras makes."""

import contextlib
import functools
import inspect

import keras

from keras_largeout._keras.versions import _need


def all_layers(model):
    """Return a model, and every layer inside it or inside its layers, each once.

    Nothing private: Keras has `layers` for models alone, and layers too may hold layers. They are found where
    Keras itself finds them, in attributes and in the lists, tuples, sets and dicts there.

    Args:
        model: `keras.Model` or `keras.layers.Layer`.
    """
    seen, waiting = {}, [model]  # by `id`: what has been seen stays alive, so that no `id` is used twice
    while waiting:
        value = waiting.pop()
        if isinstance(value, keras.layers.Layer):
            inside = [getattr(value, "layers", None), *vars(value).values()]
        elif isinstance(value, dict):
            inside = list(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            inside = list(value)
        else:
            continue
        if id(value) not in seen:
            seen[id(value)] = value
            waiting += reversed(inside)
    return [value for value in seen.values() if isinstance(value, keras.layers.Layer)]


def own_optimizers(layer):
    """Return the optimizers that train a layer, or tables of it, in the place of the model's.

    Nothing private: it is here because it is used with `all_layers`.
    """
    if isinstance(layer, keras.Model):
        return []
    given = getattr(layer, "optimizer", None), *(getattr(layer, "optimizers", None) or ())
    return [optimizer for optimizer in given if isinstance(optimizer, keras.optimizers.Optimizer)]


def forget(layer, inside):
    """Make `layer` disown the layer `inside`, an attribute that will be replaced.

    Why: Keras lets go of the layer of an attribute neither where it is set again nor where it is deleted.
    """
    _need(_need(layer, "_tracker"), "untrack")(inside)


@contextlib.contextmanager
def more_weights(layer):
    """A context in which a layer that is built gets further weights.

    Why: Keras locks the weights of a layer when it is built, and the number of items of an index is known
    later.
    """
    tracker = _need(layer, "_tracker")
    _need(tracker, "unlock")()
    try:
        yield
    finally:
        _need(tracker, "lock")()


def note_made(kind, note):
    """Have `note(layer)` called for each new layer of the Keras class `kind`.

    Nothing private, but a class of Keras's is changed: no layer says where copies of it are made
    (`clone_model`, `load_model`), and a head has to find them by their names.
    """
    make = kind.__init__

    @functools.wraps(make)
    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        note(self)

    init.__signature__ = inspect.signature(make)  # Keras reads the arguments from it
    kind.__init__ = init
