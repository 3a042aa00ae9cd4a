"""`CachedShard`: rows of a table in host memory, some of which its device has in its own."""

import numpy as np
import tensorflow as tf

from keras_largeout.ops._gradients import row_gradient, with_gradient
from keras_largeout.ops.row_update import row_update
from keras_largeout.replicas.devices import device_scope
from keras_largeout.tables import chunks
from keras_largeout.tables.shard import ShardVariable
from keras_largeout.tables.storage.row_cache import scatter


class CachedShard(ShardVariable):
    """A part of an array in host memory, with a `RowCache`. Slots share that of the table's part.

    `value`, the variable in host memory, is what gradients are of. It has not the rows that are in the cache.

    Args:
        cache: `RowCache`.
        **kwargs: as for `ShardVariable`, not `mirrored`.

    Attributes:
        held: the `tf.Variable` `[capacity, ...]` in the memory of the device.
    """

    can_prefetch = True
    fuses_updates = False
    has_places = False

    def __init__(self, cache, **kwargs):
        self.cache = cache
        super().__init__(**kwargs)

    def make(self):
        made = super().make()
        shape = (self.cache.capacity, *self.shape[1:])
        self.held = chunks.create(
            shape, self.dtype, name=f"{self.name}_cache", trainable=False, device=self.cache.device
        )
        self.cache.add(self)
        return made

    def remove(self):
        self.cache.remove(self)

    def prefetch(self, indices):
        return self.cache.prefetch(indices)

    def device_scope(self):
        return device_scope(self.held)

    # Eagerly: host memory reads and writes what is there, and little crosses.

    def read_at(self, indices):
        indices = np.asarray(indices, np.int64)

        def read():
            rows, places = chunks.read_at(self._made, indices), self.cache.find(indices).numpy()
            here = np.flatnonzero(places >= 0)
            if len(here):
                rows[here] = chunks.read_at(self.held, places[here])
            return rows

        with tf.init_scope():
            return self.cache.alone([], read)

    def write_at(self, indices, rows):
        indices = np.asarray(indices, np.int64)

        def write():
            places = self.cache.find(indices).numpy()
            here, there = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
            if not len(here):
                return chunks.write_at(self._made, indices, rows)
            values = np.asarray(rows)
            chunks.write_at(self._made, indices[there], values[there])
            chunks.write_at(self.held, places[here], values[here])

        with tf.init_scope():
            self.cache.alone([], write)

    # In a step.

    def gather(self, indices):
        rows = self.cache.alone([indices], lambda: self._rows(indices))
        shape = [None, *self.shape[1:]]

        def of_part(upstream):
            return [row_gradient(tf.constant(tuple(self.shape), tf.int64), indices, upstream)]

        # What takes the handle of a variable is where that variable is, and the rows are not. So a value
        # without rows stands for the part.
        with device_scope(self._made):
            nothing = tf.compat.v1.placeholder_with_default(tf.zeros([0, *shape[1:]], self.dtype), shape)
            part = with_gradient(of_part, nothing, [], [self._made])
        with device_scope(self.held):
            return with_gradient(lambda upstream: [tf.ensure_shape(upstream, shape)], rows, [part])

    def _rows(self, indices):
        places = self.cache.find(indices)
        with device_scope(self._made):
            missing = tf.where(places < 0)
            others = tf.gather(self._made, tf.gather(indices, missing[:, 0]))
            places = tf.maximum(places, 0)
        with device_scope(self.held):
            return tf.tensor_scatter_nd_update(tf.gather(self.held, places), missing, others)

    def overwrite(self, indices, rows):
        def write():
            here, places, there, others = self.cache.split(indices)
            with device_scope(self.held):
                to_cache, to_host = tf.gather(rows, here), tf.gather(rows, there)
            return [scatter(self.held, places, to_cache), scatter(self._made, others, to_host)]

        self.cache.alone([indices, rows], write)

    def update_rows(self, rule, slots, indices, values, hyper, rounding=None):
        def update():
            here, places, there, others = self.cache.split(indices)
            with device_scope(self.held):
                for_cache, for_host = tf.gather(values, here), tf.gather(values, there)
                held = [slot.held for slot in slots]
                done = [row_update(rule, self.held, held, places, for_cache, hyper)]
            with device_scope(self._made):
                lying = [slot.value for slot in slots]
                done.append(row_update(rule, self._made, lying, others, for_host, hyper))
            return done

        self.cache.alone([indices, values, hyper], update)
