"""`TreeCounter`: the hidden vectors and (token, node) pairs that replicas ask of the parts of a tree."""

import numpy as np
import tensorflow as tf

from keras_largeout.distribute.balance.load_bytes import server_tree_bytes, tree_bytes
from keras_largeout.distribute.balance.load_counter import HOST, LoadCounter, increment
from keras_largeout.replicas.devices import plain_variable, replica_index
from keras_largeout.tables.array import HOT


class TreeCounter(LoadCounter):
    """Counts the hidden vectors and the (token, node) pairs of a `ShardedTree`.

    Args:
        tree: `ShardedTree`.
        record: bool, whether to record how many targets are below each leaf of the replicated top. That takes
            an int64 per leaf on every device.
    """

    def __init__(self, tree, record):
        length = 2 * (tree.placement.devices + 1)
        super().__init__(tree.plan_name, tree.kernel.array, ("tokens", "pairs"), length, record)
        self._tree = tree
        self._vector_bytes = self._scalar_bytes = 0
        if record:
            for replica, index in enumerate(tree.kernel.here):
                with tf.init_scope(), tf.device(tree.kernel.devices[index]):
                    zeros = tf.zeros([tree.top_leaves], tf.int64)
                    self._recorded[replica] = plain_variable(zeros, trainable=False)

    def add_pairs(self, hidden, tokens, pairs):
        """Counts the losses of one replica.

        Args:
            hidden: `[tokens, dim]`, hidden vectors, some of which are sent to subtrees.
            tokens: list of int32 scalars: how many of the vectors each shard gets.
            pairs: list of int32 scalars or None: how many pairs the top has, and each shard.
        """
        # A vector and its gradient, a class, a loss and its gradient.
        size = tf.as_dtype(self._tree.kernel.exchange_dtype or hidden.dtype).size
        self._vector_bytes = 2 * size * hidden.shape[-1]
        self._scalar_bytes = 8 + 4 + 4
        with tf.device(HOST):
            numbers = tf.stack([0, *tokens, *(0 if p is None else p for p in pairs)])
            self.add(tf.cast(numbers, tf.int64))

    def split(self, numbers):
        return [numbers[:, : self.devices + 1], numbers[:, self.devices + 1 :]]

    def record(self, leaves, weights):
        """Records which leaves of the top the targets of this replica are below."""
        if self._recorded:
            each = tf.constant(1, tf.int64) if weights is None else tf.cast(weights != 0, tf.int64)
            increment(self._recorded[replica_index()], leaves, each)

    def bytes_between(self, asked, *replicated):
        return tree_bytes(self._tree, asked[:, 0, 1:], self._vector_bytes, self._scalar_bytes, *replicated)

    def bytes_of_servers(self, asked, gradients):
        tokens = asked[:, 0, 1:].sum(axis=0)
        top = np.zeros_like(tokens)
        if HOT in self.array.parts:
            table = self.array.table
            server = table.devices.index(table.hot_device)
            top[server] = self._replicas.numpy().sum()
        return server_tree_bytes(self._tree, tokens, self._vector_bytes + self._scalar_bytes, top)

    def recorded(self):
        """Return int64 `[leaves of the top]`: how many targets were below each leaf. None: not recorded."""
        if not self._recorded:
            return None
        return self.of_all_hosts(np.sum([v.numpy() for v in self._recorded.values()], axis=0))
