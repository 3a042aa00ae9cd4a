"""What hosts send one another, by itself."""

import ast

import pytest

pytestmark = pytest.mark.processes

TO_FIRST = """
import tensorflow as tf

import keras_largeout as kl
from keras_largeout.replicas.collectives import gather_to_first
from keras_largeout.replicas.hosts import hosts_of

hosts = hosts_of(kl.distribute.strategy())
for round in range(2):
    for counts in ((1, 0, 5), (0, 3, 1)):  # rows of each host
        rows = tf.fill([counts[hosts.index], 2, 3], float(10 * round + hosts.index))
        found = gather_to_first(hosts, rows, tf.cast(rows[:, 0, 0], tf.int64), tf.cast(rows, tf.bfloat16))
        in_16_bits = tf.cast(found[2], "float32")
        values = [found[0].numpy().mean((1, 2)), found[1].numpy(), in_16_bits.numpy()[:, 1, 2]]
        assert found[0].shape[1:] == found[2].shape[1:] == (2, 3) and found[2].dtype == "bfloat16"
        print("found", [one.astype(float).tolist() for one in values], flush=True)
"""


def test_rows_of_all_come_to_the_first(new_hosts):
    hosts = new_hosts(TO_FIRST, 3)
    assert hosts.ended() == [0] * 3, hosts.text()
    want = [[0, 2, 2, 2, 2, 2], [1, 1, 1, 2], [10, 12, 12, 12, 12, 12], [11, 11, 11, 12]]
    for i, rows in enumerate(want, 1):
        assert ast.literal_eval(hosts.hosts[0].wait_for("^found (.*)", i).group(1)) == [rows] * 3
        for host in hosts.hosts[1:]:
            assert ast.literal_eval(host.wait_for("^found (.*)", i).group(1)) == [[], [], []]


COUNTED = """
import tensorflow as tf
import keras_largeout as kl
from keras_largeout.replicas.collectives import AllToAll, counted_blocks
from keras_largeout.replicas.hosts import hosts_of

hosts = hosts_of(kl.distribute.strategy())
send = [[2, 9], [4, 1]][hosts.index]
with counted_blocks() as counts:
    AllToAll(hosts, send).forward(tf.ones([sum(send), 3]))
AllToAll(hosts, send).forward(tf.ones([sum(send), 3]))
print("counted", {kind: sums.numpy().tolist() for kind, sums in sorted(counts.items())}, flush=True)
"""


def test_blocks_are_counted_where_that_is_asked(new_hosts):
    hosts = new_hosts(COUNTED, 2)
    assert hosts.ended() == [0, 0], hosts.text()
    for host, needed in zip(hosts.hosts, (9, 4)):
        found = ast.literal_eval(host.wait_for("^counted (.*)").group(1))
        assert found == {(2, "int32"): [1, 1, 1, 1], (3, "float32"): [1, needed, 9, 10]}


ORDERED = """
import tensorflow as tf
import keras_largeout as kl
from keras_largeout.replicas._tensorflow import tokens_of_dense_sums
from keras_largeout.replicas.collectives import AllToAll
from keras_largeout.replicas.hosts import hosts_of

strategy = kl.distribute.strategy(devices=2)
hosts = hosts_of(strategy)
hosts.tokens.update(tokens_of_dense_sums(strategy, "CPU"))


@tf.function
def step():
    def replica():
        route = AllToAll(hosts, [1, 2])
        rows = route.forward(tf.ones([3, 4]))
        total = tf.distribute.get_replica_context().all_reduce("sum", tf.ones([4]))
        return route.reverse(rows * total)

    return strategy.run(replica)


order = {}
for op in step.get_concrete_function().graph.get_operations():
    if op.type in ("CollectiveAllToAllV2", "CollectiveReduceV2") and op.inputs[0].dtype == "float32":
        order.setdefault(op.inputs[-1].name, []).append(op.type)
print("order", sorted(order.values()), flush=True)
print("sums", [float(tf.reduce_sum(part)) for part in step().values], flush=True)
"""


def test_rows_and_dense_sums_run_in_one_order(new_hosts):
    """As between GPUs: each replica has one token, and NCCL the same order on every host."""
    hosts = new_hosts(ORDERED, 2)
    assert hosts.ended() == [0, 0], hosts.text()
    rows = "CollectiveAllToAllV2"
    for host in hosts.hosts:
        order = ast.literal_eval(host.wait_for("^order (.*)").group(1))
        assert order == 2 * [[rows, "CollectiveReduceV2", rows]]
        assert "sums [48.0, 48.0]" in host.text
