"""The candidates of a step of `Retrieval`: item vectors that all queries are compared with."""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_largeout.ops.labels import on_the_host
from keras_largeout.replicas.cross_replica import gathered_of_replicas, joined_of_replicas
from keras_largeout.replicas.devices import replica_copy

#: The logit of a candidate that does not count. Finite: the gradient of its exponential is 0.
NOT_THERE = -1e30
_SMOOTHING = 0.05  # of a new interval between two occurrences of an item, in its moving average


class Candidates(NamedTuple):
    """The items that every query of a step is compared with, over all devices.

    `vectors`: float32 `[n, dim]`. `ids`: int64 `[n]`, -1 for one that does not count. `rows`: int64 `[n]`, a
    number for each row of the global batch; -1 for an item that is not the target of a row. `expected`:
    float32 `[n]`, how often each is expected among the candidates; None for once each.
    """

    vectors: Any
    ids: Any
    rows: Any
    expected: Any

    def logits(self, queries, y, rows, remove_hits):
        """Return the corrected scores of queries `[m, dim]`: float32 `[m, n]`, `NOT_THERE` for what does not
        count: the target of the query itself and, with `remove_hits`, other occurrences of its item.

        Args:
            queries: float32 `[m, dim]`.
            y, rows: int64 `[m]`: the id of each target, and the number of its row.
            remove_hits: bool.
        """
        scores = tf.matmul(queries, self.vectors, transpose_b=True)
        if self.expected is not None:
            scores -= tf.math.log(self.expected)
        same = self.ids == y[:, None] if remove_hits else self.rows == rows[:, None]
        return tf.where(same | (self.ids < 0), NOT_THERE, scores)


def row_numbers(count):
    """Return int64 `[count]`: numbers of the rows of this replica that no other replica uses."""
    replica = tf.distribute.get_replica_context()
    first = 0 if replica is None else tf.cast(replica.replica_id_in_sync_group, tf.int64)
    return first * 2**32 + tf.range(tf.cast(count, tf.int64))


def candidates_of(vectors, ids, rows, negatives, negative_ids, memory, frequencies, num_items):
    """Return the `Candidates` of a step.

    Args:
        vectors, ids, rows: of the targets of this replica: float32 `[n, dim]`, int64 `[n]` (-1: does not
            count), int64 `[n]`.
        negatives, negative_ids: of this replica, as `vectors` and `ids`, or None.
        memory: `ItemMemory` or None.
        frequencies: function from ids and the number of targets to how often each id is expected among so
            many targets, or None.
        num_items: int, over which `negatives` are drawn uniformly; of use with `frequencies` alone.
    """
    targets = joined_of_replicas(ids)
    parts = [(gathered_of_replicas(vectors), targets, joined_of_replicas(rows))]
    count, drawn = _count(targets), tf.constant(0.0)
    if negatives is not None:
        of_all = joined_of_replicas(negative_ids)
        parts.append((gathered_of_replicas(negatives), of_all, -tf.ones_like(of_all)))
        drawn = _count(of_all)
    if memory is not None:
        vectors_before, ids_before = memory.read()
        parts.append((vectors_before, ids_before, -tf.ones_like(ids_before)))
        count += _count(ids_before)
    vectors, ids, rows = (tf.concat(part, axis=0) for part in zip(*parts))
    expected = None
    if frequencies is not None:
        expected = frequencies(tf.maximum(ids, 0), count)
        expected += drawn / num_items if negatives is not None else 0.0
    return Candidates(vectors, ids, rows, expected)


def _count(ids):
    return tf.reduce_sum(tf.cast(ids >= 0, tf.float32))


class ItemMemory:
    """The vectors of items of past batches, the same on every device.

    Args:
        size: int > 0, how many.
    """

    def __init__(self, size):
        self.size = size

    def build(self, head):
        """Make the variables, weights of `head`."""
        self.vectors = _state(head, (self.size, head.dim), "float32", "memory")
        self.ids = _state(head, (self.size,), "int64", "memory_ids", -1)

    @property
    def variables(self):
        return self.vectors, self.ids

    def read(self):
        """Return float32 `[size, dim]` and int64 `[size]`; -1 for what is still empty."""
        return tuple(tf.convert_to_tensor(replica_copy(weight.value)) for weight in self.variables)

    def remember(self, vectors, ids):
        """Put the items of a step before the others, of which the oldest are dropped."""
        there = ids >= 0
        for weight, new in zip(self.variables, (vectors, ids)):
            variable = replica_copy(weight.value)
            new = tf.concat([tf.boolean_mask(tf.stop_gradient(new), there), variable], axis=0)
            variable.assign(tf.ensure_shape(new[: self.size], variable.shape))


class StreamedFrequencies:
    """Estimates of how often each item comes, from the number of steps between its occurrences (Yi et al.).

    Args:
        num_items: int.
    """

    def __init__(self, num_items):
        self.num_items = num_items

    def build(self, head):
        """Make the variables, weights of `head`."""
        with on_the_host():
            self.step = _state(head, (), "int64", "frequency_step")
            self.last = _state(head, (self.num_items,), "int64", "last_seen")
            self.interval = _state(head, (self.num_items,), "float32", "intervals")

    @property
    def variables(self):
        return self.step, self.last, self.interval

    def update(self, targets):
        """Count the targets of a step, int64 `[n]` over all devices; -1 is ignored."""
        ids, _, times = tf.unique_with_counts(tf.sort(tf.boolean_mask(targets, targets >= 0)))
        step, last, interval = (replica_copy(weight.value) for weight in self.variables)
        now = step.assign_add(1)
        passed = tf.cast(now - tf.gather(last, ids), tf.float32) / tf.cast(times, tf.float32)
        before = tf.gather(interval, ids)
        mean = tf.where(before > 0, (1 - _SMOOTHING) * before + _SMOOTHING * passed, passed)
        interval.scatter_nd_update(ids[:, None], mean)
        last.scatter_nd_update(ids[:, None], tf.fill(tf.shape(ids), now))

    def per_step(self, ids):
        """Return how often each id is expected in a step, float32; 1 for an item that never came."""
        interval = tf.gather(replica_copy(self.interval.value), ids)
        return 1 / tf.where(interval > 0, interval, 1.0)


def _state(head, shape, dtype, name, first=0):
    return head.add_weight(
        shape=shape,
        initializer=lambda shape, dtype: tf.fill(shape, tf.constant(first, dtype)),
        dtype=dtype,
        trainable=False,
        autocast=False,
        name=name,
    )
