"""The reference of the `embedding` ops: bag by bag, in float64, for the tests."""

import itertools

import numpy as np


def _bags(ids, row_splits, weights, combiner, num_rows, out_of_range):
    """Yields (bag, [(position, id, factor)]) of what takes part, and the divisor of each bag."""
    ids = np.asarray(ids)
    flat = ids.reshape(-1).astype(np.int64)
    bad = np.flatnonzero((flat < 0) | (flat >= num_rows))
    if out_of_range == "error" and bad.size:
        raise IndexError(f"`ids` must lie in [0, {num_rows}). Received: {flat[bad[0]]} at position {bad[0]}")
    factors = np.ones(flat.size) if weights is None else np.asarray(weights, np.float64).reshape(-1)
    if row_splits is None:
        size = 1 if combiner is None else ids.shape[-1]
        count = ids.size if combiner is None else int(np.prod(ids.shape[:-1]))
        row_splits = np.arange(count + 1) * size
    for bag, (begin, end) in enumerate(itertools.pairwise(row_splits)):
        members = [(p, flat[p], factors[p]) for p in range(begin, end) if 0 <= flat[p] < num_rows]
        w = np.array([factor for _, _, factor in members])
        yield bag, members, {"mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}.get(combiner, 1.0)


def embedding_lookup_reference(
    table, ids, row_splits=None, weights=None, combiner=None, out_of_range="error"
):
    """Return what `embedding_lookup` computes, on NumPy arrays, in float64, bag by bag."""
    table, ids = np.asarray(table).astype(np.float64), np.asarray(ids)
    leading = (
        ids.shape if combiner is None else ids.shape[:-1] if row_splits is None else (len(row_splits) - 1,)
    )
    output = np.zeros((int(np.prod(leading)), table.shape[1]))
    for bag, members, divisor in _bags(ids, row_splits, weights, combiner, len(table), out_of_range):
        if combiner == "max":
            rows = [table[i] for _, i, w in members if w]
            output[bag] = np.max(rows, axis=0) if rows else 0.0
        elif divisor != 0:
            output[bag] = sum((w * table[i] / divisor for _, i, w in members), np.zeros(table.shape[1]))
    return output.reshape(*leading, table.shape[1])


def embedding_gradient_reference(
    table, ids, grad, row_splits=None, weights=None, combiner=None, out_of_range="error"
):
    """Return the gradients of `embedding_lookup`, on NumPy arrays, in float64.

    Returns:
        The ids that take part (`[u]`, ascending), the gradients of their rows (`[u, dim]`), and that of the
        weights (the shape of `ids`; at weights of 1 where none are given; zeros with the combiner "max").
    """
    table, ids = np.asarray(table).astype(np.float64), np.asarray(ids)
    grad = np.asarray(grad).astype(np.float64).reshape(-1, table.shape[1])
    rows, weights_gradient = {}, np.zeros(ids.size)
    for bag, members, divisor in _bags(ids, row_splits, weights, combiner, len(table), out_of_range):
        largest = np.max([table[i] for _, i, w in members if w] or [np.zeros(table.shape[1])], axis=0)
        ties = sum((table[i] == largest for _, i, w in members if w), np.zeros(table.shape[1]))
        for _, i, w in members:
            share = w / divisor if divisor != 0 else 0.0
            if combiner == "max":
                share = (table[i] == largest) / ties if w else 0.0
            rows[i] = rows.get(i, 0) + share * grad[bag]
        if divisor == 0 or combiner == "max":
            continue
        output = sum((w * table[i] / divisor for _, i, w in members), np.zeros(table.shape[1]))
        for position, i, w in members:
            pull = {"mean": 1.0, "sqrtn": w / divisor}.get(combiner, 0.0)  # of the divisor
            weights_gradient[position] = grad[bag] @ (table[i] - pull * output) / divisor
    unique = sorted(rows)
    values = np.array([rows[i] for i in unique]).reshape(len(unique), table.shape[1])
    return np.array(unique, np.int64), values, weights_gradient.reshape(ids.shape)
