"""Ids as they come to an embedding, as rows of its table."""

import keras
import tensorflow as tf

from keras_largeout.layers._inputs import as_ids
from keras_largeout.layers._sequences import padded, truncate
from keras_largeout.ops.embedding.into_range import check_out_of_range, in_op, into_range
from keras_largeout.ops.embedding.kinds import values_of, with_values
from keras_largeout.tables.resetting import RowReset


class IdMapper:
    """The ids of one table: those with a row, and the others.

    Args:
        rows: int, of the table.
        out_of_range: one of `ops.embedding.into_range.OUT_OF_RANGE_MODES`.
        padding: bool, whether row 0 stands for padding.
        vocabulary: None, or the `DynamicVocabulary` that gives ids their rows. Then `out_of_range` says
            nothing.
        argument: str, how an error calls `rows`.

    Attributes:
        in_op: what the op is to do with the ids that are left, "error" or "zero".

    Raises:
        ValueError: an unknown `out_of_range`, or a vocabulary of another size, or without padding.
    """

    def __init__(self, rows, out_of_range, padding=False, vocabulary=None, argument="input_dim"):
        check_out_of_range(out_of_range)
        if vocabulary is not None:
            if not hasattr(vocabulary, "on_replaced"):
                raise ValueError(
                    "`vocabulary` must be a DynamicVocabulary or None. "
                    f"Received: vocabulary={vocabulary!r} of type {type(vocabulary).__name__}"
                )
            check_vocabulary_size(vocabulary, rows, argument)
            if padding and vocabulary.mask_value is None:
                raise ValueError(
                    "`mask_zero` must be False where the vocabulary has no `mask_value`: its row 0 is no "
                    "padding. Received: mask_zero=True"
                )
        self.rows, self.out_of_range, self.padding = rows, out_of_range, padding
        self.vocabulary, self._reset = vocabulary, None
        self.in_op = in_op(out_of_range) if vocabulary is None else "zero"

    def reset_rows(self, table, initializer, start=0):
        """Make the vocabulary reset a row of `table` when another id gets it. Its rows begin at `start`."""
        if self.vocabulary is not None:
            self.vocabulary.build()
            self._reset = RowReset(table, initializer, start, start + self.rows)
            self.vocabulary.on_replaced(self._reset)

    def __call__(self, ids, training=None):
        """Return rows for ids of any kind. A vocabulary counts the ids where `training` is True."""
        if self.vocabulary is not None:
            return self.vocabulary(ids, training=training)
        return into_range(as_ids(ids, self.rows), self.rows, self.out_of_range, self.padding)

    @property
    def shares_rows(self):
        """True if ids without a row share the rows of others."""
        if self.vocabulary is not None:
            return self.vocabulary.num_oov_indices > 0
        return self.in_op != self.out_of_range

    def own_rows(self, ids, rows):
        """Return which flat ids have their own row: bool `[n]`. `rows` are what they got.

        Strings that are hashed count as such.
        """
        if self.vocabulary is not None:
            return rows >= self.vocabulary.first_row
        if ids.dtype == tf.string:
            return tf.ones(tf.shape(ids), tf.bool)
        return (ids >= 0) & (ids < self.rows)

    def together(self, several, training=None):
        """Map the ids of several features. A vocabulary counts them as the ids of one feature."""
        if self.vocabulary is None:
            return [self(ids, training) for ids in several]
        return self.vocabulary(tuple(several), training=training)

    def is_token(self, ids, length=None):
        """Return which ids (sparse ones made dense) are no padding, a bool tensor; symbolic ids too.

        Args:
            length: None (the shape of the ids) or the int of `FeatureConfig.max_sequence_length`.
        """
        value = 0 if self.vocabulary is None else self.vocabulary.mask_value
        return IsToken(value, length)(ids)


def check_vocabulary_size(vocabulary, rows, argument):
    """Raise ValueError unless a vocabulary has `rows` rows. `argument`: str, how the layer calls them."""
    if vocabulary.vocabulary_size() != rows:
        raise ValueError(
            f"`{argument}` must be that of the vocabulary, {vocabulary.vocabulary_size()} "
            f"(`vocabulary.vocabulary_size()`). Received: {argument}={rows}"
        )


def vocabulary_config(vocabulary):
    """Serialize a vocabulary or None. Layers that share a vocabulary also share it in a loaded model.

    Keras numbers an object in its second config of a file, and the first one, which is a part of a layer's
    config, would stay without the number. So the second one is taken.
    """
    keras.saving.serialize_keras_object(vocabulary)
    return keras.saving.serialize_keras_object(vocabulary)


@keras.saving.register_keras_serializable(package="keras_largeout")
class IsToken(keras.Operation):
    """The mask of ids that are not padding, which a functional model computes from the ids of each call.

    Args:
        padding: int or str, the id that is padding. 0 means "" where ids are strings.
        length: None, or int: ids `[batch, ids]` are cut to so many, and padded to them.
    """

    def __init__(self, padding=0, length=None, **kwargs):
        super().__init__(**kwargs)
        self.padding, self.length = padding, length

    def call(self, ids):
        ids = as_ids(ids)
        if self.length is not None:
            ids = truncate(ids, self.length)
        elif isinstance(ids, tf.SparseTensor):
            ids = tf.sparse.to_dense(ids)
        values = values_of(ids)
        padding = "" if values.dtype == tf.string and self.padding == 0 else self.padding
        tokens = with_values(ids, values != tf.constant(padding, values.dtype))
        return tokens if self.length is None else padded(tokens, self.length)

    def compute_output_spec(self, ids):
        if self.length is not None:
            return keras.KerasTensor((ids.shape[0], self.length), "bool")
        ragged = {"ragged": True} if getattr(ids, "ragged", False) else {}
        return keras.KerasTensor(ids.shape, "bool", **ragged)

    def get_config(self):
        return {**super().get_config(), "padding": self.padding, "length": self.length}
