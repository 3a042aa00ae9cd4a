"""A two-level all-to-all: the replicas of a host request each row of another host once.

Replica e of a host collects the positions that all replicas of the host request of device e of any host. It
deduplicates the positions, fetches the rows from device e of every host, and scatters them to the replicas.
Backward it sums the gradients of the host per row before they travel.
"""

import tensorflow as tf

from keras_largeout.ops.exchange import partition_ids
from keras_largeout.ops.row_update import merge_rows
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
        boundaries = partition.boundaries[1 :: hosts.per_host]
        self.positions, self.send = partition.unique[boundaries[0] :], boundaries[1:] - boundaries[:-1]

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
        places, takes, partitions = several_replicas().merge_call(collect, args=args)
        self._places, self._takes = places, takes
        replica = replica_index()
        self.positions, self.boundaries = (
            partitions[replica].unique + placement.num_hot,
            partitions[replica].boundaries,
        )
        self.send = (self.boundaries[2:] - self.boundaries[1:-1])[replica :: hosts.per_host]

    def _collect(self, placement, replicas):
        """Deduplicate the positions that the replicas request of each device.

        Args:
            replicas: list of `(unique, boundaries)`.

        Returns:
            `(places, takes, partitions)`. `places[r][e]`: which positions of replica r belong to device e.
            `takes[r][e]`: their indices among the unique positions of `partitions[e]`, a `Partition`.
        """
        places, requested = [], []
        for device, (unique, boundaries) in zip(self._devices, replicas):
            with tf.device(device):
                beyond = unique[boundaries[1] :]
                ends = boundaries[2:] - boundaries[1]
                owners = tf.searchsorted(ends, tf.range(tf.size(beyond, tf.int64)), side="right")
                columns = owners % len(self._devices)
                found = [tf.where(columns == e)[:, 0] for e in range(len(self._devices))]
                places.append([tf.cast(f, tf.int32) for f in found])
                requested.append([tf.gather(beyond, f) for f in found])
        partitions, takes = [], []
        for device, of_replicas in zip(self._devices, zip(*requested)):
            with tf.device(device):
                partitions.append(partition_positions(placement, tf.concat(of_replicas, axis=0)))
                takes.append(tf.split(partitions[-1].inverse, [tf.size(p) for p in of_replicas]))
        return places, [*zip(*takes)], partitions

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
        for device, places, takes in zip(self._devices, self._places, self._takes):
            pieces = []
            for source, (rows,), take in zip(self._devices, fetched, takes):
                with tf.device(source):
                    pieces.append(tf.gather(rows, take))
            with tf.device(device):
                outputs.append(tf.dynamic_stitch(places, pieces))
        return outputs, ()

    def _to_owners(self, _, gradients):
        pieces = []
        for device, gradient, places in zip(self._devices, gradients, self._places):
            with tf.device(device):
                gradient = tf.ensure_shape(gradient, [None, *self._inner])
                pieces.append([tf.gather(gradient, place) for place in places])
        sums = []
        for owner, device in enumerate(self._devices):
            with tf.device(device):
                takes = tf.concat([of_replica[owner] for of_replica in self._takes], axis=0)
                values = tf.concat([of_replica[owner] for of_replica in pieces], axis=0)
                # Some replica requested each row, so that no row is missing from the sums.
                summed = merge_rows(takes, values, tf.size(takes))[1]
                sums.append((tf.cast(summed, values.dtype),))
        return sums


def exchange_for(hosts, placement, partition):
    """Return a `HostDedupExchange` if this host has several replicas that can make calls together here."""
    together = hosts.per_host > 1 and several_replicas() is not None and in_graph_of_replica()
    return (HostDedupExchange if together else DirectExchange)(hosts, placement, partition)
