"""A two-level all-to-all: the replicas of a host request each row of another host once.

Replica e of a host collects the positions that all replicas of the host request of device e of any host. It
deduplicates the positions, fetches the rows from device e of every host, and scatters them to the replicas.
Backward it sums the gradients of the host per row before they travel.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_largeout.ops.exchange import partition_ids
from keras_largeout.ops.labels import on_the_host
from keras_largeout.ops.row_update import sum_rows
from keras_largeout.replicas._tensorflow import in_graph_of_replica
from keras_largeout.replicas.cross_replica import cross_replica_call, several_replicas
from keras_largeout.replicas.devices import replica_index


def partition_positions(placement, positions):
    """Return the `Partition` of positions that are not hot. It counts rows from the last hot position."""
    return partition_ids(
        positions - placement.num_hot,
        placement.offsets - placement.num_hot,
        kind="identity",
        rows=int(placement.offsets[-1]) - placement.num_hot,
        devices=placement.devices,
    )


class DirectExchange:
    """An exchange without deduplication: each replica requests its own rows.

    Args:
        hosts: `Hosts`.
        placement: `Placement` of the table.
        partition: `Partition` of this replica's ids.

    Attributes:
        positions: int64 `[n]`, ascending: the positions that this replica requests of all hosts.
        send: int64 `[count]`: how many of the positions each host has.
        boundaries: int64 `[devices + 2]`: where the positions of each device begin, as in a `Partition`.
    """

    def __init__(self, hosts, placement, partition):
        self.boundaries = partition.boundaries
        with on_the_host():
            boundaries = partition.boundaries[1 :: hosts.per_host]
            self.send = boundaries[1:] - boundaries[:-1]
            self.positions = partition.unique[boundaries[0] :]

    def scatter(self, rows):
        """Return the rows `[m, ...]` of the replica's partition that are not hot, given the fetched rows."""
        return rows


class HostDedupExchange:
    """The two-level exchange that this module describes. Arguments and attributes as of `DirectExchange`.

    All replicas of the host must construct it, and call `scatter`, together.
    """

    def __init__(self, hosts, placement, partition):
        self._devices = hosts.local

        def collect(strategy, unique, boundaries):
            of_all = map(strategy.experimental_local_results, (unique, boundaries))
            return self._collect(placement, [*zip(*of_all)])

        args = partition.unique, partition.boundaries
        self._columns, self._takes, partitions = several_replicas().merge_call(collect, args=args)
        replica = replica_index()
        self._unique = [partition.unique for partition in partitions]
        self.boundaries = partitions[replica].boundaries
        with on_the_host():
            self.positions = self._unique[replica] + placement.num_hot
            self.send = (self.boundaries[2:] - self.boundaries[1:-1])[replica :: hosts.per_host]

    def _collect(self, placement, replicas):
        """Deduplicate the positions that the replicas request of each device.

        Args:
            replicas: list of `(unique, boundaries)`.

        Returns:
            `(columns, takes, partitions)`. `columns[r]`: the `_Columns` of what replica r requests.
            `takes[r][e]`: the indices of what it requests of device e of any host among the unique positions
            of `partitions[e]`, a `Partition`.
        """
        columns, requested = [], []
        for device, (unique, boundaries) in zip(self._devices, replicas):
            with tf.device(device), on_the_host():
                columns.append(_columns_of(boundaries, placement.devices, len(self._devices)))
                requested.append(columns[-1].split(unique[columns[-1].hot :]))
        partitions, takes = [], []
        for device, of_replicas in zip(self._devices, zip(*requested)):
            with tf.device(device), on_the_host():
                partitions.append(partition_positions(placement, tf.concat(of_replicas, axis=0)))
                inverse, takes_of_device, end = tf.cast(partitions[-1].inverse, tf.int64), [], 0
                for positions in of_replicas:
                    begin, end = end, end + tf.size(positions)
                    takes_of_device.append(inverse[begin:end])
                takes.append(takes_of_device)
        return columns, [*zip(*takes)], partitions

    def scatter(self, rows):
        """Scatter the fetched rows, as `DirectExchange` does.

        Gradients of replicas are summed in float32, in the order of replicas.
        """
        self._inner = rows.shape[1:]
        return tf.ensure_shape(
            cross_replica_call(self._to_replicas, self._to_owners, rows), [None, *self._inner]
        )

    def _to_replicas(self, *fetched):
        outputs = []
        for device, columns, takes in zip(self._devices, self._columns, self._takes):
            pieces = []
            for source, (rows,), take in zip(self._devices, fetched, takes):
                with tf.device(source):
                    pieces.append(tf.gather(rows, take))
            with tf.device(device):
                outputs.append(tf.gather(tf.concat(pieces, axis=0), columns.inverse))
        return outputs, ()

    def _to_owners(self, _, gradients):
        pieces = []
        for device, gradient, columns in zip(self._devices, gradients, self._columns):
            with tf.device(device):
                gradient = tf.ensure_shape(gradient, [None, *self._inner])
                pieces.append(columns.split(gradient))
        sums = []
        for owner, (device, unique) in enumerate(zip(self._devices, self._unique)):
            with tf.device(device):
                takes = tf.concat([of_replica[owner] for of_replica in self._takes], axis=0)
                values = tf.concat([of_replica[owner] for of_replica in pieces], axis=0)
                sums.append((sum_rows(takes, values, tf.size(unique)),))
        return sums


class _Columns(NamedTuple):
    """The values of a replica, ordered by the devices of all hosts, as parts for the devices of a host.

    All tensors are in host memory: a GPU is not waited for.

    Attributes:
        hot: int32 scalar: how many hot positions come before the values.
        order: int64 `[n]`: the indices of the values, part by part.
        inverse: int64 `[n]`: where each value is in `order`.
        bounds: list of int32 scalars, one more than parts: where each part begins in `order`.
    """

    hot: tf.Tensor
    order: tf.Tensor
    inverse: tf.Tensor
    bounds: list

    def split(self, values):
        """Return the parts of values `[n, ...]`."""
        ordered = tf.gather(values, self.order)
        return [ordered[begin:end] for begin, end in zip(self.bounds, self.bounds[1:])]


def _columns_of(boundaries, devices, per_host):
    """Return the `_Columns` of a `Partition` over `devices` devices, `per_host` on each host."""
    part_by_part = np.arange(devices).reshape(-1, per_host).T.ravel()
    with tf.device("CPU:0"):
        starts = boundaries[1:] - boundaries[1]
        sizes = starts[1:] - starts[:-1]
        ordered_sizes = tf.gather(sizes, part_by_part)
        order = _ranges(tf.gather(starts, part_by_part), ordered_sizes)
        places = tf.cumsum(ordered_sizes, exclusive=True)
        inverse = _ranges(tf.gather(places, np.argsort(part_by_part)), sizes)
        bounds = tf.concat([places[:: devices // per_host], starts[-1:]], axis=0)
        # A GPU keeps int32 in host memory, where slices are cut.
        bounds = tf.unstack(tf.cast(bounds, tf.int32), per_host + 1)
        return _Columns(tf.cast(boundaries[1], tf.int32), order, inverse, bounds)


def _ranges(starts, sizes):
    """Return the numbers from each of `starts` on, `sizes` many, as one vector."""
    return tf.ragged.range(starts, starts + sizes).flat_values


def exchange_for(hosts, placement, partition):
    """Return a `HostDedupExchange` if this host has several replicas that can make calls together here."""
    together = hosts.per_host > 1 and several_replicas() is not None and in_graph_of_replica()
    return (HostDedupExchange if together else DirectExchange)(hosts, placement, partition)
