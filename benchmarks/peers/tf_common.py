"""What the TensorFlow and Keras cases share."""

import numpy as np
import tensorflow as tf

from benchmarks._data import load
from benchmarks._step import Step


def batches(data, name, dtype=None):
    """Return the rotation of batches as a list of tensors, already in TensorFlow's memory."""
    return [tf.constant(x, dtype=dtype) for x in load(data, name)]


def rotate(function, *inputs, notes=None, jit_compile=None):
    """Return a Step that calls `tf.function(function)` on the i-th of each list of inputs."""
    compiled = tf.function(function, jit_compile=jit_compile)

    def run(i):
        return compiled(*(x[i % len(x)] for x in inputs)).numpy()

    return Step(run, notes or {})


def filled(shape, value, dtype="float32"):
    """Return a variable whose memory is written, so that no page fault falls into a measured step."""
    return tf.Variable(np.full(shape, value, dtype))
