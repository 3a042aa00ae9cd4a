"""Rows that every host has: how their gradients travel between many hosts."""

import ast

import numpy as np
import pytest

from keras_largeout.distribute.balance.load_bytes import _replicated

TOUCHED = """
import keras
import numpy as np

import keras_largeout as kl
from keras_largeout.replicas.collectives import counted_blocks

placement = kl.distribute.Placement.by_modulo(40, 4).with_hot_rows(range(8))
strategy = kl.distribute.strategy()
with strategy.scope():
    ids = keras.Input((8,), dtype="int64")
    words = kl.layers.ShardedEmbedding(40, 4, placement=placement, combiner="sum", name="words")
    model = kl.Model(ids, keras.layers.Dense(1)(words(ids)))
    model.compile(kl.optimizers.Adagrad(0.1), loss="mse")
balance = kl.callbacks.LoadBalance(warn_above=None)
x = np.tile(np.arange(8), (4, 1))  # all hosts touch all hot rows
with counted_blocks() as counts:
    model.fit(x, np.zeros((4, 1)), batch_size=4, shuffle=False, verbose=0, callbacks=[balance])
hot = words.table.numpy()[:8].tobytes().hex()
print("sent", [counts[4, "float32"].numpy().tolist(), balance.loads["words"].bytes.tolist(), hot], flush=True)
"""


@pytest.mark.soak
def test_each_of_four_hosts_sums_a_part(new_hosts):
    hosts = new_hosts(TOUCHED, 4)
    assert hosts.ended() == [0] * 4, hosts.text()
    found = [ast.literal_eval(host.wait_for("^sent (.*)").group(1)) for host in hosts.hosts]
    for (times, needed, *_), sent, hot in found:
        # The lookup and its gradient, which have no row; 6 of 8 gradients there; 2 sums to three hosts.
        assert (times, needed) == (4, 6 + 6)
        np.testing.assert_array_equal(sent, 4 * 24 * (1 - np.eye(4)))  # float32 rows of 4, and an int64
        assert hot == found[0][2]


def test_bytes():
    one = _replicated(np.array([5, 6]), 10, 8, 100, np.array([8]))
    np.testing.assert_array_equal(one, [[0, 800], [60, 0]])
    two = _replicated(np.array([5, 6, 7, 3]), 10, 8, 100, np.array([7, 6]))
    np.testing.assert_array_equal(two, [[0, 800, 700, 0], [60, 0, 0, 0], [600, 0, 0, 800], [0, 0, 30, 0]])
    many = _replicated(np.full(4, 5), 10, 8, 100, np.array([4, 8, 4, 8]))
    np.testing.assert_array_equal(
        many, np.array([[0, 3, 3, 3], [4, 0, 4, 4], [3, 3, 0, 3], [4, 4, 4, 0]]) * 100
    )
