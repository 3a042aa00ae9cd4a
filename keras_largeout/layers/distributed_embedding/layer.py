"""`DistributedEmbedding`: many features, looked up in many tables at once."""

import copy
import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout.distribute.balance.recording import record
from keras_largeout.layers._feature_use import FeatureUse
from keras_largeout.layers._fused_optimizer import add_trigger, check_not_scaled
from keras_largeout.layers._inputs import check_keras_3
from keras_largeout.layers._saved_state import LayerState, SavedRows
from keras_largeout.layers.distributed_embedding.features import (
    FeatureStructure,
    bundled,
    output_spec,
    unbundled,
)
from keras_largeout.layers.distributed_embedding.optimizers import trained_together
from keras_largeout.layers.distributed_embedding.requests import Requests
from keras_largeout.layers.distributed_embedding.stacks import gather_tables, stacks_of
from keras_largeout.ops.embedding.into_range import check_out_of_range
from keras_largeout.ops.embedding.stock import StockLookup
from keras_largeout.ops.export_mode import is_exporting
from keras_largeout.ops.measuring import is_measuring
from keras_largeout.planning.plan import Plan
from keras_largeout.planning.specs import TableSpec
from keras_largeout.replicas.optimizer_check import check_loss_scale, check_optimizer
from keras_largeout.tables.placing import PLACEMENTS
from keras_largeout.tables.row_range import RowRange
from keras_largeout.tables.stacked_lookup import StackedLookup
from keras_largeout.tables.storage.places import as_safe_as_here
from keras_largeout.tables.table import track_shards


@keras.saving.register_keras_serializable(package="keras_largeout")
class DistributedEmbedding(LayerState, keras.layers.Layer):
    """Looks up many features in many tables at once; the API of `keras_rs.layers.DistributedEmbedding`.

    Tables of one width are *stacked*: one below the other in one variable. A batch is then one lookup per
    width, forward and backward, and one update by the optimizer, however many features it has; and over
    several devices all features share one exchange. Values, gradients and files are those of separate tables.

    A table whose config names an `optimizer` is trained by it in the backward pass of this layer. The model's
    optimizer, of any kind, trains the others and does not see these: neither its clipping nor its
    accumulation acts on them, callbacks that set its learning rate do not reach them (give a schedule, or set
    that of `table_optimizers()[name]`), and it must not scale the loss. Each backward pass is a step: a layer
    that is called twice in one takes two.

    Args:
        feature_configs: `FeatureConfig`, or a nested structure (dict, list, tuple) of them. Features with the
            same `TableConfig` share its table.
        table_stacking: "auto" (tables of one width, placement, optimizer and constraint), None (no table with
            another), or names of tables to stack: a list, or a list of lists, of them. Defaults to `"auto"`.
        out_of_range: what becomes of ids outside the tables whose config does not say it: `"error"` (the step
            stops), `"zero"` (they take part in nothing; exported models do this in place of "error"),
            `"modulo"`, `"hash"` or `"default_row"`: see `ShardedEmbedding`. Defaults to `"error"`.
        placement: where the rows of the tables go whose config says "auto", under
            `tf.distribute.MirroredStrategy`: "auto" (tables up to 1 MiB are replicated, the rows of larger
            ones cut by a permutation), "replicated", "range", "modulo", "permutation", "columns", or a `Plan`
            that has the stacks by the names that `fused_tables` says. Not saved with the model unless it is a
            name. Defaults to `"auto"`.
        update_stats: False, for code that was written for keras_rs: it measures buffers of a TPU, with JAX.
            Defaults to `False`.
        **kwargs: `name`, `dtype`, `trainable` as for every Keras layer.

    Call arguments:
        inputs: ids, int32 or int64 (other numbers are cast) or strings, in the structure of
            `feature_configs`: tensors, `tf.RaggedTensor`s or `tf.SparseTensor`s.
            Or what `preprocess` made of them.
        weights: optional, in the same structure: `None`, or per-id weights of the kind and shape of the ids.
        training: bool, whether the `vocabulary` of a table counts the ids. It has no other effect.

    Input shape:
        `[batch, ..., ids of a bag]` per feature; or `[batch]`: one id each.

    Output shape:
        `[batch, ..., embedding_dim]` per feature, in the same structure. Without a combiner the axis of
        ids is kept (ragged where the ids are).

    Raises:
        ValueError: configs that contradict each other, or inputs of another structure or shape.
        tf.errors.InvalidArgumentError: an id out of range; feature, table and its rows are named.

    Example:

    >>> movies = kl.layers.TableConfig("movies", 100_000, 64)
    >>> embedding = kl.layers.DistributedEmbedding({
    ...     "seen": kl.layers.FeatureConfig("seen", movies, combiner="sqrtn"),
    ...     "movie": kl.layers.FeatureConfig("movie", movies),
    ...     "user": kl.layers.FeatureConfig("user", kl.layers.TableConfig("users", 500_000, 64)),
    ... })
    >>> seen, movie, user = np.array([[3, 14], [15, 92]]), np.array([6, 5]), np.array([35, 89])
    >>> embedding({"seen": seen, "movie": movie, "user": user})["seen"].shape
    TensorShape([2, 64])
    """

    def __init__(
        self,
        feature_configs: Any,
        *,
        table_stacking: str | Sequence[str] | Sequence[Sequence[str]] | None = "auto",
        out_of_range: str = "error",
        placement: str | Plan = "auto",
        update_stats: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_out_of_range(out_of_range)
        if placement not in PLACEMENTS and not hasattr(placement, "placements"):
            raise ValueError(
                f"`placement` must be one of {PLACEMENTS} or a Plan (a table's own Placement goes into its "
                f"config). Received: placement={placement!r}"
            )
        if update_stats:
            raise ValueError(
                "`update_stats` must be False: nothing here has the size of a TPU's buffer. "
                f"Received: update_stats={update_stats!r}"
            )
        self._features = FeatureStructure(feature_configs)
        for feature in self._features.flat:
            if feature.table.placement == "sparsecore":
                raise ValueError(
                    f"`placement` of table {feature.table.name!r} must be one for GPUs or CPUs, such as "
                    "'auto': there are no TPUs here. Received: placement='sparsecore'"
                )
        self.table_stacking = copy.deepcopy(table_stacking)
        self.out_of_range = out_of_range
        self.placement = placement
        tables = gather_tables(self._features.flat)
        self._stacks = tuple(stacks_of(tables, table_stacking))
        vocabularies = [table.vocabulary for table in tables.values() if table.vocabulary is not None]
        self.vocabularies = list({id(vocabulary): vocabulary for vocabulary in vocabularies}.values())
        self._trained = tuple(trained_together(self._stacks))
        self.optimizers = [group.fused.optimizer for group in self._trained if group.fused is not None]
        for optimizer in self.optimizers:
            check_not_scaled(self, optimizer)
        self.track_list("optimizers", self.optimizers)
        self.track_list("vocabularies", self.vocabularies)
        self._trigger = None
        self._requests = Requests(self._features.flat, out_of_range)
        self.supports_masking = any(f.masks for f in self._features.flat)
        self.supports_jit = False  # custom ops
        self.autocast = False

    @property
    def feature_configs(self) -> Any:
        """The structure of `FeatureConfig`s."""
        return self._features.configs

    @property
    def fused_tables(self) -> dict[str, tuple[str, ...]]:
        """dict from the names of the stacks to the names of their tables. Plans know the stacks by them."""
        return {self._plan_name(s): tuple(table.name for table in s.tables) for s in self._stacks}

    def _plan_name(self, stack):
        return f"{self.name}/{stack.name}"

    def build(self, input_shape: Any = None) -> None:
        if self.built:
            return
        self.tables = [
            stack.table(self._plan_name(stack), self.placement, self.variable_dtype, family=self._features)
            for stack in self._stacks
        ]
        track_shards(self, *self.tables)
        if self.optimizers:
            self._trigger = add_trigger(self)
            self.make_slots()
        for stack, table in zip(self._stacks, self.tables):
            for config, section in zip(stack.tables, table.sections):
                self._requests.rules[config.name].reset_rows(table, config.initializer, section.start)
        self.built = True
        self.track_state()

    def make_slots(self) -> None:
        """Makes the slots of the tables' own optimizers: before they are saved or loaded."""
        for fused, stacks in self._trained:
            if fused is not None:
                fused.build(self._tables_of(stacks))

    def _tables_of(self, stacks):
        """Return the `StackedTable`s of `Stack`s."""
        return [table for stack, table in zip(self._stacks, self.tables) if stack in stacks]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Keras 3.12, the last one for Python 3.10, takes no None among what it builds from.
        if not self.built:
            self.build()
        return super().__call__(*args, **kwargs)

    @classmethod
    def has_sparsecores(cls) -> bool:
        """Return False: there are no TPUs here. As in keras_rs."""
        return False

    def preprocess(self, inputs: Any, weights: Any = None, training: bool = False) -> dict[str, Any]:
        """Return inputs and weights in one structure, which this layer takes as its `inputs`.

        As in keras_rs, where TPUs need it. Here nothing is gained by it.

        Args:
            inputs: as for a call.
            weights: likewise. Defaults to `None`.
            training: has no effect. Defaults to `False`.

        Returns:
            A dict.

        Raises:
            ValueError: another structure than that of `feature_configs`.
        """
        self._features.flatten("inputs", inputs)
        if weights is not None:
            self._features.flatten("weights", weights)
        return bundled(inputs, weights)

    def call(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        inputs, weights = unbundled(inputs, weights)
        check_keras_3(self, inputs)
        check_optimizer(self)
        if self.optimizers:
            check_loss_scale(self)
        flat = self._features.flatten("inputs", inputs)
        weights = [None] * len(flat) if weights is None else self._features.flatten("weights", weights)
        sections = {section.name: section for table in self.tables for section in table.sections}
        requests = self._requests(flat, weights, sections, training)
        outputs = {}
        for fused, stacks in self._trained:
            look_up = functools.partial(self._look_up, stacks, requests)
            tables = self._tables_of(stacks)
            steps = fused is not None and self.trainable and not (is_exporting() or is_measuring())
            if steps and all(table.initialized for table in tables):
                found, penalized = fused.with_step(tables, self._trigger.value, [], look_up)
            else:
                found, penalized = look_up()
            outputs |= found
            for config in (config for stack in stacks for config in stack.tables):
                if config.name in penalized:
                    self.add_loss(config.regularizer(penalized[config.name]))
        features = enumerate(self._features.flat)
        return self._features.pack([self._requests.output(f, outputs[n]) for n, f in features])

    def _look_up(self, stacks, requests):
        """Return what the tables of `stacks` answer.

        Returns:
            A dict from the numbers of their requests to outputs, and one from the names of the tables that
            have a regularizer to the distinct rows that the batch uses.
        """
        outputs, penalized = {}, {}
        for stack, table in zip(stacks, self._tables_of(stacks)):
            indices = [n for n, request in enumerate(requests) if request.section in table.sections]
            lookup = self._lookup(table, [requests[n] for n in indices])
            record(self._plan_name(stack), lookup.ids)
            outputs |= zip(indices, lookup.outputs(self.compute_dtype))
            if table.initialized and not is_exporting():
                names = [config.name for config in stack.tables if config.regularizer is not None]
                penalized |= {name: lookup.unique_rows(name) for name in names}
        return outputs, penalized

    def _lookup(self, table, requests):
        if table.initialized and not is_exporting():
            return StackedLookup(table, requests)
        # While Keras builds a model symbolically a table is a tensor of the right shape.
        source = table.variable if table.initialized else tf.zeros(table.shape, self.variable_dtype)
        lookup = functools.partial(StockLookup, num_rows=table.shape[0])
        requests = [request._replace(out_of_range="zero") for request in requests]
        return StackedLookup(table, requests, source=source, lookup=lookup)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        if not self.supports_masking:
            return None
        inputs, _ = unbundled(inputs)
        flat = self._features.flatten("inputs", inputs)
        features = zip(self._features.flat, flat)
        return self._features.pack([self._requests.mask(f, ids) if f.masks else None for f, ids in features])

    def compute_output_shape(self, input_shape: Any) -> Any:
        input_shape, _ = unbundled(input_shape)
        return keras.tree.map_structure_up_to(
            self._features.configs,
            lambda feature, shape: feature.compute_output_shape(tuple(shape)),
            self._features.configs,
            input_shape,
        )

    def compute_output_spec(self, inputs: Any, weights: Any = None, training: bool | None = None) -> Any:
        inputs, _ = unbundled(inputs)
        flat = self._features.flatten("inputs", inputs)
        return self._features.pack(
            [output_spec(f, ids, self.compute_dtype) for f, ids in zip(self._features.flat, flat)]
        )

    # The tables one by one.

    def get_embedding_tables(self) -> dict[str, RowRange]:
        """Return dict from the name of each table to its rows.

        The values are views: `shape`, `dtype`, subscripts as of a NumPy array (`table[[3, 5], :2]`),
        `read(start, stop)`, `numpy()` (`np.asarray` works as well) and `assign(value)`. Nothing is read
        before it is asked for, and then in chunks of rows.
        """
        if not self.built:
            raise AttributeError("You must build the layer before asking for its tables.")
        return {section.name: table.span(section.name) for table in self.tables for section in table.sections}

    def make_uses(self) -> list[FeatureUse]:
        """Return a `FeatureUse` for each feature."""
        requests = self._requests
        if not requests.uses:
            rules = [(f.name, requests.rules[f.table.name]) for f in requests.features]
            requests.uses = tuple(FeatureUse(name, rule) for name, rule in rules)
        return list(requests.uses)

    def table_specs(self, counts: dict[str, ArrayLike] | None = None) -> list[TableSpec]:
        """Return what a planner (`kl.distribute.plan`) has to know of the stacks: a list of `TableSpec`.

        Args:
            counts: optional dict from names of tables to frequencies of their rows, `[vocabulary_size]`, in
                one unit for all.
        """
        features, dtype = self._features.flat, self.variable_dtype
        return [stack.spec(self._plan_name(stack), features, dtype, counts or {}) for stack in self._stacks]

    def table_optimizers(self) -> dict[str, keras.Optimizer]:
        """Return dict from the names of the tables that have their own optimizer to it.

        What a config said (a Keras optimizer, or its name) became an optimizer of `kl.optimizers`. Tables
        whose configs say the same share one.

        Example:

        >>> embedding.table_optimizers()["movies"].learning_rate = 0.01
        """
        return {
            config.name: fused.optimizer
            for fused, stacks in self._trained
            if fused is not None
            for stack in stacks
            for config in stack.tables
        }

    # Saving. The tables' optimizers are saved by Keras, in folders of their own.

    def saved_parts(self) -> list[Any]:
        return [SavedRows(name, rows) for name, rows in self.get_embedding_tables().items()]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "feature_configs": keras.saving.serialize_keras_object(self._features.configs),
            "table_stacking": self.table_stacking,
            "out_of_range": self.out_of_range,
            "placement": self.placement if isinstance(self.placement, str) else "auto",
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "DistributedEmbedding":
        with as_safe_as_here():
            features = keras.saving.deserialize_keras_object(config["feature_configs"])
        return cls(**{**config, "feature_configs": features})
