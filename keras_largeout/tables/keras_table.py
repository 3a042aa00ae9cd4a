"""`KerasTable`: the weight of a layer of Keras's, in the place of a `ShardedTable`."""

import numpy as np

from keras_largeout._keras import is_made, uncast
from keras_largeout.replicas.devices import replica_copy, table_devices
from keras_largeout.replicas.hosts import ALONE


class KerasTable:
    """A `keras.Variable` `[rows, dim]` of another layer, with what a head uses of a whole `ShardedTable`.

    Every device has all of it. The other layer saves it, and any optimizer trains it.

    Args:
        variable: `keras.Variable`, float32 or bfloat16.
    """

    is_whole, is_offloaded, hosts, exchange_dtype, hot_device = True, False, ALONE, None, None

    def __init__(self, variable):
        self.shape, self.shards, self.devices = tuple(variable.shape), [variable], table_devices()

    @property
    def initialized(self):
        return is_made(self.shards[0])

    @property
    def variable(self):
        """The `tf.Variable`; this replica's copy of it where it is mirrored."""
        return replica_copy(uncast(self.shards[0]))

    def numpy(self):
        """Return the array, one copy of it."""
        return self.shards[0].numpy()

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.numpy(), dtype)

    def assign(self, value):
        """Overwrites the array."""
        self.shards[0].assign(value)
