"""`FeatureUse`: which rows of a table the ids of one feature use, counted in a training step."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_largeout.distribute.balance.counting import Counting
from keras_largeout.distribute.balance.load_counter import HOST, increment
from keras_largeout.ops.embedding.kinds import values_of
from keras_largeout.replicas.collectives import all_reduce_sum
from keras_largeout.replicas.devices import plain_variable
from keras_largeout.replicas.hosts import ALONE


class Use(NamedTuple):
    """The rows and values that the ids of a feature used.

    Attributes:
        name: str, of the feature; of an embedding by itself the layer's.
        rows: int, of its table.
        ids: int, how many came; padding does not count.
        unique: int, different rows among them.
        outside: share of the ids that the table had no row of their own for.
        untouched: share of the rows that no id used.
        top: list of `(row, share of the ids)`, the most frequent first.
    """

    name: str
    rows: int
    ids: int
    unique: int
    outside: float
    untouched: float
    top: list


class FeatureUse(Counting):
    """Counts in host memory: 4 bytes per row of the table.

    Args:
        name: str.
        rule: `IdMapper` of the feature's table.
    """

    def __init__(self, name, rule):
        self.name, self._rule = name, rule
        with tf.init_scope(), tf.device(HOST):
            self._counts = plain_variable(tf.zeros([rule.rows], tf.uint32), trainable=False)
            self._outside = plain_variable(tf.zeros([], tf.int64), trainable=False)

    def add(self, ids, rows):
        """Counts ids as they came, and the rows that they got; does nothing outside `counting`."""
        if not self.active:
            return
        ids, rows = (tf.reshape(values_of(value), [-1]) for value in (ids, rows))
        with tf.device(HOST):
            rows = tf.cast(rows, tf.int64)
            own = self._rule.own_rows(ids, rows)
            inside = (rows >= int(self._rule.padding)) & (rows < self._rule.rows)
            token = rows != 0 if self._rule.padding else tf.ones_like(own)
            increment(self._counts, tf.boolean_mask(rows, inside), tf.constant(1, tf.uint32))
            self._outside.assign_add(tf.math.count_nonzero(token & ~own))

    def use(self, top=10, hosts=ALONE):
        """Return the `Use` so far, of all `hosts`."""
        counts, outside = self._counts.numpy().astype(np.int64), self._outside.numpy()
        of_all = all_reduce_sum(hosts, tf.constant(np.append(counts, outside))).numpy()
        counts, outside = of_all[:-1], int(of_all[-1])
        # What got no row at all was counted outside alone.
        total = int(counts.sum()) + (0 if self._rule.shares_rows else outside)
        best = np.argsort(-counts, kind="stable")[:top]
        usable = max(1, len(counts) - int(self._rule.padding))
        unique = int(np.count_nonzero(counts))
        return Use(
            name=self.name,
            rows=len(counts),
            ids=total,
            unique=unique,
            outside=outside / max(1, total),
            untouched=1 - unique / usable,
            top=[(int(row), float(counts[row]) / max(1, total)) for row in best if counts[row]],
        )

    def reset(self):
        """Forgets everything that was counted."""
        for variable in (self._counts, self._outside):
            with tf.device(HOST):
                variable.assign(tf.zeros(variable.shape, variable.dtype))
