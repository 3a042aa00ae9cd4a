"""`MappedLookup`: lookups in a file that is in the memory of the device that computes. No row is brought."""

import tensorflow as tf

from keras_largeout.ops._gradients import row_gradient, with_gradient
from keras_largeout.ops._library import ops
from keras_largeout.ops.embedding.wrapper import Lookup, as_ids
from keras_largeout.ops.exchange import partition_ids
from keras_largeout.ops.records import record_lookup
from keras_largeout.tables.storage.batch_rows import is_recording


def uses_mapped_lookup(table):
    """Return whether one device computes with a `ShardedTable` in a file, and its memory is the host's.

    Not while the gathered rows are recorded: then they are brought.
    """
    if is_recording():
        return False
    whole = table.folder is not None and len(table.devices) == 1 and len(table.shards) == 1
    return whole and not tf.config.list_logical_devices("GPU")


class MappedLookup(Lookup):
    """`Lookup` in the records of a `MappedShard`, without weights of the ids. It has a gradient.

    Where all rows were written before, this is one pass over them, as in memory. Otherwise the distinct rows
    are looked up first, those that were never written with their first values.
    """

    def __init__(self, part, combiner, out_of_range):
        super().__init__(part.value, combiner, out_of_range, part.shape[0])
        self.part = part

    def combined(self, ids, weights, row_splits=None):
        part = self.part
        ids = part.array.table.folder.while_open(as_ids(ids))
        rows, dim = tuple(part.shape)
        splits = tf.zeros([0], tf.int64) if row_splits is None else tf.cast(row_splits, tf.int64)
        found, written = record_lookup(
            part.value, ids, splits, self.combiner, self.out_of_range, part.dtype, dim
        )

        def with_new():
            known = partition_ids(
                ids, [0, rows], kind="identity", rows=rows, devices=1, out_of_range=self.out_of_range
            )
            brought = Lookup(part.rows(known.unique), self.combiner, "zero")
            return brought.dense(known.inverse, None, row_splits)

        def gradient(upstream):
            touched = ops.largeout_embedding_grad(
                ids,
                splits,
                tf.zeros([0], tf.float32),
                upstream,
                tf.constant(rows, tf.int64),
                combiner=self.combiner or "none",
                out_of_range=self.out_of_range,
            )
            return [row_gradient(tf.constant([rows, dim], tf.int64), *touched)]

        output = tf.cond(written, lambda: found, with_new)
        output.set_shape(found.shape)
        return with_gradient(gradient, output, [], [part.value])
