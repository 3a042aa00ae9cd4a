"""Huffman trees of any arity."""

import numpy as np
from numpy.typing import ArrayLike

from keras_largeout._checks import positive_int
from keras_largeout.trees import _check
from keras_largeout.trees.tree import Tree


def huffman(counts: ArrayLike, arity: int = 8) -> Tree:
    """Return the tree with the fewest expected nodes on a token's path: the fastest step, and the worst
    perplexity.

    Args:
        counts: finite numbers `[num_classes]`: how often each class occurs, in any unit. A 0 is
            taken as the smallest other count.
        arity: int of at least 2, the number of children of every node. (One node may have fewer.) Defaults to
            `8`.

    Returns:
        A `Tree`.

    Raises:
        ValueError: counts that are negative, not finite, or all 0, or an arity below 2.

    Example:

    >>> kl.trees.huffman([8, 4, 2, 1, 1], arity=2).path(0)
    ([0], [0])

    References:
        - D. Huffman, "A method for the construction of minimum-redundancy codes", Proc. IRE 40 (1952).
    """
    counts = _check.class_counts(counts)
    arity = positive_int("arity", arity, minimum=2)
    classes = len(counts)
    order = _check.by_frequency(counts)
    if classes <= arity:
        return Tree.from_parents(np.zeros(classes, np.int32), [-1], order)
    rare_first = order[::-1]
    leaf_parent, node_parent = _merge(counts[rare_first], arity)
    # Merges happen in the order of their weight, so their reversed order is breadth first.
    last = len(node_parent) - 1
    class_parent = np.empty(classes, np.int32)
    class_parent[rare_first] = last - leaf_parent
    node_parent = last - node_parent[::-1]
    node_parent[0] = -1
    return Tree.from_parents(class_parent, node_parent, order)


def _merge(weights, arity):
    """Return Huffman's method on ascending `weights`.

    There are two sorted queues, the leaves and the merged nodes. Every new node weighs at least as much as
    the next `arity` items together. So all items up to that weight can be merged in one round, `arity` at a
    time, whatever the new nodes weigh. The number of rounds grows with the logarithm of the weights' range,
    not with their number.

    Returns:
        The merge that takes each leaf, and the merge that takes the node made by each merge: int32 arrays.
    """
    leaves = len(weights)
    merges = -(-(leaves - 1) // (arity - 1))
    leaf_parent, node_parent = np.empty(leaves, np.int32), np.empty(merges, np.int32)
    node_weight = np.empty(merges)
    # Only the first merge may take fewer items: then all others take `arity`.
    take = (leaves - 2) % (arity - 1) + 2
    leaf_parent[:take] = 0
    node_weight[0] = weights[:take].sum()
    leaf, node, made = take, 0, 1
    while made < merges:
        near = np.sort(
            np.concatenate([weights[leaf : leaf + arity], node_weight[node : min(made, node + arity)]])
        )
        limit = near[:arity].sum()
        leaf_end = leaf + int(np.searchsorted(weights[leaf:], limit, side="right"))
        node_end = node + int(np.searchsorted(node_weight[node:made], limit, side="right"))
        new = (leaf_end - leaf + node_end - node) // arity
        items = np.concatenate([weights[leaf:leaf_end], node_weight[node:node_end]])
        chosen = np.argsort(items, kind="stable")[: new * arity]
        is_leaf = chosen < leaf_end - leaf
        into = made + np.arange(new * arity) // arity
        leaf_parent[leaf + chosen[is_leaf]] = into[is_leaf]
        node_parent[node + chosen[~is_leaf] - (leaf_end - leaf)] = into[~is_leaf]
        # Rounding must not put a later node before an earlier one: both queues are emptied from the front.
        sums = np.maximum.accumulate(items[chosen].reshape(new, arity).sum(axis=1))
        node_weight[made : made + new] = np.maximum(sums, node_weight[made - 1])
        taken = int(is_leaf.sum())
        leaf, node, made = leaf + taken, node + new * arity - taken, made + new
    node_parent[-1] = merges
    return leaf_parent, node_parent
