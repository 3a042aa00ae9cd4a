"""The reference of `tree_softmax` on NumPy arrays, in float64, node by node."""

import numpy as np


def _log_softmax(logits):
    high = logits.max()
    return logits - (high + np.log(np.exp(logits - high).sum()))


def _node_log_probs(node, hidden, table, bias, node_start):
    rows = slice(node_start[node], node_start[node + 1])
    return _log_softmax(table[rows] @ hidden + (0.0 if bias is None else bias[rows]))


def _path(target, tree):
    """Yield the (node, row) pairs of a class, from leaf to root."""
    row = tree.class_row[target]
    while row >= 0:
        node = np.searchsorted(tree.node_start, row, side="right") - 1
        yield node, row
        row = tree.node_row[node]


def _float64(*arrays):
    return (None if a is None else np.asarray(a).astype(np.float64) for a in arrays)


def tree_softmax_reference(hidden, targets, table, bias, tree, weights=None, grad_loss=None):
    """Return the loss of `tree_softmax_loss` and its gradients.

    Args:
        hidden: `[tokens, dim]`.
        targets: Integers `[tokens]`.
        table: `[R, dim]`.
        bias: `None`, or `[R]`.
        tree: `TreeArrays` of NumPy arrays.
        weights: `None`, or `[tokens]`.
        grad_loss: The gradient of the loss, `[tokens]`; `None` for ones.

    Returns:
        The loss `[tokens]` and a dict of gradients: `hidden`, `weights`, `table` and `bias` (all dense), and
        `rows`, the ascending rows that the batch touches.

    Raises:
        IndexError: A target that is no class, at a weight other than 0.
    """
    hidden, table, bias, weights, grad_loss = _float64(hidden, table, bias, weights, grad_loss)
    tokens, classes = len(hidden), len(tree.class_row)
    weights = np.ones(tokens) if weights is None else weights
    grad_loss = np.ones(tokens) if grad_loss is None else grad_loss
    loss, rows = np.zeros(tokens), set()
    gradients = {
        "hidden": np.zeros_like(hidden),
        "weights": np.zeros(tokens),
        "table": np.zeros_like(table),
        "bias": np.zeros(len(table)),
    }
    for t in np.flatnonzero(weights):
        if not 0 <= targets[t] < classes:
            raise IndexError(f"`targets` must be in [0, {classes}). Received: {targets[t]} at position {t}")
        for node, row in _path(targets[t], tree):
            log_probs = _node_log_probs(node, hidden[t], table, bias, tree.node_start)
            first = tree.node_start[node]
            children = np.arange(first, tree.node_start[node + 1])
            rows.update(children)
            loss[t] -= log_probs[row - first]
            g = np.exp(log_probs)
            g[row - first] -= 1.0
            g *= weights[t] * grad_loss[t]
            gradients["hidden"][t] += g @ table[children]
            gradients["table"][children] += np.outer(g, hidden[t])
            gradients["bias"][children] += g
        gradients["weights"][t] = grad_loss[t] * loss[t]
    gradients["rows"] = np.array(sorted(rows), np.int64)
    return loss * weights, gradients


def tree_top_k_reference(hidden, table, bias, tree, k):
    """Return the `k` largest of all log probabilities: `log_probs` and `ids`, `[queries, k]`; ties by
    smaller id.
    """
    hidden, table, bias = _float64(hidden, table, bias)
    all_log_probs = np.empty((len(hidden), len(tree.class_row)))
    for query, h in enumerate(hidden):
        row_log_prob = np.empty(len(table))
        for node, row in enumerate(tree.node_row):
            above = 0.0 if row < 0 else row_log_prob[row]
            here = slice(tree.node_start[node], tree.node_start[node + 1])
            row_log_prob[here] = above + _node_log_probs(node, h, table, bias, tree.node_start)
        all_log_probs[query] = row_log_prob[tree.class_row]
    ids = np.argsort(-all_log_probs, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(all_log_probs, ids, 1), ids
