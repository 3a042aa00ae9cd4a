"""Synchronous hosts, one process each: how many there are, and which of them this process is."""

import contextlib
import weakref

import tensorflow as tf

from keras_largeout.replicas._tensorflow import tokens_of_dense_sums

_known = weakref.WeakKeyDictionary()  # strategy -> `Hosts`


class Hosts:
    """The synchronous hosts of a strategy, as one of them sees them. Any other strategy has one host.

    Attributes:
        count: int, the number of hosts.
        index: int, the index of this process among them.
        local: tuple of the names of the devices of this host. Every host has as many. Empty for one host.
        tokens: dict of `(replica, device)` to the variable that orders the collectives there.
        watch: the `HostWatch` that notices when another host is lost, or None.
    """

    watch = None

    def __init__(self, count, index, local, tokens=()):
        self.count, self.index, self.local = count, index, tuple(local)
        self.tokens = dict(tokens)

    @property
    def is_alone(self):
        """True for one host: nothing travels, and collectives return what they are given."""
        return self.count == 1

    @property
    def is_first(self):
        """True on the host that writes files and shows progress."""
        return self.index == 0

    @property
    def per_host(self):
        """The number of devices per host."""
        return len(self.local)

    @property
    def memory(self):
        """The name of the device that is this host's own memory."""
        return tf.DeviceSpec.from_string(self.local[0]).replace(device_type="CPU", device_index=0).to_string()

    @property
    def devices(self):
        """The names of the devices of all hosts, host by host. Devices of others are counted and shown."""
        named = [tf.DeviceSpec.from_string(name).replace(job="worker", replica=0) for name in self.local]
        return tuple(
            name if host == self.index else spec.replace(task=host).to_string()
            for host in range(self.count)
            for name, spec in zip(self.local, named)
        )

    @property
    def here(self):
        """The indices of this host's devices among the devices of all: a range."""
        return range(self.index * self.per_host, (self.index + 1) * self.per_host)

    def naming_lost(self):
        """Return a context in which the error that TensorFlow raises when another host was lost names it."""
        return contextlib.nullcontext() if self.watch is None else self.watch.naming()


#: One host by itself.
ALONE = Hosts(1, 0, ())


def hosts_of(strategy):
    """Return the `Hosts` of a strategy."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return ALONE
    if strategy not in _known:
        local = strategy.extended.worker_devices
        count = strategy.num_replicas_in_sync // len(local)
        _known[strategy] = ALONE
        if count > 1:
            tokens = tokens_of_dense_sums(strategy, "GPU")
            _known[strategy] = Hosts(count, _this_process(strategy), local, tokens)
    return _known[strategy]


def current_hosts():
    """Return the `Hosts` of the current strategy."""
    return hosts_of(tf.distribute.get_strategy())


def replicas_here(strategy):
    """Return how many replicas of a strategy this process has."""
    return strategy.num_replicas_in_sync // hosts_of(strategy).count


def _this_process(strategy):
    """Return which of the processes of a strategy this one is: a chief comes before the workers."""
    resolver = strategy.cluster_resolver
    chiefs = len(resolver.cluster_spec().as_dict().get("chief", ()))
    return resolver.task_id + (chiefs if resolver.task_type == "worker" else 0)
