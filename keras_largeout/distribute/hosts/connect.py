"""The strategy of several hosts, and what they agree on before they train."""

import tensorflow as tf

from keras_largeout.distribute.replicas._tensorflow import cpus_per_host


def connect(devices=None):
    """The `tf.distribute.MultiWorkerMirroredStrategy` of the environment variable `TF_CONFIG`.

    It waits until all hosts are there.

    Args:
        devices: int, how many logical CPUs stand for GPUs on each host without any; None for one. A host's
            GPUs are all used.
    """
    gpus = tf.config.list_physical_devices("GPU")
    kinds = tf.distribute.experimental.CommunicationImplementation
    kind = kinds.NCCL if gpus else kinds.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=kind)
    with cpus_per_host(1 if gpus else devices or 1):
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
