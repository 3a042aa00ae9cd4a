"""`RowCache`: which rows of a part of a table, with their optimizer slots, a device has in its own memory.

Every row is in one place, in host memory or in the cache. Whoever looks rows up, updates or moves them finds
and does so under one lock. So a cache says how fast a step is, and never what it computes.
"""

import itertools
import threading
import weakref

import numpy as np
import tensorflow as tf

from keras_largeout._checks import positive_int
from keras_largeout.replicas.devices import device_scope, plain_variable
from keras_largeout.tables import chunks

_FREE = -1
_numbers = itertools.count()


def check_cache_rows(cache_rows, storage):
    """Validate and return `cache_rows`, an argument of a layer. Raises ValueError where it is not valid."""
    if cache_rows is None:
        return None
    if storage != "host":
        raise ValueError(
            f"`cache_rows` must be None unless storage='host'. Received: cache_rows={cache_rows!r} with "
            f"storage={storage!r}"
        )
    return positive_int("cache_rows", cache_rows)


class RowCaches:
    """The caches of a table, one for each device that owns rows.

    Args:
        name: str, the table in errors.
        capacity: int, rows that each of them holds at most.
        devices, memories: tuples of names: what computes, and in whose memory the table is.
    """

    def __init__(self, name, capacity, devices, memories):
        self.name, self.capacity = name, capacity
        self._devices, self._memories = devices, memories
        self._made = {}

    @classmethod
    def of_table(cls, table, cache_rows):
        """Return those of a `ShardedTable`; None where it is to have none, or is where it is computed with.

        Raises:
            ValueError: `cache_rows` of a table on parameter servers.
        """
        name = table.plan_name or table.name
        if cache_rows is not None and table.remote:
            raise ValueError(
                "`cache_rows` must be None on parameter servers, whose tables are in their own memory. "
                f"Received: cache_rows={cache_rows!r} of {name!r}"
            )
        if cache_rows is None or not table.is_offloaded:
            return None
        return cls(name, cache_rows, table.devices, table.memories)

    def of_part(self, part, rows):
        """Return the `RowCache` of the part with this key, which has so many rows: one for it and for its
        slots.
        """
        if part not in self._made:
            capacity = min(self.capacity, rows)
            places = self._devices[part], self._memories[part]
            self._made[part] = RowCache(self.name, rows, capacity, *places)
        return self._made[part]

    def flush(self):
        """Writes all rows back."""
        for cache in self._made.values():
            cache.flush()


class RowCache:
    """The rows of one part that its device has.

    Args:
        name: str, the table in errors.
        rows: int, of the part.
        capacity: int, rows in the cache at most.
        device, host: names of the device, and of the one in whose memory the other rows are.

    Attributes:
        members: list of `CachedShard`s: the part of the table, then its slots.
        where: `tf.Variable` int32 `[rows]`: the place of each row in the cache, -1: it is in host memory.
        row_at: int64 array `[capacity]`: the row at each place, -1: the place is free.
        brought, written_back: ints, how many rows were so far.
    """

    def __init__(self, name, rows, capacity, device, host):
        self.name, self.capacity, self.device, self._host = name, capacity, device, host
        with tf.init_scope(), tf.device(host):
            self.where = plain_variable(tf.fill([rows], tf.constant(_FREE, tf.int32)), trainable=False)
            self._mutex = tf.raw_ops.MutexV2(shared_name=f"keras_largeout_cache_{next(_numbers)}")
        weakref.finalize(self, _destroy, self._mutex).atexit = False
        self.members = []
        self.row_at = np.full(capacity, _FREE, np.int64)
        self._wanted = np.zeros(capacity, np.int64)  # when the row at each place was wanted for the last time
        self._clock = 0
        self._moving = threading.Lock()  # who moves rows; `alone` keeps steps away from those that move
        self.brought = self.written_back = 0

    def add(self, member):
        """Takes in a part; its rows get their values, in the cache too, after that."""
        self.members = [*self.members, member]

    def remove(self, member):
        """Forgets the part of a slot."""
        self.members = [m for m in self.members if m is not member]

    # In a step, and while steps run.

    def alone(self, inputs, body):
        """Return `body()`, while nobody else looks up, writes or moves rows of this part.

        Args:
            inputs: list of tensors that `body` uses. In a graph the lock is taken when they are there, and
                not before: what they come from may have to wait for somebody who waits for the lock.
            body: returns a structure of tensors and operations, in a graph with everything that it does.
        """
        if tf.executing_eagerly():
            lock = self._take_lock()
            try:
                return body()
            finally:
                del lock  # nothing else holds it: it is free again
        with tf.control_dependencies(inputs):
            lock = self._take_lock()
        with tf.control_dependencies([lock]):
            found = body()
        with tf.control_dependencies(tf.nest.flatten(found)), tf.device(self._host):
            released = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf.control_dependencies([released]):
            return tf.nest.map_structure(lambda x: tf.identity(x) if tf.is_tensor(x) else x, found)

    def _take_lock(self):
        with tf.device(self._host):
            return tf.raw_ops.MutexLock(mutex=self._mutex)

    def find(self, rows):
        """Return the places of `rows` (int64 tensor), int32; -1: not in the cache."""
        with tf.device(self._host):
            return tf.gather(self.where, rows)

    def split(self, rows):
        """Return `rows` (int64 tensor) by where they are.

        Returns:
            Which of them are in the cache, their places, which are not, and those: int64 tensors.
        """
        places = self.find(rows)
        with tf.device(self._host):
            here, there = (tf.where(found)[:, 0] for found in (places >= 0, places < 0))
            return here, tf.cast(tf.gather(places, here), tf.int64), there, tf.gather(rows, there)

    # Moving rows.

    def prefetch(self, rows):
        """Brings `rows`, as far as there is room beside those asked for last: see `ShardVariable.prefetch`.

        Args:
            rows: int64 array, different ones.

        Returns:
            A function without arguments that brings what had no room: those asked for before may go now.

        Raises:
            ValueError: they are more than the cache can hold.
        """
        if len(rows) > self.capacity:
            raise ValueError(
                f"`cache_rows` of {self.name!r} must be at least the number of its rows that a chunk of "
                f"batches uses on one device, {len(rows)}: give it more, or `prefetch_rows` fewer `batches`. "
                f"Received: cache_rows={self.capacity}"
            )
        with self._moving:
            self._bring(rows, spare=1)
        return lambda: self._bring_all(rows)

    def _bring_all(self, rows):
        with self._moving:
            self._bring(rows, spare=0)

    def _bring(self, rows, spare):
        """Brings rows; those that were wanted in the last `spare` calls stay."""
        self._clock += 1
        places = self.find(rows).numpy()
        self._wanted[places[places >= 0]] = self._clock
        new = rows[places < 0]
        room = self._room(len(new), self._clock - spare)
        step = self._rows_per_piece()
        for start in range(0, len(room), step):
            self._exchange(room[start : start + step], new[: len(room)][start : start + step])

    def _room(self, count, before):
        """Return up to `count` places: free ones, then those whose rows have not been wanted for longest."""
        free = np.flatnonzero(self.row_at == _FREE)[:count]
        count -= len(free)
        if not count:
            return free
        old = np.flatnonzero((self.row_at != _FREE) & (self._wanted < before))
        if len(old) > count:
            old = old[np.argpartition(self._wanted[old], count)[:count]]
        return np.concatenate([free, old])

    def _rows_per_piece(self):
        sizes = [np.prod(m.held.shape[1:], dtype=np.int64) * m.held.dtype.size for m in self.members]
        return max(1, chunks.CHUNK_BYTES // max(1, int(sum(sizes))))

    def _exchange(self, places, rows):
        """Writes back what is at `places`, and brings `rows` to the first of them."""
        taken = places[self.row_at[places] != _FREE]
        out, to = self.row_at[taken], places[: len(rows)]

        def move():
            for member in self.members:
                scatter(member.value, out, rows_at(member.held, taken))
            scatter(self.where, out, np.full(len(out), _FREE, np.int32))
            self.row_at[taken] = _FREE
            for member in self.members:
                scatter(member.held, to, rows_at(member.value, rows))
            scatter(self.where, rows, to.astype(np.int32))
            self.row_at[to], self._wanted[to] = rows, self._clock

        with tf.init_scope():
            self.alone([], move)
        self.written_back += len(out)
        self.brought += len(rows)

    def flush(self):
        """Writes all rows back: host memory then has the whole part, until others are asked for."""
        with self._moving:
            taken = np.flatnonzero(self.row_at != _FREE)
            step = self._rows_per_piece()
            for start in range(0, len(taken), step):
                self._exchange(taken[start : start + step], taken[:0])


def rows_at(variable, indices):
    """Return the rows `indices` of a `tf.Variable`, where they are."""
    with device_scope(variable):
        return tf.gather(variable, tf.cast(indices, tf.int64))


def scatter(variable, indices, rows):
    """Overwrites rows of a `tf.Variable` in place; in a graph the operation that does it."""
    with device_scope(variable):
        return tf.raw_ops.ResourceScatterUpdate(
            resource=variable.handle,
            indices=tf.cast(indices, tf.int64),
            updates=tf.cast(rows, variable.dtype),
        )


def _destroy(mutex):
    with tf.init_scope():
        tf.raw_ops.DestroyResourceOp(resource=mutex, ignore_lookup_error=True)
