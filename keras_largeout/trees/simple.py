"""Trees of even shape: how often a class occurs decides at most the order of the leaves."""

import math

import numpy as np
from numpy.typing import ArrayLike

from keras_largeout._checks import positive_int
from keras_largeout.trees import _check
from keras_largeout.trees.tree import Tree


def two_level(num_classes: int | ArrayLike, groups: int | None = None) -> Tree:
    """Return a root over groups, groups over classes.

    Args:
        num_classes: int, the number of classes; then a group has consecutive ids. Or counts, positive numbers
            `[num_classes]`; then a group has classes of similar frequency.
        groups: int, the number of groups. None: the square root of the number of classes, rounded up.
            Defaults to `None`.

    Returns:
        A `Tree` of depth 2, whose groups differ in size by at most one.

    Raises:
        ValueError: counts that are not positive, or more groups than classes.

    Example:

    >>> kl.trees.two_level(10_000)  # 100 groups of 100 classes
    Tree(num_classes=10000, num_nodes=101, depth=2)

    References:
        - J. Goodman, "Classes for fast maximum entropy training", ICASSP 2001.
    """
    classes, order = _check.classes_in_order(num_classes, "num_classes")
    groups = positive_int("groups", groups if groups is not None else math.isqrt(classes - 1) + 1)
    if groups > classes:
        raise ValueError(
            f"`groups` must not exceed the number of classes, {classes}. Received: groups={groups}"
        )
    return _layered([groups], classes, order)


def balanced(num_classes: int | ArrayLike, arity: int = 16) -> Tree:
    """Return a tree of nodes with at most `arity` children, and all leaves at one depth.

    Args:
        num_classes: int, the number of classes; then a node has consecutive ids below it. Or counts, positive
            numbers `[num_classes]`; then it has classes of similar frequency below it.
        arity: int of at least 2, the most children of a node. Defaults to `16`.

    Returns:
        A `Tree` of depth `ceil(log(num_classes) / log(arity))`.

    Raises:
        ValueError: counts that are not positive, or an arity below 2.

    Example:

    >>> kl.trees.balanced(1_000_000, arity=100).depth
    3

    References:
        - F. Morin and Y. Bengio, "Hierarchical probabilistic neural network language model", AISTATS 2005
          (arity 2).
    """
    classes, order = _check.classes_in_order(num_classes, "num_classes")
    arity = positive_int("arity", arity, minimum=2)
    widths, width = [], -(-classes // arity)
    while width > 1:
        widths.append(width)
        width = -(-width // arity)
    return _layered(widths[::-1], classes, order)


def _layered(widths, classes, order):
    """Return a tree with `widths[i]` nodes i + 1 steps below the root, spread evenly over the level above."""
    parents, first = [np.array([-1])], 0
    width = 1
    for below in widths:
        parents.append(first + _group_of(below, width))
        first, width = first + width, below
    class_parent = first + _group_of(classes, width)
    if order is not None:
        by_rank, class_parent = class_parent, np.empty_like(class_parent)
        class_parent[order] = by_rank
    return Tree.from_parents(class_parent, np.concatenate(parents), order)


def _group_of(items, groups):
    """Return int64 `[items]`: the group of each item, where groups are consecutive items of about equal
    number.
    """
    return np.arange(items, dtype=np.int64) * groups // items
