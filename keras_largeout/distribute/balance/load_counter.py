"""`LoadCounter`: counts, in the graph of a training step, what each device does for a table.

A counter is an attribute of a `ShardedTable` or a `ShardedTree`. Only what is traced inside its context
`counting()` is counted, so other training steps have no cost. What it counts are lengths of tensors, which
TensorFlow has in host memory anyway. They are added up there as int64, by a few tiny ops per step.
"""

import functools

import numpy as np
import tensorflow as tf

from keras_largeout.distribute.balance.counting import Counting
from keras_largeout.distribute.balance.measured_load import MeasuredLoad
from keras_largeout.replicas.collectives import all_gather_scalar, all_reduce_sum
from keras_largeout.replicas.devices import device_scope, plain_variable, replica_index
from keras_largeout.tables.array import HOT

HOST = "CPU:0"


class LoadCounter(Counting):
    """The work of each device for one table since the last `reset`.

    Args:
        name: str, the table's name in a plan.
        array: the `ShardedArray` whose gradients are counted.
        kinds: tuple of str, what is counted for each replica. The last kind is the work.
        length: int, how many numbers a replica counts. `split` makes the numbers of each kind from them.
        record: bool, whether it also records what `recorded` returns.
    """

    def __init__(self, name, array, kinds, length, record):
        self.name, self.kinds, self.array = name, kinds, array
        self.devices = devices = array.placement.devices
        # Of several hosts each counts what its replicas do; `load` adds up.
        self._hosts, self._first_replica = array.table.hosts, array.table.here[0]
        # On a cluster all workers count on the first server. They only add, so none waits for another.
        self.remote, host = array.table.remote, array.table.devices[0] if array.table.remote else HOST
        _counts = functools.partial(counts_on, host)
        self._asked = [_counts(length) for _ in range(1 if self.remote else devices)]
        # Rows of gradients: for each shard, and from each replica for replicated rows.
        self._shards, self._replicas, self._sizes = _counts(devices), _counts(len(self._asked)), {}
        self.updated = False
        self._merged, self._steps, self._peak = _counts(), _counts(), _counts()
        self._merged_here = None if self._hosts.is_alone else _counts()
        self._before = _counts(devices, devices + 1)
        self._recorded, self.records = {}, record

    # In the step.

    def add(self, numbers):
        """Adds int64 `[length]` to what this replica did."""
        self._asked[self.this_replica()].assign_add(numbers)

    def this_replica(self):
        """Return the index of the current replica among the replicas of all hosts."""
        return self._first_replica + replica_index()

    def split(self, numbers):
        """Return a list with one `[replicas, devices + 1]` per kind, from `numbers` `[replicas, length]`.

        Column 0 is what a replica does itself with replicated rows. Column `s + 1` is what it asks of shard
        s.
        """
        raise NotImplementedError

    def add_gradients(self, key, gradients, merged):
        """Notes how many rows of gradients the replicas bring for the part `key`; `end_step` adds them up."""
        self.updated = True
        self._sizes[key] = [_length(g) for g in gradients] if key == HOT else _length(merged)

    def add_merged(self, rows):
        """Counts the replicated rows that are updated, each once: their sums over all replicas."""
        with tf.device(HOST):
            self._merged.assign_add(tf.cast(_length(rows), tf.int64))

    def add_merged_here(self, rows):
        """Counts the rows, summed over the replicas of this host, that are summed over the hosts."""
        with tf.device(HOST):
            self._merged_here.assign_add(tf.cast(_length(rows), tf.int64))

    def end_step(self):
        with tf.device(HOST):
            if not self.remote:  # on a cluster there is no step that all servers do together
                work = self.split(tf.stack(self._asked))[-1]
                step = work - self._before
                self._before.assign(work)
                done = tf.reduce_sum(step[:, 1:], axis=0) + step[:, 0]
                self._peak.assign_add(tf.reduce_max(all_reduce_sum(self._hosts, done)))
            self._steps.assign_add(1)
            if HOT in self._sizes:
                sizes = tf.cast(tf.stack(self._sizes.pop(HOT)), tf.int64)
                after = len(self._asked) - self._first_replica - sizes.shape[0]
                self._replicas.assign_add(tf.pad(sizes, [(self._first_replica, after)]))
            if self._sizes:
                sizes = [self._sizes.pop(shard, 0) for shard in range(self.devices)]
                self._shards.assign_add(tf.cast(tf.stack(sizes), tf.int64))

    # After it.

    def load(self):
        """Return the `MeasuredLoad` of the steps so far."""
        asked = self.of_all_hosts(np.stack([numbers.numpy() for numbers in self._asked]))
        asked = np.stack([np.asarray(numbers) for numbers in self.split(asked)], axis=1)
        gradients = self.of_all_hosts(self._shards.numpy())
        replicated = self.of_all_hosts(self._replicas.numpy())
        if self.remote:
            self._give_to_servers(asked, gradients, int(replicated.sum()))
            peak = asked[:, -1, 1:].sum(axis=0).max()  # of the server that is busiest over all steps
            sent = self.bytes_of_servers(asked, gradients)[None]
        else:
            gradients, peak = gradients + replicated, self._peak.numpy()
            merged = int(self._merged.numpy())
            of_hosts = np.array([merged])
            if not self._hosts.is_alone:
                of_hosts = all_gather_scalar(self._hosts, int(self._merged_here.numpy()))
            sent = self.bytes_between(asked, replicated, merged, of_hosts)
        return MeasuredLoad(
            name=self.name,
            steps=int(self._steps.numpy()),
            kinds=self.kinds,
            asked=asked,
            gradients=gradients,
            peak=int(peak),
            bytes=sent,
        )

    def of_all_hosts(self, counts):
        """Return the sums of an integer array over the hosts."""
        flat = tf.constant(counts.astype(np.int64).reshape(-1))
        return all_reduce_sum(self._hosts, flat).numpy().reshape(counts.shape)

    def _give_to_servers(self, asked, gradients, hot_rows):
        """Counts what was done with hot rows, in place, for the one server that has them."""
        table = self.array.table
        if HOT in self.array.parts:
            server = table.devices.index(table.hot_device)
            asked[:, :, 1 + server] += asked[:, :, 0]
            gradients[server] += hot_rows
        asked[:, :, 0] = 0

    def reset(self):
        """Forgets everything that was counted and recorded."""
        gradients = [self._shards, self._replicas, self._merged]
        gradients += [] if self._merged_here is None else [self._merged_here]
        steps = [self._steps, self._peak, self._before]
        for variable in [*self._asked, *gradients, *steps, *self._recorded.values()]:
            with device_scope(variable):
                variable.assign(tf.zeros(variable.shape, variable.dtype))


def increment(variable, indices, by):
    """Adds `by` to elements of a counter, on the device where it is."""
    tf.raw_ops.ResourceScatterAdd(resource=variable.handle, indices=indices, updates=by)


def counts_on(host, *shape):
    """Return a variable of int64 zeros on the device `host`."""
    with tf.init_scope(), tf.device(host):
        return plain_variable(tf.zeros(shape, tf.int64), trainable=False)


def _length(rows):
    """Return the number of rows of an `IndexedSlices`, a `RowSlices` or an array."""
    return tf.size(rows.indices) if hasattr(rows, "indices") else tf.shape(rows)[0]
