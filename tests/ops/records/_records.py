"""Tables of records in files, for tests."""

import numpy as np
import tensorflow as tf

from keras_largeout.ops._library import ops
from keras_largeout.replicas.devices import plain_variable


def mapped(path, shape, read_only=False):
    """A variable whose memory is a file. Its declared shape leaves the words open."""

    def memory():
        return ops.largeout_mapped_table(str(path), shape, dtype=tf.float32, read_only=read_only)

    return plain_variable(memory, shape=[shape[0], None])


def in_file(path, records):
    variable = mapped(path, records.shape)
    file_of(path, records.shape)[:] = records
    return variable


def file_of(path, shape):
    return np.memmap(path, np.float32, "r+", shape=tuple(shape))
