"""keras_largeout: tree_softmax by its ops alone, and as the Keras head with its loss and optimizer."""

import time

import tensorflow as tf

from benchmarks._data import load
from benchmarks._step import Step
from benchmarks.peers import tf_common
from benchmarks.peers.ours_heads import head_step, initializer, rotation


def _tree(config, data):
    from keras_largeout import trees

    if config["tree"] == "two_level":
        return trees.two_level(config["classes"])
    counts = load(data, "counts")
    return trees.huffman(counts, config["arity"]) if config["tree"] == "huffman" else trees.head_tail(counts)


def tree_notes(config, data):
    """Return the facts of the tree, untimed, and the bytes and flops of a step by `trees.TreeCost`. In its
    own process, because the arrays that it takes would count as memory of the step.
    """
    start = time.perf_counter()
    tree = _tree(config, data)
    seconds = time.perf_counter() - start
    cost = tree.cost(load(data, "counts"), config["dim"], config["tokens"])
    notes = {
        "bytes": cost.bytes_touched,
        "flops": 2 * cost.multiply_adds * config["tokens"],
        "table_rows": tree.num_rows,
        "table_bytes": 4 * tree.num_rows * config["dim"],
        "rows_scored_per_token": cost.rows,
        "rows_touched_per_step": cost.rows_touched,
        "tree_seconds": seconds,
    }
    return Step(lambda i: 0.0, notes)


def ops_step(config, data):
    """Return tree_softmax_loss, its gradients and row_update in a tf.function: no layer, no optimizer
    object.
    """
    from keras_largeout.ops.row_update import row_update, sgd_hyper
    from keras_largeout.ops.tree_softmax.wrapper import TreeArrays, tree_softmax_loss
    from keras_largeout.tables.table import ShardedTable

    tree = _tree(config, data)
    table = ShardedTable((tree.num_rows, config["dim"]), initializer()).variable
    bias = ShardedTable((tree.num_rows,), "zeros").variable
    arrays = TreeArrays(**{name: tf.constant(value) for name, value in tree.arrays().items()})

    def step(hidden, targets):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = tf.reduce_mean(tree_softmax_loss(hidden, targets, table, bias, arrays))
        d_hidden, *gradients = tape.gradient(loss, [hidden, table, bias])
        for variable, rows in zip((table, bias), gradients):
            row_update("sgd", variable, [], rows.indices, rows.values, sgd_hyper(config["lr"]))
        with tf.control_dependencies([d_hidden]):
            return tf.identity(loss)

    return tf_common.rotate(step, *rotation(data))


def keras_step(config, data, optimizer=None):
    """Return HierarchicalSoftmax, `head.loss` and `optimizers.SGD`, as `fit` would run them."""
    from keras_largeout import layers

    head = layers.HierarchicalSoftmax(
        config["classes"], tree=_tree(config, data), kernel_initializer=initializer(), optimizer=optimizer
    )
    return head_step(config, data, head)


def fused_step(config, data):
    """Return the same with an SGD of the head's own, which is a part of its backward pass."""
    from keras_largeout import optimizers

    return keras_step(config, data, optimizers.SGD(config["lr"]))
