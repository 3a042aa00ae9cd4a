"""The ids that the rows of a vocabulary belong to, and ids that did not come for long."""

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.layers._id_mapper import vocabulary_config
from keras_largeout.ops.vocabulary.reference import EMPTY
from keras_largeout.ops.vocabulary.wrapper import find

_STEP_BITS = 0xFFFFFFFF  # of a score: the step in which the id came last


def as_numbers(values):
    """Return ids as int64: of strings their 63-bit FarmHash."""
    if values.dtype == tf.string:
        values = tf.strings.to_hash_bucket_fast(values, 2**63 - 1)
    return tf.cast(values, tf.int64)


def slots_to_clear(vocabulary, state, numbers, unused_for):
    """Return the slots of ids that are to be removed, int64 `[n]` in ascending order.

    Args:
        vocabulary: str, its name, for errors.
        state: dict of the vocabulary's variables.
        numbers: None, or int64 ids `[m]`. Those without a slot are ignored.
        unused_for: None, or int, a number of steps.
    """
    if (numbers is None) == (unused_for is None):
        raise ValueError(
            f"One of `ids` and `unused_for` must be given to remove ids of {vocabulary!r}. "
            f"Received: ids={numbers!r}, unused_for={unused_for!r}"
        )
    if numbers is not None:
        slots = np.unique(find(state["keys"], numbers).numpy())
        return slots[slots >= 0]
    last = state["scores"].numpy() & _STEP_BITS
    return np.flatnonzero((state["keys"].numpy() != EMPTY) & (state["clock"].numpy()[0] - last >= unused_for))


@keras.saving.register_keras_serializable(package="keras_largeout")
class IdsOfRows(keras.layers.Layer):
    """The ids that rows of a vocabulary belong to; -1 for rows without an id. `ids_of` calls it.

    Args:
        vocabulary: `DynamicVocabulary`.
        **kwargs: `name`.
    """

    def __init__(self, vocabulary, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary, self.autocast = vocabulary, False
        self.supports_jit = False

    def build(self, input_shape=None):
        self.vocabulary.build()
        self.built = True

    def call(self, rows):
        if not self.vocabulary.initialized:  # Keras builds a model symbolically
            return tf.fill(tf.shape(rows), tf.constant(-1, tf.int64))
        slots = tf.cast(rows, tf.int64) - self.vocabulary.first_row
        has_slot = (slots >= 0) & (slots < self.vocabulary.capacity)
        keys = tf.gather(self.vocabulary.keys, tf.where(has_slot, slots, 0))
        return tf.where(has_slot & (keys != EMPTY), keys, tf.constant(-1, tf.int64))

    def compute_output_spec(self, rows):
        return keras.KerasTensor(rows.shape, "int64")

    def get_config(self):
        return {**super().get_config(), "vocabulary": vocabulary_config(self.vocabulary)}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "vocabulary": keras.saving.deserialize_keras_object(config["vocabulary"])})
