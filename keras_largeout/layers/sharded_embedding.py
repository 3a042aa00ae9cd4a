"""`ShardedEmbedding`: a lookup table of any size, with a fused combiner."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout._checks import check_one_of, positive_int
from keras_largeout.layers._feature_use import FeatureUse
from keras_largeout.layers._id_mapper import IdMapper, vocabulary_config
from keras_largeout.layers._inputs import as_ids, check_exact, check_keras_3
from keras_largeout.layers._single_table import SingleTableMixin
from keras_largeout.layers._tied import register_embedding
from keras_largeout.layers.dynamic_vocabulary import DynamicVocabulary
from keras_largeout.ops.embedding.kinds import values_of, with_values
from keras_largeout.ops.embedding.wrapper import COMBINERS, check_unweighted
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.plan import Plan
from keras_largeout.replicas.optimizer_check import check_optimizer


@keras.saving.register_keras_serializable(package="keras_largeout")
class ShardedEmbedding(SingleTableMixin, keras.layers.Layer):
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
            Defaults to `"uniform"`.
        embeddings_regularizer: regularizer, applied to the distinct rows that a batch uses (not to the whole
            table) and added to the layer's losses. Defaults to `None`.
        embeddings_constraint: constraint that acts row by row, applied by the optimizer to the rows that it
            updates. Defaults to `None`.
        mask_zero: bool, whether id 0, and of hashed strings the empty one, is padding. Without a combiner a
            mask `[..]` goes with the output; with one, padding is left out of the bag. Defaults to `False`.
        weights: optional array `(input_dim, output_dim)`, the initial table. Defaults to `None`.
        combiner: None (one row per id), `"sum"`, `"mean"`, `"sqrtn"` (sum over the square root of the sum
            of squared weights) or `"max"` (the largest value of each column): how the rows of a bag become
            one. The gradient of a largest value goes to its row; rows that tie share it. Only "max" has the
            rows of all ids in memory. Defaults to `None`.
        out_of_range: what becomes of an id outside the table. `"error"`: it stops the step. `"zero"`: it
            gives a row of zeros, takes no part in a bag, and gets no gradient; exported models do this in
            place of "error". `"modulo"`: it gets the row of its remainder by `input_dim`; `"hash"`: that of
            its hash, strings too (the ids of `keras.layers.Hashing(input_dim)`); `"default_row"`: the last
            row. With `mask_zero` none of these is row 0. Defaults to `"error"`.
        placement: where the rows go under `tf.distribute.MirroredStrategy`: "auto" (replicated up to 1 MiB,
            else cut by a permutation of the rows), "replicated", "range", "modulo", "permutation", "columns",
            a `kl.distribute.Placement`, or a `Plan` that knows this layer by its name. Not saved with the
            model unless it is a name: it belongs to a machine. Defaults to `"auto"`.
        optimizer: None: the model's optimizer trains the table. Otherwise the layer has one of its own, whose
            step is a part of the backward pass: one of `kl.optimizers`, or of `keras.optimizers` SGD,
            Adagrad, Ftrl, Adam or AdamW (these two of rows that have a gradient, as `optimizers.LazyAdam`),
            or the name of one. The layer makes a copy of it, `embedding.optimizer`. The model's optimizer may
            then be of any kind; neither its clipping nor its accumulation nor a callback that sets its
            learning rate acts on the table, and it must not scale the loss. Each backward pass is a step: a
            layer that is called twice in one takes two. A model of tf_keras, such as a `tfrs.Model`, can
            train such a layer, and no other of ours. Defaults to `None`.
        vocabulary: None, or a `DynamicVocabulary` that gives ids their rows, strings too, and takes rows
            away from ids that are not used. `input_dim` is its `vocabulary_size()`, and `out_of_range` says
            nothing. Defaults to `None`.
        storage: where the memory of the rows and of their optimizer slots is. "device": that of the device
            that owns them. "host": that of the process, for tables that do not fit a GPU. The distinct rows
            of a batch then cross to the device and are combined there; their gradients cross back, and the
            optimizer updates the rows where they are. The numbers are the same. On CPUs, and on parameter
            servers, host memory is what a device has. A `Plan` given as `placement` may say "host", too.
            "file:<folder>": files, for tables beyond memory. Each row is beside its slots. Files take up
            the disk that rows were written to, and memory as far as there is some. A row has first values of
            the initializer's distribution, by its seed and the row alone, until it is trained. The folder
            `<folder>/<name>` is opened again with what it holds; it belongs to one process at a time. Where
            that one was killed, using the rows is an error until a save of the model is loaded. A second
            model of the process takes the folder over, and the first one can no longer be used. Another
            optimizer has the files written again, with its slots. A model that is loaded, cloned or resized
            leaves a folder that is there as it is, and makes `<folder>/<name>-2`; `kl.storage` says where it
            goes, and which folders a file may name that is loaded in safe mode. `kl.close_files` closes the
            files of a model. "file:<folder>?mode=new": the same for any model. "file:<folder>?mode=ro": any
            number of processes look rows up, and none trains them; a model that is loaded leaves them as
            they are. Placements: "range", "modulo", "permutation", "replicated". Defaults to `"device"`.
        cache_rows: None, or int > 0, with storage="host": so many of the rows that it owns each device keeps
            in its own memory, with their optimizer slots. `kl.distribute.prefetch_rows` brings rows there
            before they are used; all others are used as without a cache. The numbers are the same to the bit.
            Replicated rows that are in host memory stay there. Defaults to `None`.
        **kwargs: `name`, `dtype`, `trainable` as for every Keras layer.

    Call arguments:
        inputs: int32 or int64 ids: a tensor, a `tf.RaggedTensor` or a `tf.SparseTensor`. Other types are cast
            to int32. Without a combiner the result is ragged where `inputs` are, and dense, with zeros in the
            empty places, where they are sparse.
        weights: optional per-id weights, of the kind and shape of `inputs`, float; none with "max".
        training: bool, whether a `vocabulary` counts the ids. It has no other effect.

    Input shape:
        `[...]` without a combiner; `[..., ids of a bag]` with one.

    Output shape:
        `[..., output_dim]`: the shape of the input, its last axis combined away where there is a combiner.

    Raises:
        ValueError: an argument has another value than those above, or `weights` have another shape. In a
            call: the weights have another kind or shape than the ids, or the combiner is "max".
        OSError: the folder of `storage` is in use, was not closed, or cannot be read or written; in a step:
            its disk is full.
        NotImplementedError: ids in a floating point type that cannot hold every id below `input_dim`.
        tf.errors.InvalidArgumentError: with `out_of_range="error"`, an id that is not in `[0, input_dim)`.

    Example:

    >>> layer = keras_largeout.layers.ShardedEmbedding(1_000_000, 64, combiner="mean")
    >>> layer(tf.ragged.constant([[3, 14, 15], [92]])).shape
    TensorShape([2, 64])
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: str | keras.Initializer = "uniform",
        embeddings_regularizer: str | keras.Regularizer | None = None,
        embeddings_constraint: str | keras.constraints.Constraint | None = None,
        mask_zero: bool = False,
        weights: ArrayLike | None = None,
        combiner: str | None = None,
        out_of_range: str = "error",
        placement: str | Placement | Plan = "auto",
        optimizer: str | keras.Optimizer | None = None,
        vocabulary: DynamicVocabulary | None = None,
        storage: str = "device",
        cache_rows: int | None = None,
        **kwargs: Any,
    ) -> None:
        input_dim = positive_int("input_dim", input_dim)
        output_dim = positive_int("output_dim", output_dim)
        check_one_of("combiner", combiner, COMBINERS)
        ids = IdMapper(input_dim, out_of_range, mask_zero, vocabulary)
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
        self._set_placement(placement, storage, cache_rows)
        self.supports_masking = mask_zero
        self.supports_jit = False  # custom ops
        self.autocast = False
        self._ids = ids
        self.vocabulary = vocabulary
        self.use: FeatureUse | None = None
        self._set_optimizer(optimizer)
        register_embedding(self)
        if weights is not None:
            self.build()
            self.table.assign(
                np.asarray(weights[0] if isinstance(weights, list) and len(weights) == 1 else weights)
            )

    def build(self, input_shape: tuple[int | None, ...] | None = None) -> None:
        if self.built:
            return
        self.make_table(
            self.table_shape(), self.embeddings_initializer, "embeddings", self.embeddings_constraint
        )
        self._ids.reset_rows(self.table, self.embeddings_initializer)
        self.built = True
        self.track_state()

    @property
    def embeddings(self) -> keras.Variable:
        """The table as a `keras.Variable` of `[input_dim, output_dim]`, where it is in one piece."""
        return self.whole_table("embeddings")

    def call(
        self,
        inputs: tf.Tensor | tf.RaggedTensor | tf.SparseTensor,
        weights: tf.Tensor | tf.RaggedTensor | tf.SparseTensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor | tf.RaggedTensor:
        check_keras_3(self, inputs)
        check_optimizer(self)
        check_unweighted(self.combiner, weights)
        self.check_fused_optimizer()
        ids = self._ids(inputs, training)
        if self.use is not None:
            self.use.add(as_ids(inputs), ids)
        if self.mask_zero and self.combiner is not None:
            ids, weights = _without_padding(ids, weights)
        if isinstance(ids, tf.SparseTensor) and self.combiner is None:
            rows = self._lookup(ids.values, None if weights is None else weights.values)
            rows = tf.scatter_nd(ids.indices, rows, tf.concat([ids.dense_shape, [self.output_dim]], 0))
            rows.set_shape([*ids.shape, self.output_dim])
        else:
            rows = self._lookup(ids, weights)
        return tf.cast(rows, self.compute_dtype)

    def make_uses(self) -> list[FeatureUse]:
        """Return a list of the one `FeatureUse` of this layer."""
        self.use = self.use or FeatureUse(self.name, self._ids)
        return [self.use]

    def table_shape(self) -> tuple[int, int]:
        return self.input_dim, self.output_dim

    def _lookup(self, ids, weights):
        return self.look_up(ids, weights, self.combiner, self._ids.in_op, self.embeddings_regularizer)

    def compute_mask(self, inputs: Any, mask: Any = None) -> tf.Tensor | None:
        if not self.mask_zero or self.combiner is not None:
            return None
        return self._ids.is_token(inputs)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        kept = tuple(input_shape) if self.combiner is None else tuple(input_shape)[:-1]
        return (*kept, self.output_dim)

    def compute_output_spec(
        self, inputs: keras.KerasTensor, weights: Any = None, training: bool | None = None
    ) -> keras.KerasTensor:
        check_exact(inputs.dtype, self.input_dim)
        ragged = self.combiner is None and getattr(inputs, "ragged", False)
        shape = self.compute_output_shape(inputs.shape)
        return keras.KerasTensor(shape, dtype=self.compute_dtype, ragged=ragged)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ShardedEmbedding":
        vocabulary = keras.saving.deserialize_keras_object(config.get("vocabulary"))
        return super().from_config({**config, "vocabulary": vocabulary})

    def get_config(self) -> dict[str, Any]:
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
            "vocabulary": vocabulary_config(self.vocabulary),
            **self.place_config(),
        }


def _without_padding(ids, weights):
    """Return weights that leave id 0 out of every bag."""
    kept = tf.cast(values_of(ids) != 0, tf.float32)
    return ids, with_values(ids, kept if weights is None else kept * tf.cast(values_of(weights), tf.float32))
