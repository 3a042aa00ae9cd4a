"""Trees that ignore how often a class occurs, except for the order in which classes are dealt out."""

import math

import numpy as np

from keras_largeout._checks import positive_int
from keras_largeout.trees import _check
from keras_largeout.trees.tree import Tree


def two_level(num_classes, groups=None):
    """A root over groups, groups over classes.

    Args:
        num_classes: the number of classes, dealt out in the order of their ids; or counts, a 1-D array of
            positive numbers with one value a class: classes of similar frequency then share a group.
        groups: the number of groups; the square root of the number of classes, rounded up, when None.

    Returns:
        A `Tree` of depth 2, whose groups differ in size by at most one.

    Raises:
        ValueError: for counts that are not positive, or more groups than classes.

    Source: J. Goodman, "Classes for fast maximum entropy training", ICASSP 2001.
    """
    classes, order = _check.classes_in_order(num_classes, "num_classes")
    groups = positive_int("groups", groups if groups is not None else math.isqrt(classes - 1) + 1)
    if groups > classes:
        raise ValueError(
            f"`groups` must not exceed the number of classes, {classes}. Received: groups={groups}"
        )
    return _layered([groups], classes, order)


def balanced(num_classes, arity=16):
    """A tree of nodes with at most `arity` children, all leaves at one depth.

    Args:
        num_classes: the number of classes, dealt out in the order of their ids; or counts, a 1-D array of
            positive numbers with one value a class: classes of similar frequency then share nodes.
        arity: the largest number of children of a node, at least 2.

    Returns:
        A `Tree` of depth `ceil(log(num_classes) / log(arity))`.

    Raises:
        ValueError: for counts that are not positive, or an arity below 2.

    Source: F. Morin and Y. Bengio, "Hierarchical probabilistic neural network language model", AISTATS 2005
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
    """A tree with `widths[i]` nodes i + 1 steps below the root, dealt out evenly over the level above."""
    parents, first = [np.array([-1])], 0
    width = 1
    for below in widths:
        parents.append(first + _deal(below, width))
        first, width = first + width, below
    class_parent = first + _deal(classes, width)
    if order is not None:
        by_rank, class_parent = class_parent, np.empty_like(class_parent)
        class_parent[order] = by_rank
    return Tree.from_parents(class_parent, np.concatenate(parents), order)


def _deal(items, hands):
    """Which of `hands` equal, contiguous shares each of `items` belongs to."""
    return np.arange(items, dtype=np.int64) * hands // items
