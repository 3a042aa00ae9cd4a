"""`LayerState`: how a layer with tables is saved and loaded, part by part, by Keras and by TensorFlow."""

from typing import NamedTuple

import keras
import numpy as np

from keras_largeout._keras import ValuesOfWeights, store_path
from keras_largeout.files.array_digests import digested
from keras_largeout.files.verified_loading import only_checking, verify
from keras_largeout.replicas._tensorflow import SavesState
from keras_largeout.replicas.devices import per_device_variables
from keras_largeout.tables.row_range import RowRange, saved_shape
from keras_largeout.tables.shard import refuse_files


class LayerState(ValuesOfWeights, SavesState):
    """A base, before `keras.layers.Layer`, of layers that are saved in parts.

    Keras's files and `tf.train.Checkpoint` keep what the parts write. `tf.saved_model.save` keeps the
    variables behind `weights`.
    """

    #: The `ShardVariable`s of its tables.
    shards = ()

    @property
    def initialized(self):
        """False only while Keras builds a model symbolically and has not created its variables yet."""
        return self.built and all(shard.array.initialized for shard in self.shards)

    def __call__(self, *args, **kwargs):
        self.track_state()
        return super().__call__(*args, **kwargs)

    def saved_parts(self):
        """Return the parts of what the layer saves, a list.

        A part is a `ShardedTable`, one of the classes below, or another object with their methods:
        `save(arrays)`; `check(store)`, which raises ValueError unless `load` could read the store, and
        changes nothing; `load(store)`, which follows it. Parts are loaded in the order of the list.
        """
        raise NotImplementedError

    def make_slots(self):
        """Makes the slots of optimizers of the layer's own: before they are saved or loaded."""

    def save_own_variables(self, store):
        self.make_slots()
        with digested(store, store_path(store)) as arrays:
            for part in self.saved_parts():
                part.save(arrays)

    def load_own_variables(self, store):
        verify(store)
        parts = self.saved_parts()
        try:
            for part in parts:  # all of them, before anything is changed
                part.check(store)
        except ValueError as error:
            raise ValueError(f"Weights of the layer {self.name!r}: {error}") from error
        if only_checking():
            return
        self.make_slots()
        for part in parts:
            part.load(store)

    def save_state(self, store):
        refuse_files(self.shards)
        self.save_own_variables(store)

    def load_state(self, store):
        self.load_own_variables(store)

    def state_variables(self):
        found = [copy for weight in self.weights for copy in per_device_variables(weight.value)]
        return {f"weight_{index}": variable for index, variable in enumerate(found)}


class SavedVariables(NamedTuple):
    """Variables that are small enough to be saved whole.

    Attributes:
        variables: dict from keys in files to variables with `shape`, `numpy()` and `assign`.
        optional: bool, whether a file without one of them leaves it as it is.
    """

    variables: dict
    optional: bool = False

    def save(self, arrays):
        for key, variable in self.variables.items():
            arrays[key] = keras.ops.convert_to_numpy(variable)

    def check(self, store):
        for key, variable in self.variables.items():
            shape = tuple(store[key].shape) if key in store else None
            if shape != tuple(variable.shape) and not (shape is None and self.optional):
                raise ValueError(
                    f"`{key}` must have the shape {tuple(variable.shape)}. Received: a file with {shape}"
                )

    def load(self, store):
        for key, variable in self.variables.items():
            if key in store:
                variable.assign(np.asarray(store[key]))


class SavedRows(NamedTuple):
    """Rows of a table that a file keeps under the name `key`."""

    key: str
    rows: RowRange

    def save(self, arrays):
        self.rows.save(arrays, self.key)

    def check(self, store):
        self.rows.check(store, self.key)

    def load(self, store):
        self.rows.load(store, self.key)


class NotSaved(NamedTuple):
    """An array that an option adds to the files of a layer, for a layer without the option.

    Attributes:
        key: str, in files.
        option: str, the argument.
    """

    key: str
    option: str

    def save(self, arrays):
        pass

    def check(self, store):
        if self.key in store or saved_shape(store, self.key) is not None:
            raise ValueError(
                f"`{self.option}` must be in both, or in neither. Received: a file with `{self.key}`, for a "
                "layer without"
            )

    def load(self, store):
        pass
