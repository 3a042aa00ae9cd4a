"""Collectives between synchronous hosts.

Every process traces the same program, with replicas on the devices of its own host. Replica d of a host
exchanges rows with replica d of every other host, by one collective op of TensorFlow: gRPC between CPUs, NCCL
between GPUs. (Ids and sizes, which are integers, always travel between CPUs.) A replica reaches the other
devices of its own host directly, as under `MirroredStrategy`. `tables/hierarchical_exchange.py` uses both.

A collective op of TensorFlow makes three demands:

- All hosts send blocks of one size. So the hosts first exchange their numbers of rows (`AllToAll`), and then
  pad the rows to the next size of a fixed list. A block is never empty.
- Each collective key is bound to a single shape. The key is made of the dtype, the width and the index in
  that list.
- All hosts run the ops in the same order. The ops of a replica on one device share a token, a resource:
  TensorFlow runs them in the order in which they were traced. On a GPU that is the token of the sums of dense
  gradients (`tokens_of_dense_sums`).

All hosts must make the same calls in the same order. `hosts` is a `Hosts`. For one host, every function
returns what it is given, and adds no op.
"""

import contextlib
import functools

import numpy as np
import tensorflow as tf

from keras_largeout.ops._gradients import with_gradient
from keras_largeout.replicas.devices import plain_variable, replica_index

_GROUPS = 1 << 20  # group keys from here on are ours; TensorFlow counts its own from 1
_PAIRS = 1 << 21  # group keys of the first host and one other
_TYPES = (tf.float32, tf.int64, tf.int32, tf.bfloat16, tf.float16, tf.float64)
#: Beyond the smallest sizes a block is at most a quarter larger than what it holds.
_GROWTH = 1.25
_SHORT = 1 << 12  # vectors up to here travel as one row of a known width
_WIDEST = 1 << 20  # so keys are below 2^31


class AllToAll:
    """An all-to-all between several hosts: `forward` sends rows, `reverse` sends the results back.

    Args:
        hosts: `Hosts`.
        send: integers `[hosts.count]`: how many rows go to each host.

    Attributes:
        send, receive: int32 `[hosts.count]`: the numbers of rows to and from each host.
    """

    def __init__(self, hosts, send):
        self._hosts = hosts
        with tf.device("CPU:0"):
            self.send = tf.ensure_shape(tf.cast(send, tf.int32), [hosts.count])
            of_all = all_gather_vector(hosts, self.send)
            sizes = tf.constant(_sizes())
            self.receive = of_all[:, hosts.index]
            self._largest = tf.reduce_max(of_all)
            self._place = tf.searchsorted(sizes, self._largest[None])[0]
            self._capacity = tf.gather(sizes, self._place)

    def forward(self, values):
        """Send each host its rows. Return the received rows, `[sum(receive), ...]`, ordered by host.

        Args:
            values: `[sum(send), ...]`, the rows for the first host first. The gradient travels back.
        """
        return self._moved(values, self.send, self.receive)

    def reverse(self, values):
        """Send results to the hosts that sent the rows: from `[sum(receive), ...]` to `[sum(send), ...]`."""
        return self._moved(values, self.receive, self.send)

    def _moved(self, values, send, receive):
        value = self._move(values, send, receive)
        if not values.dtype.is_floating:
            return value
        shape = [None, *values.shape[1:]]

        def gradient(upstream):
            return [self._move(tf.ensure_shape(upstream, shape), receive, send)]

        return with_gradient(gradient, value, [values])

    def _move(self, values, send, receive):
        inner, count = values.shape[1:], tf.shape(values)[0]
        with tf.device("CPU:0"):  # where the sizes are: a GPU would be waited for
            slots = tf.range(self._capacity)[None]
            start = tf.cumsum(send, exclusive=True)[:, None]
            rows = tf.where(slots < send[:, None], start + slots, count)
            filled = tf.where(tf.reshape(slots < receive[:, None], [-1]))[:, 0]
        padding = tf.zeros([1, *inner], values.dtype)
        blocks = tf.gather(tf.concat([values, padding], axis=0), rows)
        came = _all_to_all(self._hosts, blocks, self._place, send, self._largest)
        return tf.gather(tf.reshape(came, [-1, *inner]), filled)


class AllGather(AllToAll):
    """An all-gather: `forward` sends the same rows to every host, `reverse` returns every host's results.

    Args:
        hosts: `Hosts`.
        values: tensor with as many rows as this host sends.
    """

    def __init__(self, hosts, values):
        self._hosts = hosts
        if not hosts.is_alone:
            super().__init__(hosts, tf.repeat(tf.shape(values)[:1], hosts.count))

    def forward(self, values):
        """Return the rows of all hosts, host by host, of `values` `[rows, ...]`."""
        if self._hosts.is_alone:
            return values
        return super().forward(tf.tile(values, [self._hosts.count, *[1] * (values.shape.rank - 1)]))

    def reverse(self, values):
        """Return the results of all hosts for the rows of this host.

        Args:
            values: `[sum(receive), ...]`, results of this host for the rows of all hosts.

        Returns:
            `[count, rows, ...]`.
        """
        if self._hosts.is_alone:
            return values[None]
        came = super().reverse(values)
        return tf.reshape(came, [self._hosts.count, self.send[0], *came.shape[1:]])

    def local(self, values):
        """Return the part of `values` `[sum(receive), ...]` that belongs to the rows of this host."""
        if self._hosts.is_alone:
            return values
        start = tf.reduce_sum(self.receive[: self._hosts.index])
        return values[start : start + self.send[0]]


def all_gather(hosts, *values):
    """Return the rows of all hosts, host by host, of several tensors `[n, ...]`. They have no gradient."""
    if hosts.is_alone:
        return values
    route = AllGather(hosts, values[0])
    return tuple(route.forward(tf.stop_gradient(value)) for value in values)


def gather_to_first(hosts, *values):
    """Return the rows of all hosts, host by host, of each of several tensors `[n, ...]`, on the first host.

    All hosts must make the call. The others send their rows to the first host alone, and get empty tensors.
    """
    if hosts.is_alone:
        return values
    with tf.init_scope():
        counts = all_gather_scalar(hosts, values[0].shape[0])
        return tuple(_gather_to_first(hosts, counts, value) for value in values)


def _gather_to_first(hosts, counts, value):
    if value.dtype == tf.bfloat16:  # TensorFlow's broadcast does not support it
        return tf.cast(_gather_to_first(hosts, counts, tf.cast(value, tf.float32)), tf.bfloat16)
    found, inner = [value], value.shape[1:]
    for source, count in enumerate(counts):
        if not (source and count and hosts.index in (0, source)):
            continue
        place = int(np.searchsorted(_sizes(), count))
        shape = [int(_sizes()[place]), inner.num_elements()]
        # A broadcast in a group of the two.
        pair = {
            "group_size": 2,
            "group_key": _PAIRS + source,
            "instance_key": _instance(shape[1], value.dtype, place),
            "communication_hint": "auto",
        }
        with tf.device(hosts.memory):
            if hosts.index:
                block = tf.pad(tf.reshape(value, [count, shape[1]]), [[0, shape[0] - count], [0, 0]])
                tf.raw_ops.CollectiveBcastSendV2(input=block, **pair)
            else:
                came = tf.raw_ops.CollectiveBcastRecvV2(shape=shape, T=value.dtype, **pair)
                found.append(tf.reshape(came[:count], [count, *inner]))
    return value[:0] if hosts.index else tf.concat(found, axis=0)


def all_gather_vector(hosts, vector):
    """Return the vectors `[n]` of all hosts, `[count, n]`. n is static, and the same on all hosts."""
    if hosts.is_alone:
        return vector[None]
    blocks = tf.tile(tf.stop_gradient(vector)[None, None], [hosts.count, 1, 1])
    return _all_to_all(hosts, blocks, 0)[:, 0]


def all_reduce_sum(hosts, vector):
    """Return the sum over the hosts of vectors `[n]` of one known length, with the same bits on all."""
    if hosts.is_alone:
        return vector
    if vector.shape[0] is not None and vector.shape[0] <= _SHORT:
        return tf.reduce_sum(all_gather_vector(hosts, vector), axis=0)
    (of_all,) = all_gather(hosts, vector)
    return tf.reduce_sum(tf.reshape(of_all, [hosts.count, -1]), axis=0)


def all_gather_scalar(hosts, number):
    """Return the integers of all hosts: int64 array `[count]`."""
    if hosts.is_alone:
        return np.array([number])
    with tf.init_scope():
        return all_gather_vector(hosts, tf.constant([number], tf.int64))[:, 0].numpy()


def barrier(hosts):
    """Wait until all hosts have made this call."""
    all_gather_scalar(hosts, 0)


@contextlib.contextmanager
def counted_blocks():
    """A context in which traced collectives count the rows that they send to other hosts, at each run.

    Yields:
        dict of `(width, dtype)` of rows to an int64 variable `[4]`, sums over all blocks of such rows: how
        many times hosts exchanged some; the rows for other hosts; the rows if each host got as many as the
        one that gets the most; the rows that were sent.
    """
    global _counts
    before, _counts = _counts, {}
    try:
        yield _counts
    finally:
        _counts = before


_counts = None  # what `counted_blocks` yields, in its context


def _count(hosts, blocks, width, send, largest):
    key = width, blocks.dtype.name
    with tf.device("CPU:0"):
        if key not in _counts:
            with tf.init_scope():
                _counts[key] = plain_variable(tf.zeros([4], tf.int64), trainable=False)
        size, others = tf.shape(blocks)[1], hosts.count - 1
        needed = others if send is None else tf.reduce_sum(send) - send[hosts.index]
        rows = [1, needed, others * (1 if largest is None else largest), others * size]
        _counts[key].assign_add(tf.cast(tf.stack(rows), tf.int64))


def _all_to_all(hosts, blocks, place, send=None, largest=None):
    """Send block h of `blocks` `[count, size, ...]` to host h. Return the received blocks, ordered by host.

    Args:
        place: int or int32 scalar: the index of the block's size in `_sizes()`.
        send: int32 `[count]`: the number of rows of each block that are not padding; None for one.
        largest: int32 scalar: the most rows that any host has for another or itself; None for one.
    """
    width, replica = blocks.shape[2:].num_elements(), replica_index()
    if width is None or width >= _WIDEST:
        raise ValueError(f"Rows between hosts must have fewer than {_WIDEST} values. Received: {width}")
    if _counts is not None:
        _count(hosts, blocks, width, send, largest)
    device = (
        hosts.local[replica] if blocks.dtype.is_floating else hosts.memory
    )  # where TensorFlow has integers
    with tf.device(device):
        came = tf.raw_ops.CollectiveAllToAllV2(
            input=tf.reshape(blocks, [hosts.count, tf.shape(blocks)[1], width]),
            group_size=hosts.count,
            group_key=_GROUPS + 2 * replica + blocks.dtype.is_floating,
            instance_key=_instance(width, blocks.dtype, place),
            ordering_token=[_token(hosts, replica, device)],
            communication_hint="nccl" if ":GPU:" in device else "auto",
        )
    return tf.ensure_shape(tf.reshape(came, tf.shape(blocks)), blocks.shape)


def _instance(width, dtype, place):
    return (width * len(_TYPES) + _TYPES.index(dtype)) * len(_sizes()) + place


def _token(hosts, replica, device):
    if (replica, device) not in hosts.tokens:
        with tf.init_scope(), tf.device(device):
            hosts.tokens[replica, device] = plain_variable(0.0, trainable=False)
    return hosts.tokens[replica, device].handle


@functools.cache
def _sizes():
    sizes = [1]
    while sizes[-1] < 2**31 / _GROWTH - 1:
        sizes.append(max(sizes[-1] + 1, int(sizes[-1] * _GROWTH)))
    return np.array(sizes, np.int32)
