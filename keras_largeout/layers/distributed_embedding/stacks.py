"""The stacks of a `DistributedEmbedding`: tables that become one, by what their configs say."""

import math
from typing import NamedTuple

import keras
import numpy as np

from keras_largeout.layers.distributed_embedding.config import unnumbered
from keras_largeout.planning.specs import TableSpec
from keras_largeout.tables.stacked import StackedTable
from keras_largeout.tables.storage.places import storage_of_spec

# Ids of a stack then fit 31 bits; a permutation must not have many more rows.
MOST_ROWS = 2**31 - 1


class Stack(NamedTuple):
    """Tables that are in one `StackedTable`.

    Attributes:
        name: str; that of the table where it is alone.
        tables: tuple of `TableConfig`, alike in `embedding_dim`, `dtype`, `placement`, `storage`,
            `optimizer`, `constraint` and `trainable`; all of them with `cache_rows`, or none.
    """

    name: str
    tables: tuple

    @property
    def first(self):
        return self.tables[0]

    @property
    def own_optimizer(self):
        """The `optimizer` of its tables' configs; None for tables that nothing trains."""
        return self.first.optimizer if self.first.trainable else None

    @property
    def cache_rows(self):
        """The sum of its tables' `cache_rows`; None if they have no cache."""
        return sum(table.cache_rows or 0 for table in self.tables) or None

    def table(self, plan_name, placement, dtype, family):
        """Return the `StackedTable`.

        Args:
            plan_name: the name by which a `Plan` knows the stack.
            placement: of the layer, for tables whose configs say "auto".
            dtype: of the layer, for tables whose configs say none.
            family: an object that all stacks of the layer share.
        """
        first, own = self.first, self.first.placement
        return StackedTable(
            {table.name: (table.vocabulary_size, table.initializer) for table in self.tables},
            first.embedding_dim,
            dtype=first.dtype or dtype,
            name=f"{self.name}.embeddings",  # that of no other stack's shard, whatever they are called
            constraint=first.constraint,
            placement=placement if isinstance(own, str) and own == "auto" else own,
            plan_name=plan_name,
            storage=first.storage,
            cache_rows=self.cache_rows,
            family=family,
            trainable=first.trainable and self.own_optimizer is None,
        )

    def spec(self, name, features, dtype, counts):
        """Return what a planner has to know: a `TableSpec` under this name.

        Args:
            features: the `FeatureConfig`s of the layer.
            counts: dict from names of tables to frequencies of their rows; of all tables here, or of none.

        Raises:
            ValueError: counts of some of the tables.
        """
        names = [table.name for table in self.tables]
        missing = [name for name in names if name not in counts]
        if len(missing) not in (0, len(names)):
            raise ValueError(
                f"`counts` must have those of all tables of {name!r}, or of none. Received: none of {missing}"
            )
        shapes = [feature.input_shape or () for feature in features if feature.table.name in names]
        return TableSpec(
            name,
            _rows(self.tables),
            self.first.embedding_dim,
            dtype=self.first.dtype or dtype,
            ids_per_example=sum(math.prod(n or 1 for n in shape[1:]) for shape in shapes),
            counts=None if missing else np.concatenate([np.asarray(counts[n]) for n in names]),
            storage=storage_of_spec(self.first.storage),
        )


def gather_tables(features):
    """Return dict from names to the different `TableConfig`s of `FeatureConfig`s, in their order.

    Raises:
        ValueError: two different tables have one name.
    """
    tables = {}
    for feature in features:
        table = tables.setdefault(feature.table.name, feature.table)
        if table != feature.table:
            raise ValueError(
                f"Tables must have different names. Received: two different tables {table.name!r}, one of "
                f"them of the feature {feature.name!r}"
            )
    return tables


def stacks_of(tables, stacking="auto"):
    """Return the `Stack`s of tables, in the order of their first tables; the same on any number of devices.

    Args:
        tables: dict from names to `TableConfig`.
        stacking: "auto" (all that are alike), None (every table by itself), or the names of tables to stack,
            a list, or a list of lists, of them.

    Raises:
        ValueError: names of tables that there are not, that occur twice, or that are not alike.
    """
    chosen = _chosen(tables, stacking)
    stacks = []  # of [key, tables]
    for name, table in tables.items():
        alike = _alike(table)
        if chosen is not None:
            alike = (chosen.get(name, name), alike)
        fits = [s for s in stacks if s[0] == alike and _rows(s[1]) + table.vocabulary_size <= MOST_ROWS]
        if fits:
            fits[0][1].append(table)
        else:
            stacks.append([alike, [table]])
    if chosen:
        _check_chosen(chosen, stacks)
    taken, named = set(tables), []
    for _, members in stacks:
        name = members[0].name
        if len(members) > 1:
            name = base = f"stack_{members[0].embedding_dim}"
            number = 1
            while name in taken:
                name, number = f"{base}_{number}", number + 1
            taken.add(name)
        named.append(Stack(name, tuple(members)))
    return named


def _alike(table):
    """Return what tables of one stack have in common."""
    placement = table.placement if isinstance(table.placement, str) else id(table.placement)
    own = table.name if not isinstance(placement, str) else None  # a Placement is that of one table
    optimizer, constraint = (
        unnumbered(keras.saving.serialize_keras_object(part)) for part in (table.optimizer, table.constraint)
    )
    held = table.dtype, placement, own, table.storage, table.cache_rows is not None
    return table.embedding_dim, *held, optimizer, constraint, table.trainable


def _rows(tables):
    return sum(table.vocabulary_size for table in tables)


def _chosen(tables, stacking):
    """Return dict from the name of a table to the index of the stack that was asked for; None: stack all."""
    if stacking == "auto":
        return None
    if isinstance(stacking, str):
        raise ValueError(
            f"`table_stacking` must be 'auto', None or names of tables. Received: table_stacking={stacking!r}"
        )
    lists = [] if stacking is None else list(stacking)
    if lists and all(isinstance(name, str) for name in lists):
        lists = [lists]
    chosen = {}
    for index, names in enumerate(lists):
        for name in names:
            if name not in tables or name in chosen:
                raise ValueError(
                    f"`table_stacking` must name tables of the layer, {list(tables)}, once each. "
                    f"Received: {name!r} in table_stacking={stacking!r}"
                )
            chosen[name] = index
    return chosen


def _check_chosen(chosen, stacks):
    homes = {}
    for index, (_, members) in enumerate(stacks):
        for table in members:
            if table.name in chosen and homes.setdefault(chosen[table.name], index) != index:
                first = stacks[homes[chosen[table.name]]][1][0]
                raise ValueError(
                    "Tables of `table_stacking` must have the same `embedding_dim`, `dtype`, `placement`, "
                    "`storage`, `optimizer`, `constraint` and `trainable`, all of them `cache_rows` or none, "
                    f"and {MOST_ROWS} rows together at most. "
                    f"Received: {first.name!r} and {table.name!r}"
                )
