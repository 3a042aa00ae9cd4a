"""The devices of the current `tf.distribute` strategy, and the copy of a variable that a replica sees."""

import contextvars
import weakref

import tensorflow as tf

from keras_largeout._context import setting
from keras_largeout.replicas._tensorflow import resource_variable_class, unread_variable_class
from keras_largeout.replicas.hosts import hosts_of, replicas_here

_SYNCHRONOUS = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.OneDeviceStrategy,
)
_sharded_over = contextvars.ContextVar("keras_largeout_shard_over", default=None)
_reserved = weakref.WeakKeyDictionary()  # strategy -> device name -> bytes


def table_devices():
    """Names of the devices over which tables made now are cut; `(None,)` where nothing says so.

    Under several hosts they are those of all of them.

    Raises:
        NotImplementedError: for a strategy whose devices this process cannot all place a shard on.
    """
    strategy = tf.distribute.get_strategy()
    if not tf.distribute.has_strategy():
        return _sharded_over.get() or (None,)
    if isinstance(strategy, _SYNCHRONOUS):
        hosts = hosts_of(strategy)
        return tuple(strategy.extended.worker_devices) if hosts.is_alone else hosts.devices
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return processes("ps")
    if strategy.num_replicas_in_sync > 1:
        raise NotImplementedError(
            "Tables are cut over the devices of tf.distribute.MirroredStrategy. "
            f"Received: {type(strategy).__name__}"
        )
    return (None,)


def shard_over(devices):
    """Return a context in which tables are cut over devices, though one replica alone computes with them.

    Args:
        devices: sequence of names; the first one has what a strategy would copy to all.
    """
    return setting(_sharded_over, tuple(devices))


def processes(job):
    """Return the devices that stand for the processes of a job ("worker", "ps") of the cluster: a tuple of
    names.
    """
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    return tuple(name for name in names if f"/job:{job}/" in name and name.endswith("CPU:0"))


def on_servers():
    """Return whether tables made now are on parameter servers: apart from all that computes with them."""
    return isinstance(tf.distribute.get_strategy(), tf.distribute.ParameterServerStrategy)


def least_loaded_server(nbytes):
    """Return the parameter server that this function has given the fewest bytes; it is given `nbytes`
    more.
    """
    given = _reserved.setdefault(tf.distribute.get_strategy(), {})
    servers = table_devices()
    server = min(servers, key=lambda name: (given.get(name, 0), servers.index(name)))
    reserve(server, nbytes)
    return server


def reserve(server, nbytes):
    """Counts `nbytes` more on a parameter server."""
    given = _reserved.setdefault(tf.distribute.get_strategy(), {})
    given[server] = given.get(server, 0) + nbytes


def per_device_variables(variable):
    """Return the `tf.Variable`s behind a variable: one per device where it is mirrored, else itself."""
    # Its own strategy knows the copies. The current one may be another, outside the scope, and see one.
    strategy = getattr(variable, "distribute_strategy", None) or tf.distribute.get_strategy()
    return strategy.experimental_local_results(variable)


def replica_copy(variable):
    """Return the `tf.Variable` that the current replica uses: its own copy where `variable` is mirrored."""
    copies = per_device_variables(variable)
    if len(copies) == 1:
        return copies[0]
    replica = tf.distribute.get_replica_context()
    if replica is None or replicas_here(replica.strategy) != len(copies):
        return copies[0]  # outside the strategy: they are all the same
    return copies[replica_index()]


def replica_index():
    """Return the index of the current replica among the replicas of this process; 0 outside of replicas."""
    replica = tf.distribute.get_replica_context()
    if replica is None:
        return 0
    return int(tf.get_static_value(replica.replica_id_in_sync_group)) % replicas_here(replica.strategy)


def device_scope(variable):
    """Return a context in which ops run on the device that holds `variable` (a `tf.Variable` of one
    device).
    """
    return tf.device(getattr(variable, "device", None) or None)


def plain_variable(*args, **kwargs):
    """Return a `tf.Variable` that no strategy mirrors or moves: constructing the class passes strategies
    by.
    """
    return resource_variable_class()(*args, **kwargs)


def unread_variable(initial_value, refusal, **kwargs):
    """Return a `plain_variable` of which reading all raises a ValueError with the text `refusal`."""
    return unread_variable_class()(initial_value=initial_value, refusal=refusal, **kwargs)
