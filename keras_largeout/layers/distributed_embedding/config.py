"""The configs of a `DistributedEmbedding`: `TableConfig` and `FeatureConfig`."""

import dataclasses
from typing import Any

import keras

from keras_largeout._checks import check_one_of, positive_int
from keras_largeout.layers._id_mapper import IdMapper, vocabulary_config
from keras_largeout.layers.dynamic_vocabulary import DynamicVocabulary
from keras_largeout.ops.embedding.wrapper import COMBINERS
from keras_largeout.optimizers.to_row_sparse import to_row_sparse
from keras_largeout.planning.placement import Placement
from keras_largeout.tables.placing import check_placement
from keras_largeout.tables.storage.places import (
    as_safe_as_here,
    check_storage,
    config_of_copy,
    storage_config,
)
from keras_largeout.tables.storage.row_cache import check_cache_rows

# Fields whose values Keras serialises.
_OBJECTS = ("initializer", "optimizer", "regularizer", "constraint", "vocabulary")


def _default_initializer():
    # A new one each time: an initializer gives the same values again to the next table of its shape.
    return keras.initializers.VarianceScaling(mode="fan_out")


def _placement(placement):
    if isinstance(placement, str) and placement == "sparsecore":
        return placement  # of keras_rs: refused by the layer, as there
    return "auto" if placement == "default_device" else check_placement(placement)


def unnumbered(config):
    """Return what a config says. (While a model is saved or loaded, Keras numbers objects that it meets
    again.)
    """
    if isinstance(config, dict):
        return {key: unnumbered(value) for key, value in config.items() if key != "shared_object_id"}
    return config


@keras.saving.register_keras_serializable(package="keras_largeout")
@dataclasses.dataclass(frozen=True, eq=False)
class TableConfig:
    """One table of a `DistributedEmbedding`; several features may be looked up in it.

    Named as in keras_rs. Two of them are equal if all they say is equal.

    Args:
        name: str without "/", unique in a layer. Files know the table by it.
        vocabulary_size: int > 0, number of rows; ids are `0 .. vocabulary_size - 1`.
        embedding_dim: int > 0, length of a row.
        initializer: Keras initializer of the table. The values do not depend on other tables. Defaults
            to a truncated normal of standard deviation `1 / sqrt(embedding_dim)`.
        optimizer: None (that of the model), or the optimizer of this table, whose step is a part of the
            layer's backward pass: one of `keras_largeout.optimizers`, or of `keras.optimizers` SGD, Adagrad,
            Ftrl, Adam or AdamW, or the name of one of these, `"adam"`. The config keeps what of this package
            updates rows alike: `LazyAdam` for Adam. Defaults to `None`.
        combiner: `"mean"`, `"sum"`, `"sqrtn"` (sum over the square root of the sum of squared weights),
            `"max"` (the largest value of each column) or None (one row per id): how the rows of a bag of ids
            become one. Defaults to `"mean"`.
        placement: where the rows go under `tf.distribute.MirroredStrategy`: "auto" or "default_device" (as
            the layer's `placement` says), "replicated", "range", "modulo", "permutation", "columns", or a
            `kl.distribute.Placement`. Defaults to `"auto"`.
        regularizer: regularizer, applied to the distinct rows of the table that a batch uses. Defaults to
            `None`.
        constraint: constraint that acts row by row, applied by the optimizer to the rows that it updates.
            Defaults to `None`.
        mask_zero: bool, whether id 0, and of hashed strings the empty one, is padding: left out of bags;
            without a combiner, a mask goes with the output. Defaults to `False`.
        max_ids_per_partition: int, for code that was written for keras_rs. It is kept and has no effect:
            there it is the size of a buffer on a TPU, and nothing here is of a fixed size. Defaults to `256`.
        max_unique_ids_per_partition: likewise. Defaults to `256`.
        out_of_range: None (as the layer's `out_of_range` says), or for this table "error", "zero", "modulo",
            "hash" or "default_row": see `ShardedEmbedding`. Strings need "hash", or a vocabulary. Defaults to
            `None`.
        vocabulary: None, or the `DynamicVocabulary` of this table, which gives ids their rows.
            `vocabulary_size` is its `vocabulary_size()`. Defaults to `None`.
        dtype: None (that of the layer's variables), or "float32" or "bfloat16" for this table. Defaults to
            `None`.
        storage: where the memory of the rows is, "device", "host" or "file:<folder>": see
            `ShardedEmbedding`. Defaults to `"device"`.
        cache_rows: None, or how many rows of this table in host memory each device keeps in its own: see
            `ShardedEmbedding`. Tables of one stack share a cache as large as theirs together. Defaults to
            `None`.
        trainable: bool. False: nothing trains the table, whatever trains the others. Defaults to `True`.

    Raises:
        ValueError: an argument has another value than these.

    Example:

    >>> words = kl.layers.TableConfig("words", 10_000, 64, optimizer="adagrad", combiner="sum")
    >>> kl.layers.DistributedEmbedding(kl.layers.FeatureConfig("title", words))(np.array([[3, 14]])).shape
    TensorShape([1, 64])
    """

    name: str
    vocabulary_size: int
    embedding_dim: int
    initializer: str | keras.Initializer = dataclasses.field(default_factory=_default_initializer)
    optimizer: str | keras.Optimizer | None = None
    combiner: str | None = "mean"
    placement: str | Placement = "auto"
    regularizer: str | keras.Regularizer | None = None
    constraint: str | keras.constraints.Constraint | None = None
    mask_zero: bool = False
    max_ids_per_partition: int = 256
    max_unique_ids_per_partition: int = 256
    out_of_range: str | None = None
    vocabulary: DynamicVocabulary | None = None
    dtype: str | None = None
    storage: str = "device"
    cache_rows: int | None = None
    trainable: bool = True

    def __post_init__(self):
        if not isinstance(self.name, str) or not self.name or "/" in self.name:
            raise ValueError(f"`name` of a table must be a string without '/'. Received: name={self.name!r}")
        check_one_of("combiner", self.combiner, COMBINERS, f"table {self.name!r}")
        own, argument = self.optimizer, f"`optimizer` of table {self.name!r}"
        settle = {
            "optimizer": None if own is None else to_row_sparse(own, argument),
            "vocabulary_size": positive_int("vocabulary_size", self.vocabulary_size),
            "embedding_dim": positive_int("embedding_dim", self.embedding_dim),
            "initializer": keras.initializers.get(self.initializer),
            "placement": _placement(self.placement),
            "storage": check_storage(self.storage),
            "cache_rows": check_cache_rows(self.cache_rows, self.storage),
            "regularizer": keras.regularizers.get(self.regularizer),
            "constraint": keras.constraints.get(self.constraint),
        }
        for field, value in settle.items():
            object.__setattr__(self, field, value)
        self.ids("error")

    def ids(self, out_of_range: str) -> IdMapper:
        """Return the `IdMapper` of this table in a layer that says `out_of_range`."""
        return IdMapper(
            self.vocabulary_size,
            self.out_of_range or out_of_range,
            self.mask_zero,
            self.vocabulary,
            argument="vocabulary_size",
        )

    def __eq__(self, other):
        if type(other) is not type(self):
            return NotImplemented
        # A config has no placement but by name.
        return self.placement == other.placement and unnumbered(self.get_config()) == unnumbered(
            other.get_config()
        )

    def __hash__(self):
        return hash((self.name, self.vocabulary_size, self.embedding_dim))

    def get_config(self) -> dict[str, Any]:
        config = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for field in _OBJECTS:
            serialize = vocabulary_config if field == "vocabulary" else keras.saving.serialize_keras_object
            config[field] = serialize(config[field])
        # A placement that is no name belongs to a machine, not to a model.
        config["placement"] = self.placement if isinstance(self.placement, str) else "auto"
        config |= storage_config(self.storage)
        if self.cache_rows is None:
            del config["cache_rows"]
        if self.trainable:
            del config["trainable"]
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "TableConfig":
        config = config_of_copy(config)
        for field in _OBJECTS:
            config[field] = keras.saving.deserialize_keras_object(config[field])
        return cls(**config)


#: `FeatureConfig.combiner` of a feature that is combined as its table says.
OF_TABLE = "table"


@keras.saving.register_keras_serializable(package="keras_largeout")
@dataclasses.dataclass(frozen=True, eq=False)
class FeatureConfig:
    """One feature of a `DistributedEmbedding`: a place in its inputs, and the table that it is looked up in.

    Args:
        name: str, for errors.
        table: `TableConfig`.
        input_shape: optional, the shape of the feature's ids, batch first: ids of another rank, or of known
            sizes that differ, are refused, but `[batch]` for `(batch, 1)`, and a `tf.SparseTensor` whose last
            axis is shorter. The size of the batch is not looked at (a replica sees a part of it), nor are
            ragged axes, nor how many ids a bag has. Nothing is cut. Defaults to `None`.
        output_shape: optional, the shape of the output, batch first; it is checked in the same way. Defaults
            to `None`.
        combiner: how the rows of a bag become one, in place of what the table says: `"mean"`, `"sum"`,
            `"sqrtn"`, `"max"` or None. "table": what the table says. Defaults to `"table"`.
        max_sequence_length: None, or an int > 0 for `[batch, ids]` without a combiner, ragged and sparse ones
            too: the output is dense, `[batch, max_sequence_length, embedding_dim]`. Longer sequences are cut
            before the lookup, shorter ones end in zeros. Defaults to `None`.

    Raises:
        ValueError: an argument has another value than these.

    Example:

    >>> items = kl.layers.TableConfig("items", 10_000, 64)
    >>> seen = kl.layers.FeatureConfig("seen", items, combiner=None, max_sequence_length=3)
    >>> kl.layers.DistributedEmbedding(seen)(tf.ragged.constant([[3, 14, 15, 92], [65]])).shape
    TensorShape([2, 3, 64])
    """

    name: str
    table: TableConfig
    input_shape: tuple[int | None, ...] | None = None
    output_shape: tuple[int | None, ...] | None = None
    combiner: str | None = OF_TABLE
    max_sequence_length: int | None = None

    def __post_init__(self):
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"`name` of a feature must be a string. Received: name={self.name!r}")
        if not isinstance(self.table, TableConfig):
            raise ValueError(
                f"`table` of feature {self.name!r} must be a TableConfig. Received: {self.table!r}"
            )
        check_one_of("combiner", self.combiner, (OF_TABLE, *COMBINERS), f"feature {self.name!r}")
        for field in ("input_shape", "output_shape"):
            shape = getattr(self, field)
            object.__setattr__(self, field, None if shape is None else tuple(shape))
        if self.combiner == OF_TABLE:
            object.__setattr__(self, "combiner", self.table.combiner)
        if self.max_sequence_length is not None:
            positive_int("max_sequence_length", self.max_sequence_length)
            if self.combiner is not None:
                raise ValueError(
                    f"`max_sequence_length` of feature {self.name!r} must be None where bags are combined. "
                    f"Received: max_sequence_length={self.max_sequence_length}, combiner={self.combiner!r}"
                )

    def __eq__(self, other):
        if type(other) is not type(self):
            return NotImplemented
        return self.table == other.table and unnumbered(self.get_config()) == unnumbered(other.get_config())

    def __hash__(self):
        return hash((self.name, self.table))

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "table": keras.saving.serialize_keras_object(self.table),
            "input_shape": self.input_shape,
            "output_shape": self.output_shape,
            "combiner": self.combiner,
            "max_sequence_length": self.max_sequence_length,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "FeatureConfig":
        with as_safe_as_here():
            table = keras.saving.deserialize_keras_object(config["table"])
        return cls(**{**config, "table": table})

    @property
    def padding(self) -> bool:
        """True if id 0 is left out of the feature's bags."""
        return self.table.mask_zero and self.combiner is not None

    @property
    def masks(self) -> bool:
        """True if the feature's output has a mask."""
        return self.table.mask_zero and self.combiner is None

    def compute_output_shape(
        self, input_shape: tuple[int | None, ...], sparse: bool = False
    ) -> tuple[int | None, ...]:
        """Return the shape of the output for ids of this shape, both checked against what the feature says.

        `sparse`: whether the ids are a `tf.SparseTensor`.

        Raises:
            ValueError: another shape than the feature says.
        """
        if not input_shape:
            raise ValueError(
                f"The input of the feature {self.name!r} must have rank 1 or more. Received: rank 0"
            )
        bags_of_one = (
            self.input_shape is not None and self.input_shape[1:] == (1,) and self.combiner is not None
        )
        if not (bags_of_one and len(input_shape) == 1):
            self._check("input_shape", input_shape, bags=self.combiner is not None, up_to=sparse)
        kept = input_shape[:-1] if self.combiner is not None and len(input_shape) > 1 else input_shape
        if self.max_sequence_length is not None:
            if len(input_shape) != 2:
                raise ValueError(
                    f"The input of the feature {self.name!r} must have rank 2, as its config has "
                    f"max_sequence_length={self.max_sequence_length}. Received: shape {tuple(input_shape)}"
                )
            kept = (input_shape[0], self.max_sequence_length)
        shape = (*kept, self.table.embedding_dim)
        self._check("output_shape", shape)
        return shape

    def _check(self, field, shape, bags=False, up_to=False):
        """Refuses another shape than the feature says.

        Args:
            field, shape: the name of what the feature says, and what was received.
            bags: bool, whether the last axis is that of bags, which may have any size.
            up_to: bool, whether the last axis may be shorter.
        """
        expected = getattr(self, field)
        if expected is None:
            return
        pairs = [pair for pair in list(zip(expected, shape))[1:] if None not in pair]
        shorter = up_to and None not in (expected[-1], shape[-1]) and shape[-1] < expected[-1]
        if (shorter or bags) and len(expected) == len(shape) and None not in (expected[-1], shape[-1]):
            pairs = pairs[:-1]
        if len(expected) != len(shape) or any(want != got for want, got in pairs):
            raise ValueError(
                f"The {field.partition('_')[0]} of the feature {self.name!r} must have the shape that its "
                f"config says, {field}={expected}. Received: shape {tuple(shape)}"
            )
