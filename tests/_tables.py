"""Tables and devices for tests."""

import functools

import tensorflow as tf

from keras_largeout.tables.table import ShardedTable

DEVICES = 8


def one_shard(shape, initializer, dtype="float32", name="table"):
    """The weight of a table on one device."""
    (shard,) = ShardedTable(shape, initializer, dtype=dtype, name=name).shards
    return shard


def strategy_of(devices, beside_host=False):
    """A strategy of that many devices: GPUs where there are enough of them, else logical CPUs.

    `beside_host`: none of them is CPU:0, whose memory then stands for that of the host.

    (The default collectives of several CPUs break steps_per_execution, and later strategies of other sizes.)
    """
    if devices == 1 and not beside_host:
        return tf.distribute.get_strategy()
    return _mirrored(devices, beside_host)


@functools.cache
def _mirrored(devices, beside_host):
    kind = "GPU" if len(tf.config.list_logical_devices("GPU")) >= devices else "CPU"
    first = int(beside_host and kind == "CPU")
    names = [device.name for device in tf.config.list_logical_devices(kind)[first : first + devices]]
    assert len(names) == devices, "conftest.py makes the logical devices"
    return tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice())
