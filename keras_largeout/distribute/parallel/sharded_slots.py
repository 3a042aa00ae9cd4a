"""Weights in parts, in files: they, and an optimizer's slots of them, are written as if they were whole."""

import functools

import numpy as np
import tensorflow as tf

from keras_largeout.replicas.optimizer_check import responsible_for
from keras_largeout.tables.shard import outside_tables

_CUT = "_largeout_cut"  # on a part: its `ShardedWeight` and its index
_SLOT = "_largeout_slot_of"  # on a slot: the same of its weight
#: Optimizers that look at a weight as a whole: its norm, its rows and columns, its singular values.
_OF_WHOLES = ("Lamb", "Adafactor", "Muon", "RowWiseAdagrad")


class ShardedWeight:
    """A weight that is cut along one axis.

    Args:
        parts: list of `keras.Variable`s.
        axis: int.
    """

    def __init__(self, parts, axis):
        self.parts, self.axis = parts, axis
        if len(parts) > 1:
            for index, part in enumerate(parts):
                setattr(part, _CUT, (self, index))

    @property
    def shape(self):
        shape = list(self.parts[0].shape)
        shape[self.axis] = sum(part.shape[self.axis] for part in self.parts)
        return tuple(shape)

    def numpy(self):
        """Return the whole weight."""
        return np.concatenate([part.numpy() for part in self.parts], self.axis)

    def tensor(self):
        """Return the whole weight, as a tensor on the current device."""
        return tf.concat([part.value for part in self.parts], self.axis)

    def split(self, value):
        """Return the parts of an array of the shape of the whole."""
        sizes = [part.shape[self.axis] for part in self.parts]
        return np.split(value, np.cumsum(sizes)[:-1], self.axis)

    def assign(self, value, name):
        """Overwrites all parts. Raises ValueError for another shape."""
        if tuple(value.shape) != self.shape:
            raise ValueError(
                f"The weights file does not fit {name!r}: expected shape {self.shape}. "
                f"Received: shape {tuple(value.shape)}"
            )
        for part, values in zip(self.parts, self.split(value)):
            part.assign(values)


def note_slot(slot, reference):
    """Notes of which weight `slot` is a slot, where that is a part of one."""
    cut = getattr(reference, _CUT, None)
    if cut is not None and tuple(slot.shape) == tuple(reference.shape):
        setattr(slot, _SLOT, cut)


def check_and_save_whole(optimizer, variables):
    """Make an optimizer save and load its slots as the slots of whole weights.

    Args:
        optimizer: Keras optimizer, the outermost one of a model.
        variables: the model's trainable variables.

    Raises:
        ValueError: it looks at weights as wholes, and some are cut.
    """
    cut = [v for v in variables if hasattr(v, _CUT)]
    if not cut or optimizer is None or hasattr(optimizer.save_own_variables, "whole"):
        return
    for part in cut:
        responsible = responsible_for(optimizer, part)
        kind, clipnorm = type(responsible).__name__, getattr(responsible, "clipnorm", None)
        if kind in _OF_WHOLES or clipnorm:
            raise ValueError(
                "`optimizer` must treat each value of a weight by itself where weights are cut over devices. "
                "(`global_clipnorm` does. A keras.optimizers.MultiOptimizer may have another for tables.) "
                f"Received: {kind} with clipnorm={clipnorm} for {part.path!r}"
            )
    save, load = optimizer.save_own_variables, optimizer.load_own_variables

    @functools.wraps(save)
    def save_whole(store):
        found = {}
        save(found)
        places = _places(outside_tables(optimizer.variables))
        for key, value in found.items():
            if not key.isdigit():
                store[key] = value
        for number, (weight, indices) in enumerate(places):
            values = [np.asarray(found[str(i)]) for i in indices]
            store[str(number)] = values[0] if weight is None else np.concatenate(values, weight.axis)

    @functools.wraps(load)
    def load_whole(store):
        places = _places(outside_tables(optimizer.variables))
        found = {key: store[key] for key in list(store.keys()) if not key.isdigit()}
        numbers = [key for key in list(store.keys()) if key.isdigit()]
        if len(numbers) != len(places):  # another model's or optimizer's: Keras says so
            return load(store)
        for number, (weight, indices) in enumerate(places):
            value = np.asarray(store[str(number)])
            parts = [value] if weight is None else weight.split(value)
            found.update(zip(map(str, indices), parts))
        return load(found)

    save_whole.whole = True
    optimizer.save_own_variables, optimizer.load_own_variables = save_whole, load_whole


def _places(variables):
    """Return `(its ShardedWeight or None, the indices of its parts)` for each whole variable, in order."""
    seen, slots = {}, {}
    for i, variable in enumerate(variables):
        cut = getattr(variable, _SLOT, None)
        if cut is None:
            slots[i] = (None, [i])
            continue
        weight, part = cut
        nth = seen[id(weight), part] = seen.get((id(weight), part), -1) + 1
        slots.setdefault((id(weight), nth), (weight, []))[1].append(i)
    return list(slots.values())
