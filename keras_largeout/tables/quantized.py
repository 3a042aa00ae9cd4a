"""A table of an export in int8: a quarter of the bytes, and a scale for each row."""

import numpy as np
import tensorflow as tf

from keras_largeout.replicas.devices import plain_variable

_MOST = 127  # of a quantized value


class QuantizedRows:
    """Rows in int8, each with the scale by which its largest value is 127.

    A value is off by half a scale at most. Source: row-wise quantization of embeddings, Guan et al., 2019,
    "Post-training 4-bit quantization on embedding tables" (arXiv:1911.02079), section 2.

    Args:
        array: `ShardedArray` of two axes, in as many parts as it may have. It is read in chunks.

    Attributes:
        shape, dtype: of the rows that `gather` gives.
    """

    def __init__(self, array):
        self.shape, self.dtype = tf.TensorShape(array.shape), tf.float32
        values, scales = np.empty(array.shape, np.int8), np.empty(array.shape[:1], np.float32)
        for start, stop in array.chunk_ranges():
            rows = np.asarray(array.read((start, stop)), np.float32)
            scales[start:stop] = np.abs(rows).max(axis=1, initial=0) / _MOST
            divisor = np.where(scales[start:stop] > 0, scales[start:stop], 1)[:, None]
            values[start:stop] = np.rint(rows / divisor)
        with tf.init_scope(), tf.device("CPU:0"):
            self._values = plain_variable(values, trainable=False, name=f"{array.name}_int8")
            self._scales = plain_variable(scales, trainable=False, name=f"{array.name}_scales")

    def gather(self, rows):
        """Return the rows `rows` (integers of any shape), float32."""
        return tf.cast(tf.gather(self._values, rows), tf.float32) * tf.gather(self._scales, rows)[..., None]
