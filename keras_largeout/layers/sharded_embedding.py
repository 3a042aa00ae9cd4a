"""`ShardedEmbedding`: a lookup table of any size, with a fused combiner."""

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.distribute.table import ShardedTable, give_shards
from keras_largeout.layers._check import positive_int
from keras_largeout.ops._stock import is_exporting
from keras_largeout.ops.embedding import COMBINERS, OUT_OF_RANGE, embedding_lookup
from keras_largeout.ops.stock_embedding import stock_embedding_lookup


@keras.saving.register_keras_serializable(package="keras_largeout")
class ShardedEmbedding(keras.layers.Layer):
    """Turns integer ids into rows of a trainable table; a drop-in for `keras.layers.Embedding`.

    A training step costs what the batch costs, whatever `input_dim` is: the gradient of the table is the
    unique rows of the batch and their summed gradients (`tf.IndexedSlices`), and the optimizers of
    `keras_largeout.optimizers` update just those rows. (A stock Keras optimizer trains it as well; most of
    them touch the whole table at every step.)

    With a `combiner` the rows of a bag of ids are combined while they are read, and never stored one by one.

    Args:
        input_dim: int > 0, number of rows; ids are `0 .. input_dim - 1`.
        output_dim: int > 0, length of a row.
        embeddings_initializer: initializer of the table, drawn in chunks of rows when the table is large.
        embeddings_regularizer: regularizer, applied to the distinct rows that a batch uses (not to the whole
            table) and added to the layer's losses.
        embeddings_constraint: constraint that acts row by row, applied by the optimizer to the rows that it
            updates.
        mask_zero: bool, whether id 0 is padding. Without a combiner a mask `[..]` goes with the output; with
            one, padding is left out of the bag.
        weights: optional array `(input_dim, output_dim)`, the initial table.
        combiner: None (one row an id), `"sum"`, `"mean"` or `"sqrtn"` (sum over the square root of the sum of
            squared weights): how the rows of a bag become one.
        out_of_range: `"error"` (an id outside the table stops the step) or `"zero"` (such an id gives a row
            of zeros, takes no part in a bag, and gets no gradient). Exported models always do the latter.
        **kwargs: `name`, `dtype`, `trainable` as for every Keras layer.

    Call arguments:
        inputs: int32 or int64 ids: a tensor, a `tf.RaggedTensor` or a `tf.SparseTensor`. Other types are cast
            to int32. Without a combiner the result is ragged where `inputs` are, and dense, with zeros in the
            empty places, where they are sparse.
        weights: optional per-id weights, of the kind and shape of `inputs`, float.

    Input shape:
        `[...]` without a combiner; `[..., ids of a bag]` with one.

    Output shape:
        `[..., output_dim]`: the shape of the input, its last axis combined away where there is a combiner.

    Example:

    >>> layer = keras_largeout.layers.ShardedEmbedding(1_000_000, 64, combiner="mean")
    >>> layer(tf.ragged.constant([[3, 14, 15], [92]])).shape
    TensorShape([2, 64])
    """

    def __init__(
        self,
        input_dim,
        output_dim,
        embeddings_initializer="uniform",
        embeddings_regularizer=None,
        embeddings_constraint=None,
        mask_zero=False,
        weights=None,
        combiner=None,
        out_of_range="error",
        **kwargs,
    ):
        input_dim = positive_int("input_dim", input_dim)
        output_dim = positive_int("output_dim", output_dim)
        if combiner not in COMBINERS:
            raise ValueError(f"`combiner` must be one of {COMBINERS}. Received: combiner={combiner!r}")
        if out_of_range not in OUT_OF_RANGE:
            raise ValueError(
                f"`out_of_range` must be one of {OUT_OF_RANGE}. Received: out_of_range={out_of_range!r}"
            )
        kwargs.pop("input_length", None)  # Keras ignores it as well
        super().__init__(**kwargs)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)
        self.mask_zero = mask_zero
        self.combiner = combiner
        self.out_of_range = out_of_range
        self.supports_masking = mask_zero
        self.supports_jit = False  # custom ops
        self.autocast = False
        if weights is not None:
            self.build()
            self.table.assign(
                np.asarray(weights[0] if isinstance(weights, list) and len(weights) == 1 else weights)
            )

    def build(self, input_shape=None):
        if self.built:
            return
        self.table = ShardedTable(
            (self.input_dim, self.output_dim),
            self.embeddings_initializer,
            dtype=self.variable_dtype,
            name="embeddings",
            constraint=self.embeddings_constraint,
        )
        give_shards(self, self.table)
        self.built = True

    @property
    def embeddings(self):
        """The table's variable, a `keras.Variable` of `[input_dim, output_dim]`."""
        if not self.built:
            raise AttributeError("You must build the layer before accessing `embeddings`.")
        (shard,) = self.table.shards
        return shard

    def call(self, inputs, weights=None):
        ids = self._ids(inputs)
        if self.mask_zero and self.combiner is not None:
            ids, weights = _without_padding(ids, weights)
        if isinstance(ids, tf.SparseTensor) and self.combiner is None:
            rows = self._lookup(ids.values, None if weights is None else weights.values)
            rows = tf.scatter_nd(ids.indices, rows, tf.concat([ids.dense_shape, [self.output_dim]], 0))
            rows.set_shape([*ids.shape, self.output_dim])
        else:
            rows = self._lookup(ids, weights)
        return tf.cast(rows, self.compute_dtype)

    def _lookup(self, ids, weights):
        table = self.table.variable
        # While Keras builds a model symbolically the table is a tensor of the right shape.
        if is_exporting() or not self.table.initialized:
            return stock_embedding_lookup(table, ids, weights, self.combiner)
        self._regularize(ids)
        return embedding_lookup(
            table, ids, weights=weights, combiner=self.combiner, out_of_range=self.out_of_range
        )

    def _regularize(self, ids):
        """Adds the regularizer's loss of the distinct rows that `ids` use."""
        if self.embeddings_regularizer is None:
            return
        flat = ids.flat_values if isinstance(ids, tf.RaggedTensor) else getattr(ids, "values", ids)
        unique = tf.unique(tf.reshape(flat, [-1])).y
        rows = embedding_lookup(self.table.variable, unique, out_of_range=self.out_of_range)
        self.add_loss(self.embeddings_regularizer(rows))

    def _ids(self, inputs):
        if not isinstance(inputs, (tf.RaggedTensor, tf.SparseTensor)):
            inputs = tf.convert_to_tensor(inputs)
        if inputs.dtype in (tf.int32, tf.int64):
            return inputs
        fits = inputs.dtype.is_integer and inputs.dtype.size <= 2
        return tf.cast(inputs, tf.int32 if fits else tf.int64)

    def compute_mask(self, inputs, mask=None):
        if not self.mask_zero or self.combiner is not None:
            return None
        return keras.ops.not_equal(inputs, 0)

    def compute_output_shape(self, input_shape):
        kept = tuple(input_shape) if self.combiner is None else tuple(input_shape)[:-1]
        return (*kept, self.output_dim)

    def compute_output_spec(self, inputs, weights=None):
        # Keras gives a Sequential model without an Input floating point ids, and rounds them.
        exact = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24}
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if self.input_dim > exact.get(dtype, self.input_dim):
            raise NotImplementedError(
                f"`inputs` must be integers: {dtype} cannot hold every id below input_dim={self.input_dim}. "
                f"Begin the model with keras.Input(..., dtype='int32'). Received: inputs of dtype {dtype}"
            )
        ragged = self.combiner is None and getattr(inputs, "ragged", False)
        shape = self.compute_output_shape(inputs.shape)
        return keras.KerasTensor(shape, dtype=self.compute_dtype, ragged=ragged)

    def save_own_variables(self, store):
        self.table.save(store)

    def load_own_variables(self, store):
        self.table.load(store)

    def get_config(self):
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "embeddings_constraint": keras.constraints.serialize(self.embeddings_constraint),
            "mask_zero": self.mask_zero,
            "combiner": self.combiner,
            "out_of_range": self.out_of_range,
        }


def _without_padding(ids, weights):
    """Weights that leave id 0 out of every bag."""
    if isinstance(ids, tf.RaggedTensor):
        kept = tf.cast(ids.flat_values != 0, tf.float32)
        return ids, ids.with_flat_values(
            kept if weights is None else kept * tf.cast(weights.flat_values, tf.float32)
        )
    if isinstance(ids, tf.SparseTensor):
        kept = tf.cast(ids.values != 0, tf.float32)
        values = kept if weights is None else kept * tf.cast(weights.values, tf.float32)
        return ids, tf.SparseTensor(ids.indices, values, ids.dense_shape)
    kept = tf.cast(ids != 0, tf.float32)
    return ids, kept if weights is None else kept * tf.cast(weights, tf.float32)
