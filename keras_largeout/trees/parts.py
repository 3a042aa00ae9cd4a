"""A tree in parts: the top that every device has, and what lies below it on each device. NumPy only."""

import dataclasses
import itertools

import numpy as np

from keras_largeout.trees.tree import HINT_STRIDE, Tree


@dataclasses.dataclass(frozen=True, eq=False)
class TreeParts:
    """A tree cut below its top nodes, each subtree whole in one part.

    log p(class) = log p(leaf of the top) + log p(class | its subtree), where a leaf of the top is a class or
    stands for a subtree. So the top is a tree of its own, and a part is a *forest*: nodes without a parent
    are the roots of its subtrees. Rows, nodes and classes of a part keep their order.

    Attributes:
        top: `Tree` of the top; its classes are `num_top_classes` leaves.
        forests: a dict of arrays a device, named as the ops' tree arrays; `node_parent` is -1 at roots.
        top_class: int32 `[num_classes]`: the leaf of the top under which each class lies.
        class_position: int32 `[num_classes]`: `class_offsets[s] + i` for class i of forest s; -1 for classes
            that are leaves of the top.
        class_offsets: int64 `[devices + 1]`.
    """

    top: Tree
    forests: list
    top_class: np.ndarray
    class_position: np.ndarray
    class_offsets: np.ndarray


def split_tree(tree, owners, devices):
    """Cuts a tree in parts.

    Args:
        tree: `Tree`.
        owners: integers `[num_nodes]`: the device that has the children of each node, -1 for top nodes, which
            hold the root and the parent of each of them; a node below them has the owner of its parent.
        devices: int.

    Returns:
        `TreeParts`.
    """
    owner_of_row = np.repeat(owners, tree.node_sizes)
    local_row, local_node = _ranks(owner_of_row, devices), _ranks(owners, devices)
    owner_of_class = owner_of_row[tree.class_row]

    top_rows = np.flatnonzero(owner_of_row < 0)
    child = tree.row_child[top_rows]
    is_leaf = (child >= 0) | (owners[np.where(child < 0, ~child, 0)] >= 0)
    top_nodes = np.flatnonzero(owners < 0)
    top = Tree.from_arrays(
        np.flatnonzero(is_leaf),
        _starts(tree.node_sizes[top_nodes]),
        np.where(top_nodes == 0, -1, local_row[tree.node_row[top_nodes]]),
    )

    leaf_of_row = np.cumsum(is_leaf) - 1  # of the top's rows
    leaf_of_node = np.full(tree.num_nodes, -1, np.int32)
    below = np.flatnonzero(owners >= 0)
    units = below[owners[tree.node_parent[below]] < 0]
    leaf_of_node[units] = leaf_of_row[local_row[tree.node_row[units]]]
    for first, last in itertools.pairwise(tree.levels[1:]):
        parents = tree.node_parent[first:last]
        inherited = leaf_of_node[parents]
        np.copyto(leaf_of_node[first:last], inherited, where=inherited >= 0)

    node_of_class = np.searchsorted(tree.node_start, tree.class_row, side="right") - 1
    top_class = leaf_of_node[node_of_class]
    in_top = owner_of_class < 0
    top_class[in_top] = leaf_of_row[local_row[tree.class_row[in_top]]]

    class_position = np.full(tree.num_classes, -1, np.int32)
    forests, class_offsets = [], [0]
    for device in range(devices):
        classes = np.flatnonzero(owner_of_class == device)
        class_position[classes] = class_offsets[-1] + np.arange(len(classes))
        class_offsets.append(class_offsets[-1] + len(classes))
        nodes = np.flatnonzero(owners == device)
        forests.append(
            _forest(tree, owners, nodes, local_row[tree.class_row[classes]], local_row, local_node)
        )
    return TreeParts(top, forests, top_class, class_position, np.array(class_offsets, np.int64))


def _forest(tree, owners, nodes, class_row, local_row, local_node):
    if not len(nodes):  # the ops want one node
        return _int32(class_row=[0], node_start=[0, 1], node_row=[-1], node_parent=[-1], row_hint=[0])
    parents = tree.node_parent[nodes]
    inside = owners[parents] == owners[nodes]
    node_start = _starts(tree.node_sizes[nodes])
    return _int32(
        class_row=class_row if len(class_row) else [0],
        node_start=node_start,
        node_row=np.where(inside, local_row[tree.node_row[nodes]], -1),
        node_parent=np.where(inside, local_node[parents], -1),
        row_hint=np.searchsorted(node_start, np.arange(0, node_start[-1], HINT_STRIDE), side="right") - 1,
    )


def _ranks(owners, devices):
    """The place of each element among those of its owner."""
    ranks = np.empty(len(owners), np.int32)
    for owner in range(-1, devices):
        mine = np.flatnonzero(owners == owner)
        ranks[mine] = np.arange(len(mine))
    return ranks


def _starts(sizes):
    return np.concatenate([[0], np.cumsum(sizes)])


def _int32(**arrays):
    return {name: np.asarray(array, np.int32) for name, array in arrays.items()}
