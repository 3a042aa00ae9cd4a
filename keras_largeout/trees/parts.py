"""A tree in parts: the top, which every device has, and the subtrees that each device has below it."""

import dataclasses
import itertools

import numpy as np

from keras_largeout.trees.tree import HINT_STRIDE, Tree


@dataclasses.dataclass(frozen=True, eq=False)
class TreeParts:
    """A tree that is cut below its top nodes. Each subtree is on one device.

    log p(class) = log p(leaf of the top) + log p(class | its subtree), where a leaf of the top is a class or
    stands for a subtree. So the top is its own tree. What a device has below it is a *forest*: the nodes
    without a parent are the roots of its subtrees. Rows, nodes and classes of a forest keep their order.

    Attributes:
        top: `Tree` of the top. Its classes are the leaves of the top.
        forests: list with one dict of int32 arrays per device, named as the ops' tree arrays. `node_parent`
            is -1 at the roots of subtrees.
        top_class: int32 `[num_classes]`: the leaf of the top that each class is below.
        class_position: int32 `[num_classes]`: `class_offsets[s] + i` for class i of forest s; -1 for a class
            that is a leaf of the top.
        class_offsets: int64 `[devices + 1]`: the number of classes in all forests before each, and in all.
    """

    top: Tree
    forests: list
    top_class: np.ndarray
    class_position: np.ndarray
    class_offsets: np.ndarray


def split_tree(tree, owners, devices):
    """Cuts a tree into the top and a forest per device.

    Args:
        tree: `Tree`.
        owners: integers `[num_nodes]`: the device that has the children of each node; -1 for a node of the
            top. The top has the root, and with each node its parent. A node below the top has the owner of
            its parent, unless that is in the top.
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
    propagate_down(tree, leaf_of_node)

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


def propagate_down(tree, values):
    """Gives all nodes below a node its value, in place, where that is not -1.

    Args:
        tree: `Tree`.
        values: integers `[num_nodes]`.
    """
    for first, last in itertools.pairwise(tree.levels[1:]):
        inherited = values[tree.node_parent[first:last]]
        np.copyto(values[first:last], inherited, where=inherited != -1)


def _forest(tree, owners, nodes, class_row, local_row, local_node):
    if not len(nodes):  # the ops need one node
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
    """Return int32: the rank of each element among those of its owner."""
    ranks = np.empty(len(owners), np.int32)
    for owner in range(-1, devices):
        mine = np.flatnonzero(owners == owner)
        ranks[mine] = np.arange(len(mine))
    return ranks


def _starts(sizes):
    return np.concatenate([[0], np.cumsum(sizes)])


def _int32(**arrays):
    return {name: np.asarray(array, np.int32) for name, array in arrays.items()}
