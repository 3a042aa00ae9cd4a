"""What a step on a tree costs: a model of multiply-adds and of bytes."""

import dataclasses

import numpy as np

#: Forward product, gradient of the hidden vectors, gradient of the rows.
PRODUCTS = 3
#: A float32 row is read in both passes, its gradient written, the row read and written again by the update.
BYTES_PER_VALUE = 4 * 5


@dataclasses.dataclass(frozen=True)
class TreeCost:
    """The expected cost of one training step.

    The model: a token costs `3 * dim` multiply-adds for every child of every node on its path (forward, and
    two gradients); a node's rows move through memory `5` times as float32 (two reads, a gradient written, a
    read and a write by the update) if any token of the batch passes the node, and not at all otherwise.
    Tokens are independent: a node that a token passes with probability p is passed by a batch with
    probability `1 - (1 - p) ** tokens`.

    Attributes:
        nodes: expected nodes on the path of a token.
        rows: expected rows scored for a token.
        multiply_adds: per token, `3 * dim * rows`.
        rows_touched: expected different rows of a batch.
        bytes_touched: per batch, `20 * dim * rows_touched`.
    """

    nodes: float
    rows: float
    multiply_adds: float
    rows_touched: float
    bytes_touched: float


def probabilities(tree, counts):
    """float64 `[num_rows]`, `[num_nodes]`: how probably a token takes each row, passes each node."""
    row_mass = np.zeros(tree.num_rows)
    row_mass[tree.class_row] = counts / counts.sum()
    node_mass = np.empty(tree.num_nodes)
    start = tree.node_start
    for first, last in zip(tree.levels[-2::-1], tree.levels[:0:-1]):
        node_mass[first:last] = np.add.reduceat(row_mass[: start[last]], start[first:last])
        if first:
            row_mass[tree.node_row[first:last]] = node_mass[first:last]
    return row_mass, np.minimum(node_mass, 1.0)


def log_frequencies(tree, counts):
    """float32 `[num_rows]`; see `Tree.log_frequencies`."""
    row_mass, node_mass = probabilities(tree, counts)
    return (np.log(row_mass) - np.log(np.repeat(node_mass, tree.node_sizes))).astype(np.float32)


def passed_by_batch(probability, tokens):
    """The probability that at least one of `tokens` independent tokens passes."""
    with np.errstate(divide="ignore"):
        return -np.expm1(tokens * np.log1p(-np.minimum(probability, 1.0)))


def expected_cost(tree, counts, dim, tokens):
    """The `TreeCost` of a tree; arguments are checked by the caller."""
    mass, sizes = probabilities(tree, counts)[1], tree.node_sizes
    rows = float(mass @ sizes)
    touched = float(passed_by_batch(mass, tokens) @ sizes)
    return TreeCost(
        nodes=float(mass.sum()),
        rows=rows,
        multiply_adds=PRODUCTS * dim * rows,
        rows_touched=touched,
        bytes_touched=BYTES_PER_VALUE * dim * touched,
    )
