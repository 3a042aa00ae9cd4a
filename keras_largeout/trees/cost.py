"""The cost model of a training step. Builders of trees and planners use this one.

The units are the same everywhere:

- Work is counted in flops. A multiply-add is two flops.
- Traffic is counted in bytes that pass through the memory of a device.
- Where one number is needed, a byte counts as much as `FLOPS_PER_BYTE` flops.
- Values are float32, except the rows of a bfloat16 table.
"""

import dataclasses

import numpy as np

FLOAT32_BYTES = 4
FLOPS_PER_MULTIPLY_ADD = 2
#: Flops that a device does while it moves one byte (an H200: 67e12 / 4.8e12; two CPU cores: 160e9 / 10e9).
FLOPS_PER_BYTE = 16
MULTIPLY_ADDS_PER_BYTE = FLOPS_PER_BYTE // FLOPS_PER_MULTIPLY_ADD

#: Multiply-adds per value of a row, for each token that the row is scored for: the forward product, the
#: gradient of the hidden vector, the gradient of the row.
PRODUCTS = 3
#: Bytes per value of a row that a step touches, without its update: the forward pass reads it, the backward
#: pass reads it and writes its gradient.
COMPUTE_BYTES = 3 * FLOAT32_BYTES
#: Bytes per value for its update, and as many for each slot of the optimizer: a read and a write.
UPDATE_BYTES = 2 * FLOAT32_BYTES
#: Bytes per value of a row that a step touches, where the optimizer has no slots.
BYTES_PER_VALUE = COMPUTE_BYTES + UPDATE_BYTES


@dataclasses.dataclass(frozen=True)
class TreeCost:
    """The expected cost of one training step on a tree. Made by `Tree.cost`.

    The model: a token scores every child of every node on its path. That takes `3 * dim` multiply-adds per
    child: the forward product and two gradients. If any token of the batch passes a node, the rows of its
    children move through memory 5 times as float32: two reads, a gradient written, and a read and a write
    by the update. Otherwise they do not move at all. Tokens are independent, so a node that one token passes
    with probability p is passed by a batch with probability `1 - (1 - p) ** tokens`.

    Attributes:
        nodes: expected number of nodes on the path of a token.
        rows: expected number of rows scored for a token.
        multiply_adds: expected multiply-adds per token, `3 * dim * rows`.
        rows_touched: expected number of different rows that a batch touches.
        bytes_touched: expected bytes moved per batch, `20 * dim * rows_touched`.

    Example:

    >>> cost = kl.trees.balanced(1000, arity=10).cost(np.ones(1000), dim=64, tokens=32)
    >>> round(cost.rows)  # 3 nodes of 10 children
    30
    """

    nodes: float
    rows: float
    multiply_adds: float
    rows_touched: float
    bytes_touched: float


def probabilities(tree, counts):
    """Return the probabilities that a token takes each row, and passes each node.

    Args:
        tree: `Tree`.
        counts: numbers `[num_classes]`.

    Returns:
        float64 `[num_rows]` and float64 `[num_nodes]`.
    """
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
    """Return float32 `[num_rows]`; see `Tree.log_frequencies`."""
    row_mass, node_mass = probabilities(tree, counts)
    return (np.log(row_mass) - np.log(np.repeat(node_mass, tree.node_sizes))).astype(np.float32)


def probability_touched(probability, tokens):
    """Return the probability that at least one of `tokens` independent tokens passes."""
    with np.errstate(divide="ignore"):
        return -np.expm1(tokens * np.log1p(-np.minimum(probability, 1.0)))


def expected_cost(tree, counts, dim, tokens):
    """Return the `TreeCost` of a tree. The caller has checked the arguments."""
    mass, sizes = probabilities(tree, counts)[1], tree.node_sizes
    rows = float(mass @ sizes)
    touched = float(probability_touched(mass, tokens) @ sizes)
    return TreeCost(
        nodes=float(mass.sum()),
        rows=rows,
        multiply_adds=PRODUCTS * dim * rows,
        rows_touched=touched,
        bytes_touched=BYTES_PER_VALUE * dim * touched,
    )
