"""`SingleTableMixin`: the common part of layers that look up rows of one table."""

from typing import Any

import keras
import tensorflow as tf

from keras_largeout.distribute.balance.recording import record
from keras_largeout.layers._fused_optimizer import FusedOptimizerMixin
from keras_largeout.layers._saved_state import SavedVariables
from keras_largeout.ops.embedding.stock import stock_embedding_lookup
from keras_largeout.ops.export_mode import is_exporting
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.plan import Plan
from keras_largeout.planning.specs import TableSpec
from keras_largeout.tables.lookup import sharded_lookup, unique_rows
from keras_largeout.tables.placing import check_placement
from keras_largeout.tables.storage.places import (
    check_storage,
    config_of_copy,
    storage_config,
    storage_of_spec,
)
from keras_largeout.tables.storage.row_cache import check_cache_rows
from keras_largeout.tables.table import ShardedTable, track_shards


class SingleTableMixin(FusedOptimizerMixin):
    """A base of a layer that has one table, and perhaps its own optimizer for it.

    Attributes:
        table: the `ShardedTable`, once the layer is built.
        placement, storage, cache_rows: where its rows go, as in `ShardedEmbedding`.
    """

    def _set_placement(self, placement: str | Placement | Plan, storage: str, cache_rows: int | None) -> None:
        """Takes these arguments of the constructor. Raises ValueError where one is not valid."""
        self.placement, self.storage = check_placement(placement), check_storage(storage)
        self.cache_rows = check_cache_rows(cache_rows, storage)

    def make_table(
        self,
        shape: tuple[int, int],
        initializer: keras.Initializer,
        name: str,
        constraint: keras.constraints.Constraint | None,
    ) -> None:
        """Makes the table and the slots of an optimizer of the layer's own."""
        self.table = ShardedTable(
            shape,
            initializer,
            dtype=self.variable_dtype,
            name=name,
            constraint=constraint,
            placement=self.placement,
            plan_name=self.name,
            trainable=self.optimizer is None,
            storage=self.storage,
            cache_rows=self.cache_rows,
        )
        track_shards(self, self.table)
        self.build_optimizer([self.table])

    def whole_table(self, name: str) -> keras.Variable:
        """Return the table as a `keras.Variable`, where it is in one piece. `name`: how the layer calls it.

        Raises:
            AttributeError: the layer is not built, or the table is in several pieces or memories.
        """
        if not self.built:
            raise AttributeError(f"You must build the layer before accessing `{name}`.")
        if not self.table.is_whole:
            raise AttributeError(
                f"`{name}` is for tables in one piece. Read and write this one by `table.numpy()` and "
                '`table.assign(...)`; to use it as a matrix, make it with placement="replicated". '
                f"Received: {self.name!r}, a table in {len(self.table.shards)} parts on several devices"
            )
        if self.table.caches is not None:
            raise AttributeError(
                f"`{name}` is for tables in one memory. Read and write this one by `table.numpy()` and "
                f"`table.assign(...)`. Received: {self.name!r}, with cache_rows={self.cache_rows}"
            )
        return self.table.shards[0]

    def look_up(
        self,
        ids: tf.Tensor | tf.RaggedTensor | tf.SparseTensor,
        weights: tf.Tensor | tf.RaggedTensor | tf.SparseTensor | None,
        combiner: str | None,
        out_of_range: str,
        regularizer: keras.Regularizer | None,
    ) -> tf.Tensor:
        """Return `ops.embedding_lookup` in the table, under every strategy, in exports, and symbolically.

        Args:
            ids, weights, combiner, out_of_range: as in `ops.embedding_lookup`.
            regularizer: a Keras regularizer of the distinct rows that are used, or None.
        """
        record(self.name, ids)
        # While Keras builds a model symbolically the table is a tensor of the right shape.
        if not self.table.initialized:
            zeros = tf.zeros(self.table.shape, self.variable_dtype)
            return stock_embedding_lookup(zeros, ids, weights, combiner)
        if is_exporting():
            return stock_embedding_lookup(self.table.variable, ids, weights, combiner, self.table.shape[0])

        def look_up():
            rows = sharded_lookup(self.table, ids, weights, combiner, out_of_range)
            if regularizer is None:
                return (rows,)
            return rows, unique_rows(self.table, ids, out_of_range)

        rows, *penalized = self.apply_fused_update(look_up)
        for distinct in penalized:
            self.add_loss(regularizer(distinct))
        return rows

    def table_shape(self) -> tuple[int, int]:
        """Return `(rows, dim)` of the table."""
        raise NotImplementedError

    def table_specs(self) -> list[TableSpec]:
        """Return what a planner (`kl.distribute.plan`) has to know of the layer: a list of one
        `TableSpec`.
        """
        rows, dim = self.table_shape()
        return [
            TableSpec(self.name, rows, dim, dtype=self.variable_dtype, storage=storage_of_spec(self.storage))
        ]

    def saved_parts(self) -> list[Any]:
        return [self.table, SavedVariables(self.own_weights())]

    def own_weights(self) -> dict[str, keras.Variable]:
        """Return `{name in files: keras.Variable}` of what is trained in addition to the table."""
        return {}

    @classmethod
    def from_config(cls, config):
        return super().from_config(config_of_copy(config))

    def place_config(self) -> dict[str, Any]:
        """Return the part of `get_config` that says where the table is and what trains it.

        A placement is saved by its name alone: others belong to a machine.
        """
        return {
            "placement": self.placement if isinstance(self.placement, str) else "auto",
            "optimizer": None if self._fused is None else self._fused.config,
            **storage_config(self.storage),
            **({} if self.cache_rows is None else {"cache_rows": self.cache_rows}),
        }
