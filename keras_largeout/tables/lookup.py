"""Looking up rows of a `ShardedTable`, wherever they are."""

import tensorflow as tf

from keras_largeout.ops.embedding.kinds import values_of, with_values
from keras_largeout.ops.embedding.wrapper import embedding_combine, embedding_lookup
from keras_largeout.ops.exchange import partition_ids
from keras_largeout.tables.counting import counter_of
from keras_largeout.tables.exchange import gather_columns, partition_scope, rows_of_part
from keras_largeout.tables.storage.mapped_lookup import MappedLookup, uses_mapped_lookup


def sharded_lookup(table, ids, weights=None, combiner=None, out_of_range="error"):
    """Return `ops.embedding_lookup` for a `ShardedTable`: the same arguments, the same numbers.

    The ids of a replica are made unique before they travel; each shard gets those that it owns, and only
    their rows come back; they are combined where they are needed.

    Args:
        table: `ShardedTable` of two axes.
        ids, weights, combiner, out_of_range: as in `ops.embedding_lookup`.

    Returns:
        As `ops.embedding_lookup`.
    """
    if table.is_whole and not table.is_offloaded:
        return embedding_lookup(
            table.variable, ids, weights=weights, combiner=combiner, out_of_range=out_of_range
        )
    if weights is None and uses_mapped_lookup(table) and counter_of(table) is None:
        return MappedLookup(table.shards[0], combiner, out_of_range)(ids)
    rows, inverse = fetch_unique_rows(table, values_of(ids), out_of_range)
    inverse = with_values(ids, inverse)
    return embedding_combine(rows, inverse, weights=weights, combiner=combiner, out_of_range="zero")


def fetch_unique_rows(table, ids, out_of_range):
    """Return the exchange: the distinct rows that a replica asks for, and which of them each id is.

    Args:
        table: `ShardedTable`.
        ids: integers of any shape.

    Returns:
        `(rows, inverse)`: `[unique, dim]`, and int32 of the shape of `ids`, -1 where an id was dropped.
    """
    counter = counter_of(table)
    if table.placement.columns is None and not table.is_whole:
        partition = table.exchange.partition(ids, out_of_range)
        if counter is not None:
            counter.add_rows(partition)
        return table.exchange.rows(partition), partition.inverse
    # All rows are in every part: positions are rows.
    with partition_scope(ids):
        partition = partition_ids(
            ids,
            [0, table.shape[0]],
            kind="identity",
            rows=table.shape[0],
            devices=1,
            out_of_range=out_of_range,
        )
    if counter is not None:
        counter.add_columns(partition)
    return gather_columns(table, partition.unique), partition.inverse


def unique_rows(table, ids, out_of_range="error"):
    """Return the distinct rows that `ids` use, `[unique, dim]`."""
    flat = tf.reshape(values_of(ids), [-1])
    return sharded_lookup(table, tf.unique(flat).y, out_of_range=out_of_range)


class LogicalRows:
    """A table as the stock searches see it: its rows by their logical indices, wherever they are."""

    def __init__(self, table):
        self.table, self.dtype = table, tf.as_dtype(table.array.dtype)

    def gather(self, rows):
        """Return the rows `rows` (integers of any shape)."""
        if self.table.is_whole:  # as of a tree so small that every device has all of it
            (part,) = self.table.shards
            return rows_of_part(self.table, part, rows)
        partition = self.table.exchange.partition(rows, "error")
        return tf.gather(self.table.exchange.rows(partition), partition.inverse)
