"""The exchange of rows between hosts: the replicas of a host request each row once.

Rail e is device e of every host. A replica gives its positions to the rails that have them, on its own host.
The replica of a rail makes unique what all replicas of the host want of it, and brings the rows; each takes
its own of them. Backward each rail sums the gradients of the host per row before they travel.
"""

import tensorflow as tf

from keras_largeout.distribute.replicas._tensorflow import in_graph_of_replica
from keras_largeout.distribute.replicas.cross_replica import cross_replica_call, several_replicas
from keras_largeout.distribute.replicas.devices import replica_index
from keras_largeout.ops.exchange import partition_ids
from keras_largeout.ops.row_update import merge_rows


def positions_beyond_hot(placement, positions):
    """Return the `Partition` of positions that are not hot, which count from the last hot one."""
    return partition_ids(
        positions - placement.num_hot,
        placement.offsets - placement.num_hot,
        kind="identity",
        rows=int(placement.offsets[-1]) - placement.num_hot,
        devices=placement.devices,
    )


class OwnRail:
    """Each replica for itself: with the same device of every other host, which reaches the rows there.

    Args:
        hosts: `Hosts`.
        placement: `Placement` of the table.
        partition: `Partition` of this replica's ids.

    Attributes:
        positions: int64 `[n]`, ascending: what this replica asks of all hosts.
        send: int64 `[count]`: how many of them each host has.
        cuts: int64 `[devices + 2]`: how many of them each device has, as in a `Partition`.
    """

    def __init__(self, hosts, placement, partition):
        self.cuts = partition.cuts
        cuts = partition.cuts[1 :: hosts.per_host]
        self.positions, self.send = partition.unique[cuts[0] :], cuts[1:] - cuts[:-1]

    def hand_out(self, rows):
        """Return the rows `[m, ...]` of the replica's partition beyond hot ones, of those that were asked
        for.
        """
        return rows


class SharedRails:
    """All replicas of the host together: see the module. Arguments and attributes as of `OwnRail`.

    To make one and to hand out its rows are calls that all replicas make as one.
    """

    def __init__(self, hosts, placement, partition):
        self._devices = hosts.local

        def collect(strategy, unique, cuts):
            of_all = map(strategy.experimental_local_results, (unique, cuts))
            return self._collect(placement, [*zip(*of_all)])

        args = partition.unique, partition.cuts
        places, takes, rails = several_replicas().merge_call(collect, args=args)
        self._places, self._takes = places, takes
        rail = replica_index()
        self.positions, self.cuts = rails[rail].unique + placement.num_hot, rails[rail].cuts
        self.send = (self.cuts[2:] - self.cuts[1:-1])[rail :: hosts.per_host]

    def _collect(self, placement, replicas):
        """Return of each replica and rail, which rows it requests: places among its own, and in the rail's
        `Partition`.

        Args:
            replicas: list of `(unique, cuts)`.
        """
        places, wanted = [], []
        for device, (unique, cuts) in zip(self._devices, replicas):
            with tf.device(device):
                beyond = unique[cuts[1] :]
                ends = cuts[2:] - cuts[1]
                owners = tf.searchsorted(ends, tf.range(tf.size(beyond, tf.int64)), side="right")
                rails = owners % len(self._devices)
                found = [tf.where(rails == e)[:, 0] for e in range(len(self._devices))]
                places.append([tf.cast(f, tf.int32) for f in found])
                wanted.append([tf.gather(beyond, f) for f in found])
        partitions, takes = [], []
        for device, of_replicas in zip(self._devices, zip(*wanted)):
            with tf.device(device):
                partitions.append(positions_beyond_hot(placement, tf.concat(of_replicas, axis=0)))
                takes.append(tf.split(partitions[-1].inverse, [tf.size(p) for p in of_replicas]))
        return places, [*zip(*takes)], partitions

    def hand_out(self, rows):
        """Scatter rows, as `OwnRail` does. Gradients of replicas are summed in float32, in the order of
        replicas.
        """
        self._inner = rows.shape[1:]
        return tf.ensure_shape(
            cross_replica_call(self._to_replicas, self._to_rails, rows), [None, *self._inner]
        )

    def _to_replicas(self, *rails):
        outputs = []
        for device, places, takes in zip(self._devices, self._places, self._takes):
            pieces = []
            for source, (rows,), take in zip(self._devices, rails, takes):
                with tf.device(source):
                    pieces.append(tf.gather(rows, take))
            with tf.device(device):
                outputs.append(tf.dynamic_stitch(places, pieces))
        return outputs, ()

    def _to_rails(self, _, gradients):
        pieces = []
        for device, gradient, places in zip(self._devices, gradients, self._places):
            with tf.device(device):
                gradient = tf.ensure_shape(gradient, [None, *self._inner])
                pieces.append([tf.gather(gradient, place) for place in places])
        sums = []
        for rail, device in enumerate(self._devices):
            with tf.device(device):
                takes = tf.concat([of_replica[rail] for of_replica in self._takes], axis=0)
                values = tf.concat([of_replica[rail] for of_replica in pieces], axis=0)
                # Each row of the rail is requested: none is missing from the sums.
                of_rail = merge_rows(takes, values, tf.size(takes))[1]
                sums.append((tf.cast(of_rail, values.dtype),))
        return sums


def rail_of(hosts, placement, partition):
    """Return `SharedRails` where there are several replicas of this host and they can make a call as one
    here.
    """
    together = hosts.per_host > 1 and several_replicas() is not None and in_graph_of_replica()
    return (SharedRails if together else OwnRail)(hosts, placement, partition)
