"""Exact top-k on a tree in stock TensorFlow ops, for models that must run where this package is absent.

Best first, in waves. A wave opens the best few nodes of every query at once, as one flat list of (query,
node) pairs: their child rows are gathered and scored, the leaves among them join the k best so far, the
inner nodes join the open ones. An open node that cannot beat the k-th best leaf is dropped (no leaf is more
probable than its ancestors), and the search ends when none is left. The root, which every query opens, is
one matrix product.

Peaked distributions need a few dozen nodes of a million. Flat ones need many, and gathering rows costs more
than streaming the table: queries that pass a limit are scored on all rows instead, as are all in small trees.
"""

import tensorflow as tf

from keras_largeout.ops.rows import gather
from keras_largeout.ops.tree_softmax.stock_dense import (
    EMPTY,
    FLOOR,
    DenseSearch,
    TreeFacts,
    best_of,
    comparable,
    in_chunks,
)

_DENSE_CLASSES = 50_000  # Up to this many classes all rows are scored.
_QUERIES = 256  # Queries searched together,
_GATHERED_ROWS = 2**16  # and rows that they gather together in a wave.
_WAVE_ROWS = 128  # Rows that a query opens in a wave; doubled every _PATIENCE waves.
_PATIENCE = 6
_LIMIT_SHARE = 64  # A query that would open more than 1 / 64 of all rows is scored on all rows.


def stock_top_k(hidden, table, bias, tree, k):
    """Return the k most probable classes of every query; exact.

    Args:
        hidden: floats `[queries, dim]`.
        table: `[num_rows, dim]`, a float32 or bfloat16 `tf.Variable` (or tensor), or what has `dtype` and
            `gather(rows)`.
        bias: float32 `[num_rows]`, variable or tensor, or None.
        tree: `TreeArrays` of variables (or eager tensors, arrays): the sizes of nodes are read while tracing.
        k: int, at most `num_classes`; or an int32 scalar tensor, which is not checked.

    Returns:
        (log_probs float32 `[queries, k]`, descending; ids int32 `[queries, k]`). A query that holds NaN has
        NaN log_probs; classes below a row of NaN count as improbable (-inf) for the others.

    Raises:
        ValueError: k below 1 or above `num_classes`.
    """
    facts = TreeFacts(tree)
    known = tf.get_static_value(k)
    if known is not None and not 1 <= known <= facts.num_classes:
        raise ValueError(f"`k` must be in [1, {facts.num_classes}], the number of classes. Received: k={k}")
    many = known is not None and known > facts.num_classes // 8
    hidden = tf.cast(hidden, tf.float32)
    if facts.num_classes <= _DENSE_CLASSES or facts.num_nodes == 1 or many:
        scores, ids = DenseSearch(table, bias, tree, facts, k).search(hidden)
    else:
        scores, ids = _BestFirst(table, bias, tree, facts, k).search(hidden)
    # By arithmetic: constants that are not finite stop `tf.debugging.enable_check_numerics`.
    scores *= tf.where(scores <= FLOOR, -FLOOR, 1.0)  # -inf
    undefined = tf.where(tf.math.is_nan(hidden), hidden, 0.0)
    return scores + tf.reduce_sum(undefined, axis=1, keepdims=True), ids


class _BestFirst:
    """The search in waves."""

    def __init__(self, table, bias, tree, facts, k):
        self.table, self.bias, self.tree, self.k = table, bias, tree, k
        self.dense = DenseSearch(table, bias, tree, facts, k)
        self.root_size = int(facts.node_sizes[0])
        below = facts.node_sizes[1:]
        self.widest = int(below.max())
        self.typical = float(below.mean())
        self.padded = self.widest <= 2 * self.typical
        self.rows = facts.num_rows

    def search(self, hidden):
        queries = max(1, min(_QUERIES, _GATHERED_ROWS // self.widest))
        scores, ids, unfinished = self._search_all(hidden, queries)
        left = tf.where(unfinished)
        dense_scores, dense_ids = self.dense.search(tf.gather(hidden, left[:, 0]))
        return (
            tf.tensor_scatter_nd_update(scores, left, dense_scores),
            tf.tensor_scatter_nd_update(ids, left, dense_ids),
        )

    def _search_all(self, hidden, queries):
        """Return (scores, ids, whether the search was given up) of all queries, chunk by chunk."""

        # The flag travels as one more column of ids (scores get an idle one), to share the loop.
        def search(chunk):
            scores, ids, unfinished = self._search_chunk(chunk)
            flag = tf.cast(unfinished, tf.int32)[:, None]
            return tf.pad(scores, [[0, 0], [0, 1]]), tf.concat([ids, flag], 1)

        scores, ids = in_chunks(hidden, queries, self.k + 1, search)
        return scores[:, : self.k], ids[:, : self.k], ids[:, self.k] > 0

    def _search_chunk(self, hidden):
        best, best_ids, open_scores, open_nodes = self._open_root(hidden)
        limit = tf.constant(max(4096, self.rows // _LIMIT_SHARE))
        wave_nodes = max(1, round(_WAVE_ROWS / self.typical))

        def wave(count, opened, best, best_ids, open_scores, open_nodes):
            width = tf.bitwise.left_shift(wave_nodes, tf.minimum(count // _PATIENCE, 6))
            most = tf.maximum(_GATHERED_ROWS // self.widest // tf.shape(hidden)[0], 1)
            width = tf.minimum(tf.minimum(width, most), tf.shape(open_scores)[1])
            state = self._wave(hidden, width, best, best_ids, open_scores, open_nodes)
            opened += tf.cast(tf.cast(width, tf.float32) * self.typical, tf.int32)
            return count + 1, opened, *state

        any_width, of_k = tf.TensorShape([None, None]), tf.TensorShape([None, tf.get_static_value(self.k)])
        _, _, best, best_ids, open_scores, _ = tf.while_loop(
            lambda count, opened, b, i, scores, n: (tf.shape(scores)[1] > 0) & (opened < limit),
            wave,
            (tf.constant(0), tf.constant(0), best, best_ids, open_scores, open_nodes),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), of_k, of_k, any_width, any_width),
            parallel_iterations=1,
        )
        return best, best_ids, tf.reduce_any(open_scores > best[:, -1:], axis=1)

    def _open_root(self, hidden):
        rows = tf.range(self.root_size)
        logits = tf.matmul(hidden, self._table_rows(rows), transpose_b=True)
        if self.bias is not None:
            logits += gather(self.bias, rows)
        scores = comparable(tf.nn.log_softmax(logits))
        child = tf.gather(self.tree.row_child, rows)
        leaves, inner = tf.where(child >= 0)[:, 0], tf.where(child < 0)[:, 0]
        queries = tf.shape(hidden)[0]
        best, best_ids = best_of(
            tf.concat([tf.gather(scores, leaves, axis=1), tf.fill([queries, self.k], EMPTY)], 1),
            tf.tile(tf.pad(tf.gather(child, leaves), [[0, self.k]])[None], [queries, 1]),
            self.k,
        )
        nodes = tf.tile(~tf.gather(child, inner)[None], [queries, 1])
        return best, best_ids, *self._keep(best, tf.gather(scores, inner, axis=1), nodes)

    def _keep(self, best, open_scores, open_nodes):
        """Return the open nodes that can still matter, best first; as many columns as the busiest query
        needs.
        """
        alive = tf.reduce_sum(tf.cast(open_scores > best[:, -1:], tf.int32), axis=1)
        return best_of(open_scores, open_nodes, tf.reduce_max(alive))

    def _wave(self, hidden, width, best, best_ids, open_scores, open_nodes):
        chosen = open_scores[:, :width]
        pairs = tf.where(chosen > best[:, -1:])
        node = tf.gather_nd(open_nodes, pairs)
        logits, child, valid = (self._open_padded if self.padded else self._open_ragged)(
            tf.gather(hidden, pairs[:, 0]), node
        )
        scores = comparable(tf.gather_nd(chosen, pairs)[:, None] + tf.nn.log_softmax(logits))
        scores = tf.where(valid, scores, EMPTY)
        # From the list of pairs to one line a query. Pair 0 of the gather is the empty one.
        place = tf.scatter_nd(pairs, tf.range(1, tf.shape(node)[0] + 1), tf.shape(chosen, tf.int64))
        shape = [tf.shape(hidden)[0], width * tf.shape(child)[1]]
        scores = tf.reshape(tf.gather(tf.pad(scores, [[1, 0], [0, 0]], constant_values=EMPTY), place), shape)
        child = tf.reshape(tf.gather(tf.pad(child, [[1, 0], [0, 0]]), place), shape)
        leaf = child >= 0
        best, best_ids = best_of(
            tf.concat([best, tf.where(leaf, scores, EMPTY)], 1), tf.concat([best_ids, child], 1), self.k
        )
        # Open nodes are sorted: those of the first columns were opened just now, or were hopeless.
        open_scores = tf.concat([open_scores[:, width:], tf.where(leaf, EMPTY, scores)], 1)
        open_nodes = tf.concat([open_nodes[:, width:], ~child], 1)
        return best, best_ids, *self._keep(best, open_scores, open_nodes)

    def _table_rows(self, rows):
        return tf.cast(gather(self.table, rows), tf.float32)

    def _open_padded(self, hidden, node):
        """Return (logits, child, valid), each `[pairs, widest]`."""
        start = tf.gather(self.tree.node_start, node)
        size = tf.gather(self.tree.node_start, node + 1) - start
        step = tf.range(self.widest)
        rows = tf.minimum(start[:, None] + step, self.rows - 1)
        valid = step < size[:, None]
        logits = tf.linalg.matvec(self._table_rows(rows), hidden)
        if self.bias is not None:
            logits += gather(self.bias, rows)
        return tf.where(valid, logits, tf.float32.min), tf.gather(self.tree.row_child, rows), valid

    def _open_ragged(self, hidden, node):
        """Compute the same logits, `[pairs, the widest of these nodes]`, without gathering the padding."""
        start = tf.gather(self.tree.node_start, node)
        size = tf.gather(self.tree.node_start, node + 1) - start
        pair = tf.repeat(tf.range(tf.shape(node)[0]), size)
        column = tf.range(tf.shape(pair)[0]) - tf.gather(tf.cumsum(size, exclusive=True), pair)
        rows = tf.gather(start, pair) + column
        logits = tf.reduce_sum(self._table_rows(rows) * tf.gather(hidden, pair), axis=1)
        if self.bias is not None:
            logits += gather(self.bias, rows)
        widest = tf.reduce_max(size)
        place = tf.stack([pair, column], 1)
        shape = tf.stack([tf.shape(node)[0], widest])
        valid = tf.sequence_mask(size, widest)
        padded = tf.scatter_nd(place, logits, shape)
        child = tf.scatter_nd(place, tf.gather(self.tree.row_child, rows), shape)
        return tf.where(valid, padded, tf.float32.min), child, valid
