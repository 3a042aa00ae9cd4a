"""Hosts of several devices: what the replicas of one ask of others travels once, and is counted so."""

import ast

import numpy as np
import pytest

from keras_largeout.distribute.balance.load_bytes import asked_after_dedup

pytestmark = pytest.mark.processes

ASKED = """
import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl
from keras_largeout.replicas.collectives import counted_blocks

strategy = kl.distribute.strategy(2)
with strategy.scope():
    keras.utils.set_random_seed(0)
    ids = keras.Input((3,), dtype="int64")
    words = kl.layers.ShardedEmbedding(40, 4, placement="range", combiner="sum", name="words")
    model = kl.Model(ids, keras.layers.Dense(1)(words(ids)))
    model.compile(kl.optimizers.Adagrad(0.1), loss="mse")
x = np.tile([[1, 11, 21], [2, 31, 31]], (4, 1))  # the same for each of the four replicas
balance = kl.callbacks.LoadBalance(warn_above=None)
with counted_blocks() as counts:
    model.fit(x, np.zeros((8, 1)), batch_size=8, shuffle=False, verbose=0)
model.fit(x, np.zeros((8, 1)), batch_size=8, shuffle=False, verbose=0, callbacks=[balance])
load = balance.loads["words"]
counted = {kind: sums.numpy().tolist() for kind, sums in counts.items()}
print("fitted", [counted[1, "int64"], counted[4, "float32"], load.work.tolist(), load.bytes.tolist()])


@tf.function
def twice(x):
    def add(_, total):
        return _ + 1, total + tf.reduce_sum(words(x))

    return tf.while_loop(lambda i, _: i < 2, add, (0, 0.0))[1]


with counted_blocks() as counts:
    found = strategy.run(twice, [tf.constant(x[:2])])
counted = [sums.numpy().tolist() for kind, sums in sorted(counts.items()) if kind[0] == 1]
same = np.allclose(
    strategy.experimental_local_results(found), 2 * words.table.numpy()[x[:2]].sum(), 1e-4, 1e-5
)
print("looped", [bool(same), *counted], flush=True)
"""


@pytest.fixture
def said(new_hosts):
    hosts = new_hosts(ASKED, 2)
    assert hosts.ended() == [0, 0], hosts.text()
    return [
        [ast.literal_eval(h.wait_for(f"^{what} (.*)").group(1)) for what in ("fitted", "looped")]
        for h in hosts.hosts
    ]


def test_what_replicas_of_a_host_ask_travels_once(said):
    (fitted, (same, *looped)), (of_other, _) = said
    positions, rows, work, sent = fitted
    # Of the rows 1, 2, 11, 21 and 31, which all replicas want, each host has some for the other one:
    # the rows that it lacks. `fit` itself asks all hosts once how long their descriptions of the model are,
    # and twice whether one of them stops.
    assert positions[:2] == [2 + 3, 2 + 3] and of_other[0][:2] == [2 + 3, 3 + 3]
    assert rows[:2] == [4, 5]  # both rails: rows there, gradients back
    assert of_other[1][:2] == [4, 5]
    # Rows of 16 bytes, positions of 8; each device asked for what its host requests of its rail.
    assert sent == [[0, 96, 56, 0], [104, 0, 0, 40], [64, 0, 0, 96], [0, 40, 104, 0]]
    assert work == [8, 4, 4, 4]
    # A loop in a replica cannot call others: each replica asks for itself, in each round.
    assert same and looped == [[4, 8, 12, 12]]


def test_bytes_after_dedup():
    asked = np.arange(16).reshape(4, 4)
    carried = 100 + asked
    expected = [[2, 4, 102, 103], [10, 12, 106, 107], [108, 109, 18, 20], [112, 113, 26, 28]]
    np.testing.assert_array_equal(asked_after_dedup(asked, carried, 2), expected)
    others = ~np.eye(4, dtype=bool)  # with one device a host, each asks for itself
    np.testing.assert_array_equal(asked_after_dedup(asked, asked, 1)[others], asked[others])
