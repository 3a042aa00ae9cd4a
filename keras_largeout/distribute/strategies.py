"""The `tf.distribute` strategy that a script should run under."""

import tensorflow as tf

from keras_largeout.distribute.processes.config import from_environment
from keras_largeout.replicas.exchange_dtype import check_exchange_dtype


def strategy(
    devices: int | None = None, exchange_dtype: str | None = None, heartbeat_timeout: float = 60.0
) -> tf.distribute.Strategy:
    """Return the strategy for `with strategy.scope():`. In a worker or a parameter server it never returns.

    There it serves its chief until the process is told to end. So one script can be the command of every
    process of a cluster, and what follows the call runs in the chief alone.

    A process belongs to a cluster where the environment variable `TF_CONFIG` names parameter servers. Its
    chief waits here until all servers answer, and gets their `tf.distribute.ParameterServerStrategy`.

    Where `TF_CONFIG` names several workers and no parameter servers, they are synchronous hosts. Each
    waits here for the others, gets a `tf.distribute.MultiWorkerMirroredStrategy`, and runs the whole script.
    (`python -m keras_largeout.distribute.launch` runs a script on a cluster of this machine.)

    Args:
        devices: int, how many devices; None for all GPUs, or for one device where there are fewer than two.
            On a machine without GPUs this many logical CPUs stand in for them: everything works as on GPUs,
            and nothing gets faster. Ask for them before TensorFlow has run anything. A GPU that was cut into
            logical ones (`tf.config.set_logical_device_configuration`) counts as these. Of several hosts each
            has so many logical CPUs, or else all of its GPUs. On a cluster the argument has no meaning.
            Defaults to `None`.
        exchange_dtype: on a cluster, the dtype in which a worker and the parameter servers exchange float32
            rows of tables, hidden vectors of heads, and the gradients of both: None or "float32" for as they
            are, "bfloat16" for half of the bytes. Tables, slots and sums stay float32. Each value is rounded
            once per way, to 8 bits (a relative error of at most 2^-8). Biases, losses, weights of other
            layers, and a table that a head is tied to travel as they are. Without a cluster the argument has
            no meaning. Defaults to `None`.
        heartbeat_timeout: float, seconds within which another process of the run must answer. On a cluster,
            the steps of a worker that stands still (it was stopped, its machine or network hangs) then go to
            other workers, and training ends with an error that names it where it is a parameter server or the
            last worker. Workers and servers end when the chief stands still. Synchronous hosts end with
            `HostLostError`, after at most 10 seconds. A process that computes or compiles answers.
            Defaults to `60.0`.

    Returns:
        `tf.distribute.MirroredStrategy`, TensorFlow's default strategy for one device, a
        `tf.distribute.ParameterServerStrategy` or a `tf.distribute.MultiWorkerMirroredStrategy`.

    Raises:
        ValueError: there are GPUs, but fewer than `devices`; `heartbeat_timeout` is not a positive number;
            another `exchange_dtype` than these, or than the cluster already has.
        RuntimeError: TensorFlow already runs with fewer logical CPUs; or a process of the cluster has another
            build of this package, or none; or hosts have different numbers of devices.

    Example:

    ```python
    with kl.distribute.strategy(8).scope():
        model = build_model()
        model.compile(kl.optimizers.LazyAdam(1e-3), loss=head.loss)
    model.fit(dataset)
    ```
    """
    if devices is not None and (not isinstance(devices, int) or devices < 1):
        raise ValueError(f"`devices` must be a positive integer or None. Received: devices={devices!r}")
    exchange_dtype = check_exchange_dtype(exchange_dtype)
    if not isinstance(heartbeat_timeout, (int, float)) or not heartbeat_timeout > 0:
        raise ValueError(
            "`heartbeat_timeout` must be a positive number of seconds. "
            f"Received: heartbeat_timeout={heartbeat_timeout!r}"
        )
    cluster = from_environment()
    if cluster is not None:
        return _take_part(cluster, devices, exchange_dtype, heartbeat_timeout)
    cards = tf.config.list_physical_devices("GPU")
    gpus = tf.config.list_logical_devices("GPU") if cards else []
    if devices is None:
        devices = max(1, len(gpus))
    if devices == 1:
        return tf.distribute.get_strategy()
    if gpus:
        if len(gpus) < devices:
            raise ValueError(
                f"`devices` must be at most the number of GPUs, {len(gpus)}. Received: devices={devices}"
            )
        # NCCL takes one device of a card.
        reduction = tf.distribute.ReductionToOneDevice() if len(gpus) > len(cards) else None
        return tf.distribute.MirroredStrategy([f"GPU:{i}" for i in range(devices)], reduction)
    _make_logical_cpus(devices)
    # Collectives of CPUs hang when strategies of several sizes are used, or several steps run in one call.
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(devices)], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def _take_part(cluster, devices, exchange_dtype, heartbeat_timeout):
    if cluster.is_synchronous:
        from keras_largeout.distribute.hosts.connect import connect as connect_hosts

        if devices and not tf.config.list_physical_devices("GPU"):
            _make_logical_cpus(devices)
        return connect_hosts(cluster, devices, heartbeat_timeout)
    if cluster.is_server:
        from keras_largeout.distribute.server import serve  # it is a program as well: not imported twice

        serve(cluster, heartbeat_timeout=heartbeat_timeout)
    from keras_largeout.distribute.cluster.parameter_server import connect

    return connect(cluster, exchange_dtype, heartbeat_timeout)


def _make_logical_cpus(count):
    (cpu,) = tf.config.list_physical_devices("CPU")
    if len(tf.config.get_logical_device_configuration(cpu) or [None]) >= count:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        raise RuntimeError(
            f"{count} logical CPUs must be made before TensorFlow runs anything: call this function first. "
            f"({error})"
        ) from None
