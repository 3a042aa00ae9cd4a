"""`PlainWeight`: a weight of a layer that no strategy mirrors or moves."""

import tensorflow as tf

from keras_largeout._keras import LazyTfVariable
from keras_largeout.replicas.devices import device_scope, plain_variable


class PlainWeight(LazyTfVariable):
    """A `keras.Variable` of one `tf.Variable` on one device, under every strategy; no optimizer trains it.

    Args:
        owner: str, the name of the layer. The path has it alone, whatever layers the layer is built in.
        first: the first value of every element.
        shape: tuple of ints.
        dtype: dtype name.
        name: str.
        device: device name.

    Attributes:
        initialized: False only while Keras builds a model symbolically and has made no variables yet.
    """

    initialized = False

    def __init__(self, owner, first, shape, dtype, name, device):
        self._owner, self._first, self._device = owner, first, device
        super().__init__(shape=shape, dtype=dtype, name=name, trainable=False, autocast=False)

    @property
    def path(self):
        """`owner/name`."""
        return f"{self._owner}/{self.name}"

    def make(self):
        with tf.init_scope(), tf.device(self._device):
            first = tf.fill(tuple(self.shape), tf.constant(self._first, self.dtype))
            return plain_variable(first, trainable=False, name=self.name)

    def when_made(self):
        self.initialized = True

    def assign(self, value):
        if not self.initialized:
            return super().assign(value)
        with device_scope(self.value):
            self.value.assign(tf.cast(tf.convert_to_tensor(value), self.dtype))
        return self
