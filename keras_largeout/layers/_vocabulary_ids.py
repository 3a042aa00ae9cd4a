"""Ids as a vocabulary keeps them, as numbers and bytes, and the ids that its rows belong to."""

import keras
import tensorflow as tf

from keras_largeout.layers._id_mapper import vocabulary_config
from keras_largeout.ops.vocabulary.reference import EMPTY

_CHARACTERS = [b""] + [bytes([code]) for code in range(1, 256)]  # zeros are padding


def as_numbers(values):
    """Return ids as int64: of strings their 63-bit FarmHash."""
    if values.dtype == tf.string:
        values = tf.strings.to_hash_bucket_fast(values, 2**63 - 1)
    return tf.cast(values, tf.int64)


def ids_of_rows(vocabulary, rows):
    """Return the ids that rows of a `DynamicVocabulary` belong to, int64; -1 for rows without an id."""
    if not vocabulary.initialized:  # Keras builds a model symbolically
        return tf.fill(tf.shape(rows), tf.constant(-1, tf.int64))
    slots, has_slot = _slots_of(vocabulary, rows)
    keys = tf.gather(vocabulary.keys, slots)
    return tf.where(has_slot & (keys != EMPTY), keys, tf.constant(-1, tf.int64))


def strings_of_rows(vocabulary, rows):
    """Return the strings that rows of a `DynamicVocabulary` belong to; "" for rows without one."""
    if not vocabulary.initialized:
        return tf.fill(tf.shape(rows), "")
    slots, has_slot = _slots_of(vocabulary, rows)
    return tf.where(has_slot, as_strings(tf.gather(vocabulary.strings, slots)), "")


def _slots_of(vocabulary, rows):
    """Return the slots of rows, int64, and which of the rows have one."""
    slots = tf.cast(rows, tf.int64) - vocabulary.first_row
    has_slot = (slots >= 0) & (slots < vocabulary.capacity)
    return tf.where(has_slot, slots, 0), has_slot


def as_bytes(strings, width):
    """Return flat strings as rows of bytes: uint8 `[n, width]`, padded with zeros.

    Raises:
        TypeError: they are no strings.
        tf.errors.InvalidArgumentError: one has more than `width` bytes.
    """
    if strings.dtype != tf.string:
        raise TypeError(
            f"`inputs` must be strings where `keep_strings` is set. Received: dtype={strings.dtype.name}"
        )
    longer = tf.boolean_mask(strings, tf.strings.length(strings) > width)
    message = f"`inputs` must be strings of at most keep_strings={width} bytes. Received:"
    check = tf.debugging.Assert(tf.size(longer) == 0, [message, longer])
    with tf.control_dependencies([] if check is None else [check]):
        return tf.io.decode_raw(strings, tf.uint8, fixed_length=width)


def as_strings(rows):
    """Return the strings of rows of bytes, uint8 `[..., width]`."""
    return tf.strings.reduce_join(tf.gather(_CHARACTERS, tf.cast(rows, tf.int32)), axis=-1)


@keras.saving.register_keras_serializable(package="keras_largeout")
class IdsOfRows(keras.layers.Layer):
    """The ids that rows of a vocabulary belong to. `ids_of` and `strings_of` call it.

    Args:
        vocabulary: `DynamicVocabulary`.
        strings: bool, whether the strings are returned, and not their hashes.
        **kwargs: `name`.
    """

    def __init__(self, vocabulary, strings=False, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary, self.strings, self.autocast = vocabulary, strings, False
        self.supports_jit = False

    def build(self, input_shape=None):
        self.vocabulary.build()
        self.built = True

    def call(self, rows):
        return strings_of_rows(self.vocabulary, rows) if self.strings else ids_of_rows(self.vocabulary, rows)

    def compute_output_spec(self, rows):
        return keras.KerasTensor(rows.shape, "string" if self.strings else "int64")

    def get_config(self):
        strings = {"strings": True} if self.strings else {}
        return {**super().get_config(), "vocabulary": vocabulary_config(self.vocabulary), **strings}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "vocabulary": keras.saving.deserialize_keras_object(config["vocabulary"])})
