"""Top-k on a tree by scoring every row, in stock ops; and what it shares with the search in waves."""

import numpy as np
import tensorflow as tf

from keras_largeout.ops.rows import gather

# Scores are log-probabilities, so at most 0 up to rounding. Real scores are kept above EMPTY, which marks
# free places and padding: then a node of probability zero can still be opened when k leaves are not found
# otherwise.
EMPTY = -1e30
FLOOR = -1e29

_VALUES = 2**24  # Values of one [rows, queries] tensor.
_QUERIES = 1024
_CAST_ROWS = 2**16


def in_chunks(hidden, size, k, search):
    """Runs `search` on `size` queries at a time, and joins its (scores, ids)."""
    found = tf.TensorShape([None, tf.get_static_value(k)])

    def step(start, scores, ids):
        new_scores, new_ids = search(hidden[start : start + size])
        return start + size, tf.concat([scores, new_scores], 0), tf.concat([ids, new_ids], 0)

    _, scores, ids = tf.while_loop(
        lambda start, *_: start < tf.shape(hidden)[0],
        step,
        (tf.constant(0), tf.zeros([0, k]), tf.zeros([0, k], tf.int32)),
        shape_invariants=(tf.TensorShape([]), found, found),
        parallel_iterations=1,
    )
    return scores, ids


def best_of(scores, ids, k):
    """Return the k best of each row, and their ids."""
    best, places = tf.math.top_k(scores, k)
    return best, tf.gather(ids, places, batch_dims=1)


def comparable(scores):
    """Return scores that can be compared: NaN (kept out of `top_k`, whose order it breaks) counts as
    improbable.
    """
    return tf.maximum(tf.where(tf.math.is_nan(scores), FLOOR, scores), FLOOR)


class TreeFacts:
    """The facts of a tree that are known while a search of it is traced.

    Args:
        tree: `TreeArrays` of variables, eager tensors or NumPy arrays.
    """

    def __init__(self, tree):
        with tf.init_scope():  # Variables have values here even while a function is traced.
            start, parent = (
                a.numpy() if hasattr(a, "numpy") else np.asarray(a)
                for a in (tree.node_start, tree.node_parent)
            )
        self.node_sizes = np.diff(start)
        self.num_nodes = len(parent)
        self.num_rows = int(start[-1])
        self.num_classes = self.num_rows - self.num_nodes + 1
        self.depth, level = 1, 1
        while level < self.num_nodes:  # Parents increase: the next level ends where parents of its own begin.
            self.depth, level = self.depth + 1, int(np.searchsorted(parent, level))


def node_scores(logits, tree, facts):
    """Return what the logit of a row lacks to be a log-probability.

    Args:
        logits: float32 `[num_rows, queries]`.
        tree, facts: `TreeArrays` and their `TreeFacts`.

    Returns:
        The node of each row, int32 `[num_rows]`, and float32 `[num_nodes, queries]`: the log-probability of
        the way from the root to a node, minus the logsumexp of its rows.
    """
    start = tf.convert_to_tensor(tree.node_start)
    node = tf.repeat(tf.range(facts.num_nodes), start[1:] - start[:-1])
    if facts.num_nodes == 1:
        return node, -tf.reduce_logsumexp(logits, 0, keepdims=True)
    # (TFLite has no `segment_max`.)
    largest = tf.stop_gradient(tf.math.unsorted_segment_max(logits, node, facts.num_nodes))
    total = tf.math.segment_sum(tf.exp(logits - tf.gather(largest, node)), node)
    log_total = largest + tf.math.log(total)
    # Sums along paths by doubling: after i rounds a node has the sum of 2**i steps, and knows whom to ask
    # next.
    parent = tf.maximum(tree.node_parent, 0)
    own = tf.gather(logits, tf.maximum(tree.node_row, 0)) - tf.gather(log_total, parent)
    path = tf.where(tf.range(facts.num_nodes)[:, None] > 0, own, 0.0)
    for _ in range(max(facts.depth - 1, 1).bit_length()):
        path += tf.gather(path, parent)
        parent = tf.gather(parent, parent)
    return node, path - log_total


def rows_on_paths(targets, tree, facts):
    """Return the rows of all nodes that the paths to `targets` pass: what a softmax over the tree reads.

    Args:
        targets: integers `[tokens]`.
        tree, facts: `TreeArrays` and their `TreeFacts`.

    Returns:
        int64 `[rows]`, ascending.
    """
    start = tf.convert_to_tensor(tree.node_start)
    node = tf.repeat(tf.range(facts.num_nodes), start[1:] - start[:-1])
    last = tf.gather(node, tf.gather(tf.convert_to_tensor(tree.class_row), targets))
    passed = tf.math.unsorted_segment_sum(tf.ones_like(last), last, facts.num_nodes) > 0
    parent = tf.maximum(tree.node_parent, 0)
    for _ in range(facts.depth - 1):
        passed |= tf.math.unsorted_segment_sum(tf.cast(passed, tf.int32), parent, facts.num_nodes) > 0
    return tf.squeeze(tf.where(tf.gather(passed, node)), 1)


class DenseSearch:
    """Every row is scored: one product with the table, one softmax per node, sums along the paths."""

    def __init__(self, table, bias, tree, facts, k):
        self.table, self.bias, self.tree, self.facts, self.k = table, bias, tree, facts, k

    def search(self, hidden):
        chunk = max(1, min(_QUERIES, _VALUES // self.facts.num_rows))
        return in_chunks(hidden, chunk, self.k, self._search_chunk)

    def _search_chunk(self, hidden):
        scores = comparable(tf.transpose(self._class_scores(hidden)))
        return tf.math.top_k(scores, self.k)

    def _class_scores(self, hidden):
        """Return float32 `[num_classes, queries]`. Rows come first: the children of a node are contiguous."""
        logits = self._logits(hidden)
        class_row = tf.convert_to_tensor(self.tree.class_row)
        node, scores = node_scores(logits, self.tree, self.facts)
        return tf.gather(logits, class_row) + tf.gather(scores, tf.gather(node, class_row))

    def _logits(self, hidden):
        whole = not hasattr(self.table, "gather")
        if whole and self.table.dtype == tf.float32:
            logits = tf.matmul(self.table, hidden, transpose_b=True)
        else:
            # All rows at once, or a cast of them, would be a second table.
            parts = []
            for i in range(0, self.facts.num_rows, _CAST_ROWS):
                rows = tf.range(i, min(i + _CAST_ROWS, self.facts.num_rows))
                with tf.control_dependencies(parts[-1:]):
                    rows = tf.identity(rows)
                parts.append(
                    tf.matmul(tf.cast(gather(self.table, rows), tf.float32), hidden, transpose_b=True)
                )
            logits = tf.concat(parts, 0)
        if self.bias is None:
            return logits
        bias = self.bias if whole else gather(self.bias, tf.range(self.facts.num_rows))
        return logits + tf.cast(bias, tf.float32)[:, None]
