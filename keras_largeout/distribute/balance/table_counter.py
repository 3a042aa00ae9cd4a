"""`TableCounter`: how many rows the replicas ask of the shards of a table."""

import numpy as np
import tensorflow as tf

from keras_largeout.distribute.balance.load_bytes import asked_after_dedup, server_table_bytes, table_bytes
from keras_largeout.distribute.balance.load_counter import HOST, LoadCounter, counts_on, increment
from keras_largeout.replicas.devices import plain_variable
from keras_largeout.tables.array import HOT


class TableCounter(LoadCounter):
    """Counts the unique rows that are looked up in a `ShardedTable`.

    A row counts once per lookup and replica, however often it occurs there: that is what it costs.

    Args:
        table: `ShardedTable`.
        record: bool, whether to record how often each row is looked up. That takes a uint32 per row, on the
            device of the row.
    """

    def __init__(self, table, record):
        super().__init__(table.plan_name, table.array, ("rows",), table.placement.devices + 2, record)
        self._table = table
        over_hosts = not table.hosts.is_alone and table.placement.columns is None
        self._carried = [counts_on(HOST, self.devices + 2) for _ in range(self.devices * over_hosts)]
        if record and table.placement.columns is None:
            for key, part in table.array.parts.items():
                if key != HOT:
                    with tf.init_scope(), tf.device(part.device):
                        zeros = tf.zeros([part.shape[0]], tf.uint32)
                        self._recorded[key] = plain_variable(zeros, trainable=False)

    def add_rows(self, partition):
        """Counts a `Partition` of a table that is sharded by rows."""
        self.add(partition.boundaries)

    def add_carried(self, boundaries):
        """Count the rows that this replica requests for its host, given as in `Partition.boundaries`."""
        self._carried[self.this_replica()].assign_add(boundaries)

    def add_columns(self, partition):
        """Counts a `Partition` of a table that is sharded by columns: every device is asked for every row."""
        with tf.device(HOST):
            each = tf.constant([0, *range(self.devices + 1)], tf.int64)
            self.add(each * tf.size(partition.unique, out_type=tf.int64))

    def split(self, numbers):
        return [numbers[:, 1:] - numbers[:, :-1]]  # from `Partition.boundaries` to lengths

    def record(self, key, local):
        """Records which rows of the part `key` were looked up, on the device where they are."""
        if key in self._recorded:
            increment(self._recorded[key], local, tf.constant(1, tf.uint32))

    def bytes_between(self, asked, *replicated):
        asked = asked[:, 0, 1:]
        if self._carried:
            carried = self.of_all_hosts(np.stack([numbers.numpy() for numbers in self._carried]))
            asked = asked_after_dedup(asked, self.split(carried)[0][:, 1:], self._table.hosts.per_host)
        return table_bytes(self._table, asked, self.updated, *replicated)

    def bytes_of_servers(self, asked, gradients):
        return server_table_bytes(self._table, asked[:, 0, 1:].sum(axis=0), gradients)

    def reset(self):
        super().reset()
        for numbers in self._carried:
            numbers.assign(tf.zeros(numbers.shape, numbers.dtype))

    def recorded(self):
        """Return float32 `[rows]`: how often each row was looked up; 0 for replicated rows. None: not
        recorded.
        """
        if not self._recorded:
            return None
        placement = self._table.placement
        counts = np.zeros(placement.rows, np.float32)
        by_shard = {key: variable.numpy() for key, variable in self._recorded.items()}
        for start, stop in self._table.array.chunk_ranges():
            owners, local = placement.locate(np.arange(start, stop))
            for shard, found in by_shard.items():
                mine = owners == shard
                counts[start:stop][mine] = found[local[mine]]
        return self.of_all_hosts(counts).astype(np.float32)
