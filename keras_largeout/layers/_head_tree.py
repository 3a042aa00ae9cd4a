"""Which tree a head has: from its arguments, from a layer that it is a clone of, or from a weights file."""

import hashlib
import weakref

import numpy as np

from keras_largeout import trees
from keras_largeout.ops.tree_softmax.wrapper import TreeArrays

# Digest -> a tree alive in this process, and its cut, for `clone_model`.
_TREES, _CUTS = weakref.WeakValueDictionary(), weakref.WeakValueDictionary()


def tree_of_arguments(num_classes, counts, tree):
    """The tree that the constructor's arguments ask for."""
    if counts is not None and np.shape(counts) != (num_classes,):
        raise ValueError(
            f"`counts` must have the shape (num_classes,) = ({num_classes},). "
            f"Received: counts.shape={np.shape(counts)}"
        )
    if isinstance(tree, trees.Tree):
        if tree.num_classes != num_classes:
            raise ValueError(
                f"`tree` must have num_classes={num_classes} classes. Received: a tree of {tree.num_classes}."
            )
        return tree
    if counts is None:
        counts = 1.0 / np.arange(1, num_classes + 1)
    counts = np.asarray(counts)
    if tree is None:
        return trees.head_tail(counts)
    if callable(tree):
        built = tree(counts)
        if isinstance(built, trees.Tree):
            return tree_of_arguments(num_classes, counts, built)
        tree = built
    raise ValueError(f"`tree` must be a trees.Tree or a function from counts to one. Received: tree={tree!r}")


def digest_of(tree):
    """A str: two trees have the same one where they are equal."""
    digest = hashlib.blake2b(digest_size=8)
    for array in (tree.class_row, tree.node_start, tree.node_row):
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()


def remember(tree, cut):
    """The digest by which a layer made from this config finds the tree again while it is alive."""
    digest = digest_of(tree)
    _TREES[digest], _CUTS[digest] = tree, cut
    return digest


def remembered(digest):
    """The tree and the cut that `remember` was given; None, None where they are no longer alive."""
    return _TREES.get(digest), _CUTS.get(digest)


def unfilled(num_classes, num_nodes):
    """Arrays of the right shapes, until the weights file brings the tree."""
    rows = num_classes + num_nodes - 1
    sizes = (num_classes, num_nodes + 1, num_nodes, num_nodes, -(-rows // 16), rows)
    return {field: np.zeros(size, np.int32) for field, size in zip(TreeArrays._fields, sizes)}
