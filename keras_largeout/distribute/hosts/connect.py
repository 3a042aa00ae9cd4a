"""The strategy of several hosts, and what they agree on before they train."""

import atexit

import numpy as np
import tensorflow as tf

from keras_largeout.distribute.hosts.watch import HostWatch
from keras_largeout.distribute.processes.exit_codes import exit_as_lost
from keras_largeout.distribute.processes.listening import kept_to_address, require_free_port
from keras_largeout.distribute.processes.waiting import telling_who_is_missing
from keras_largeout.files.exit_signals import leave_on_sigterm
from keras_largeout.ops import build_info
from keras_largeout.replicas._tensorflow import cpus_per_host
from keras_largeout.replicas.collectives import all_gather_vector
from keras_largeout.replicas.hosts import hosts_of

#: Seconds before a process ends: other hosts fetch from it what it has sent, also when it has all of theirs.
_LINGER = 2.0
_connected = {}


def connect(cluster, devices=None, heartbeat_timeout=60.0):
    """Return the `tf.distribute.MultiWorkerMirroredStrategy` of a cluster, made once: it waits until all are
    there.

    Args:
        cluster: `Cluster` without parameter servers.
        devices: int, how many logical CPUs stand for GPUs on each host without any; None for one. All GPUs of
            a host are used.
        heartbeat_timeout: float, seconds within which another host must answer.

    Raises:
        OSError: the port of this process is taken, or may not be.
        RuntimeError: a host has another build of this package, or another number of devices; or the addresses
            are loopback, and this process's port could not be kept to it.
    """
    key = cluster.to_tf_config()
    if key not in _connected:
        _connected[key] = _connect(cluster, devices, heartbeat_timeout)
    return _connected[key]


def _connect(cluster, devices, heartbeat_timeout):
    gpus = tf.config.list_physical_devices("GPU")
    kinds = tf.distribute.experimental.CommunicationImplementation
    kind = kinds.NCCL if gpus else kinds.RING
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({job: list(hosts) for job, hosts in cluster.addresses.items()}),
        task_type=cluster.job,
        task_id=cluster.index,
        num_accelerators={"GPU": len(gpus)},
        rpc_layer="grpc",
    )
    require_free_port(cluster)
    with (
        telling_who_is_missing(cluster),
        kept_to_address(cluster),
        cpus_per_host(1 if gpus else devices or 1),
    ):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=resolver,
            communication_options=tf.distribute.experimental.CommunicationOptions(implementation=kind),
        )
        hosts = hosts_of(strategy)
        _check_hosts(cluster, hosts)  # it meets the others, so here all have come
    hosts.watch = HostWatch(cluster, heartbeat_timeout)
    exit_as_lost(hosts.watch.was_lost)
    atexit.register(hosts.watch.end, _LINGER)
    leave_on_sigterm()
    return strategy


def _check_hosts(cluster, hosts):
    """Raises RuntimeError where a host has another build than the first one, or other numbers of devices."""
    own = build_info()
    facts = [int(own["sources"] or "0", 16) % 2**63, *_minor(own), len(hosts.local)]
    of_all = all_gather_vector(hosts, tf.constant(facts, tf.int64)).numpy()
    for (job, index, _), theirs in zip(cluster.hosts(), of_all):
        title, first = cluster.name(job, index), cluster.name(*cluster.hosts()[0][:2])
        if np.any(theirs[:3] != of_all[0, :3]):
            raise RuntimeError(
                f"{title} has another build of keras_largeout than {first}. Install the same one everywhere. "
                f"Received: {_describe(theirs)}, there {_describe(of_all[0])}"
            )
        if theirs[3] != of_all[0, 3]:
            raise RuntimeError(
                f"All hosts must have as many devices. Received: {theirs[3]} of {title}, {of_all[0, 3]} of "
                f"{first}"
            )


def _minor(info):
    return [int(part) for part in info["tensorflow"].split(".")[:2]]


def _describe(facts):
    return f"ops {facts[0]:016x} for TensorFlow {facts[1]}.{facts[2]}"
