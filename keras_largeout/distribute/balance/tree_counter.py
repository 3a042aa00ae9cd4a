"""`TreeCounter`: the hidden vectors and (token, node) pairs that replicas ask of the parts of a tree."""

import numpy as np
import tensorflow as tf

from keras_largeout.distribute.balance.load_bytes import server_tree_bytes, tree_bytes
from keras_largeout.distribute.balance.load_counter import HOST, LoadCounter, increment
from keras_largeout.distribute.replicas.devices import plain_variable, replica_number
from keras_largeout.distribute.tables.array import HOT


class TreeCounter(LoadCounter):
    """Counts the hidden vectors and (token, node) pairs of a `ShardedTree`; and records the targets.

    (Targets by the leaf of the top under which they lie: how often each subtree was the one. An int64 a leaf,
    on every device.)

    Args:
        tree: `ShardedTree`.
        record: bool, whether to record the targets.
    """

    def __init__(self, tree, record):
        length = 2 * (tree.placement.devices + 1)
        super().__init__(tree.plan_name, tree.kernel.array, ("tokens", "pairs"), length, record)
        self._tree = tree
        self._vector_bytes = self._scalar_bytes = 0
        if record:
            for number, device in enumerate(tree.kernel.devices):
                with tf.init_scope(), tf.device(device):
                    zeros = tf.zeros([tree.top_leaves], tf.int64)
                    self._recorded[number] = plain_variable(zeros, trainable=False)

    def add_pairs(self, hidden, weights, tokens, pairs):
        """Counts the losses of one replica.

        Args:
            hidden: `[tokens, dim]`, the vectors of which some are sent.
            weights: their weights or None.
            tokens: int32 scalars, the vectors that each shard gets.
            pairs: int32 scalars: of the top, and of each shard (None where it has none).
        """
        # A vector and its gradient; class, loss and its gradient, and perhaps a weight beside them.
        self._vector_bytes = 2 * hidden.dtype.size * hidden.shape[-1]
        self._scalar_bytes = 8 + 4 + 4 + (0 if weights is None else 4)
        with tf.device(HOST):
            numbers = tf.stack([0, *tokens, *(0 if p is None else p for p in pairs)])
            self.add(tf.cast(numbers, tf.int64))

    def split(self, numbers):
        return [numbers[:, : self.devices + 1], numbers[:, self.devices + 1 :]]

    def record(self, leaves, weights):
        """Notes under which leaves of the top the targets of this replica lie."""
        if self._recorded:
            each = tf.constant(1, tf.int64) if weights is None else tf.cast(weights != 0, tf.int64)
            increment(self._recorded[replica_number()], leaves, each)

    def bytes_between(self, asked, replicated, merged):
        return tree_bytes(
            self._tree, asked[:, 0, 1:], self._vector_bytes, self._scalar_bytes, replicated, merged
        )

    def bytes_of_servers(self, asked, gradients):
        tokens = asked[:, 0, 1:].sum(axis=0)
        top = np.zeros_like(tokens)
        if HOT in self.array.parts:
            table = self.array.table
            server = table.devices.index(table.hot_device)
            top[server] = self._replicas.numpy().sum()
        return server_tree_bytes(self._tree, tokens, self._vector_bytes + self._scalar_bytes, top)

    def recorded(self):
        """int64 `[leaves of the top]`: targets under each. None: not recorded."""
        if not self._recorded:
            return None
        return np.sum([variable.numpy() for variable in self._recorded.values()], axis=0)
