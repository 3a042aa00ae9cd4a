"""The all-to-all lookup: from the ids of one replica to the rows it needs, on whatever device, and back.

A replica drops duplicate ids and sorts the rest by position. So each shard is asked for one run of rows, and
the rows come back in that order. Nothing else is sent between devices: forward ids and rows, backward one
gradient per unique row. How many rows a shard sends must be known on the host. So where ids are in host
memory, as those of a batch of `kl.Model` are, they become runs there, and no GPU is waited for.
"""

import contextlib

import numpy as np
import tensorflow as tf

from keras_largeout.ops.embedding.wrapper import embedding_combine
from keras_largeout.ops.exchange import partition_ids
from keras_largeout.ops.labels import on_the_host
from keras_largeout.replicas._tensorflow import move_to_host
from keras_largeout.replicas.collectives import AllGather, AllToAll
from keras_largeout.replicas.devices import device_scope, plain_variable, replica_copy
from keras_largeout.replicas.exchange_dtype import gather_narrowed
from keras_largeout.tables.array import HOT
from keras_largeout.tables.counting import counter_of
from keras_largeout.tables.hierarchical_exchange import exchange_for, partition_positions
from keras_largeout.tables.storage.batch_rows import record_rows


class Exchange:
    """The placement of one table as tensors. Made once per table, used in every step.

    Args:
        table: `ShardedTable` that is sharded row-wise or table-wise over several devices.
    """

    def __init__(self, table):
        self.table = table
        placement = table.placement
        self._position_of = self._hot = self._in_use = None
        if not table.remote:
            with tf.init_scope(), tf.device("CPU:0"):
                self._in_use = plain_variable(True, trainable=False)
        with tf.init_scope():
            if placement.kind == "explicit":  # positions cover hot rows too
                self._position_of = self._variable(placement.table_positions)
            elif placement.hot is not None:
                self._hot = self._variable(placement.hot)

    def _variable(self, values):
        """Return a variable in host memory, or on a server: of either there is one for all replicas."""
        values = np.asarray(values)
        if self.table.remote:
            return tf.Variable(values, trainable=False)
        with tf.device("CPU:0"):
            return plain_variable(values, trainable=False)

    def refresh(self):
        """Takes over the table's new placement, which has the same kind and sizes as the old one."""
        placement = self.table.placement
        for variable, values in ((self._position_of, "table_positions"), (self._hot, "hot")):
            if variable is not None:
                variable.assign(getattr(placement, values))

    def retire(self):
        """Makes functions fail that were traced with this exchange: the rows are elsewhere now."""
        self._in_use.assign(False)

    def partition(self, ids, out_of_range):
        """Return the `Partition` of this replica's ids: see `ops.exchange.partition_ids`."""
        placement = self.table.placement
        if self.table.remote and self._position_of is not None:
            return self._partition_at_server(ids, out_of_range)
        self._check_in_use()
        position_of, hot = _read(self._position_of), _read(self._hot)
        with partition_scope(ids, position_of, hot):
            return partition_ids(
                ids,
                placement.offsets,
                kind=placement.kind,
                rows=placement.rows,
                devices=placement.devices,
                multiplier=placement.multiplier,
                addend=placement.addend,
                position_of=position_of,
                hot=hot,
                out_of_range=out_of_range,
            )

    def _check_in_use(self):
        if self._in_use is None or self.table.placement_unit is None:  # nothing moves its rows
            return
        moved = (
            f"The rows of {self.table.placement_unit.plan_name!r} were moved by `rebalance` after this "
            "function was traced. Make it again (for a Keras model by `make_predict_function(force=True)` "
            "and the like)."
        )
        with tf.device("CPU:0"):
            tf.debugging.Assert(self._in_use, [moved])

    def _partition_at_server(self, ids, out_of_range):
        """Asks the server for the positions of these ids only. Hot rows count as a first shard."""
        placement = self.table.placement
        rows = tf.constant(placement.rows, ids.dtype)
        inside = (ids >= 0) & (ids < rows)
        positions = tf.gather(self._position_of, tf.where(inside, ids, 0))
        if out_of_range == "error":
            bad = tf.boolean_mask(ids, ~inside)
            message = f"`ids` must lie in [0, {placement.rows}). Received:"
            with tf.control_dependencies([tf.debugging.Assert(tf.size(bad) == 0, [message, bad])]):
                positions = tf.identity(positions)
        partition = partition_ids(
            tf.where(inside, positions, tf.constant(-1, tf.int64)),
            np.concatenate([[0], placement.offsets]),
            kind="identity",
            rows=int(placement.offsets[-1]),
            devices=placement.devices + 1,
            out_of_range="zero",
        )
        return partition._replace(boundaries=partition.boundaries[1:])

    def rows(self, partition):
        """Return the rows of the unique ids, `[unique, dim]`, in the order of the ids; differentiable."""
        if not self.table.hosts.is_alone:
            return self._rows_of_all_hosts(partition)
        return self._rows_here(partition)

    def _rows_of_all_hosts(self, partition):
        """Return the rows of parts that are on several hosts: send positions there, and receive the rows.

        A position travels once for all replicas of a host (`hierarchical_exchange.py`). A host deduplicates
        the positions that it receives of all hosts, so each row of its parts is read once.
        """
        hosts, placement = self.table.hosts, self.table.placement
        exchange, counter = exchange_for(hosts, placement, partition), counter_of(self.table)
        if counter is not None:
            counter.add_carried(exchange.boundaries)
        route = AllToAll(hosts, exchange.send)
        with on_the_host():  # positions travel between the hosts' memories
            here = partition_positions(placement, route.forward(exchange.positions))
        rows = self._rows_here(here, hot=False)
        take = tf.gather if rows.shape.rank == 1 else embedding_combine
        brought = exchange.scatter(route.reverse(take(rows, here.inverse)))
        if not placement.num_hot:
            return brought
        with on_the_host():
            wanted = partition.local[: partition.boundaries[1]]
        return tf.concat([self._part_rows(HOT, wanted), brought], axis=0)

    def _rows_here(self, partition, hot=True):
        with device_scope(partition.local):  # a run goes straight to its shard
            runs = [(key, partition.local[run]) for key, run in self.runs(partition) if hot or key != HOT]
        pieces = [self._part_rows(key, wanted) for key, wanted in runs]
        return tf.concat(pieces, axis=0) if len(pieces) > 1 else pieces[0]

    def _part_rows(self, key, wanted):
        counter, part = counter_of(self.table), self.table.array.parts[key]
        rows = rows_of_part(self.table, part, wanted)
        if counter is not None:
            with device_scope(replica_copy(part.value)):
                counter.record(key, wanted)
        return rows

    def runs(self, partition):
        """Yield `(key of a part, the slice of its rows in the partition)` for each part of the table."""
        with on_the_host():
            boundaries = tf.cast(
                partition.boundaries, tf.int32
            )  # a GPU keeps int32 in host memory, where slices are cut
        for key in self.table.array.parts:
            run = 0 if key == HOT else key + 1
            yield key, slice(boundaries[run], boundaries[run + 1])


def rows_of_part(table, part, wanted):
    """Return the rows `wanted` (int64 tensor, by their indices there) of one part of a table; differentiable.

    They are on the device of the part, and here where the table has an `exchange_dtype`.
    """
    record_rows(part, wanted)
    if table.exchange_dtype is None or not part.initialized:
        return part.gather(wanted)
    return gather_narrowed(replica_copy(part.value), wanted, table.exchange_dtype)


def partition_scope(ids, *arrays):
    """Return a context in which ids become runs: on the host, or on the GPU that makes the ids.

    Args:
        ids: the ids.
        *arrays: what else is read for it, in host memory, so that the host does it. None: not needed.
    """
    moved = move_to_host(ids)
    return on_the_host() if moved or any(x is not None for x in arrays) else contextlib.nullcontext()


def _read(variable):
    if variable is None:
        return None
    with device_scope(variable):
        return variable.read_value()


def gather_columns(table, ids):
    """Return rows of a table that is sharded column-wise: every device gives its columns of the rows of
    all ids.
    """
    if table.hosts.is_alone:
        return _columns_here(table, ids)
    route = AllGather(table.hosts, ids)
    columns, per_host = np.array(table.placement.columns), table.hosts.per_host
    widths = columns[per_host - 1 :: per_host, 1] - columns[::per_host, 0]
    rows = _columns_here(table, route.forward(ids))
    rows = tf.pad(rows, [(0, 0), (0, int(widths.max()) - rows.shape[1])])  # as wide as the widest host's
    of_hosts = tf.unstack(route.reverse(rows), table.hosts.count)
    return tf.concat([part[:, :width] for part, width in zip(of_hosts, widths)], axis=-1)


def _columns_here(table, ids):
    return tf.concat([rows_of_part(table, part, ids) for part in table.shards], axis=-1)
