"""Makes the arrays of a tree from other descriptions of it, and checks arrays."""

import operator

import numpy as np

_MAX_ROWS = 2**31 - 1


def int32_vector(name, values):
    """Return `values` as a contiguous int32 vector. Raises ValueError where that would change them."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise ValueError(
            f"`{name}` must be a 1-D array of integers. Received: shape {array.shape}, dtype {array.dtype}"
        )
    if array.dtype != np.int32:
        if array.size and not (array.min() >= -(2**31) and array.max() < 2**31):
            raise ValueError(f"`{name}` must fit int32. Received: values up to {array.max()}")
        array = array.astype(np.int32)
    return np.ascontiguousarray(array)


def from_parents(class_parent, node_parent, class_order=None):
    """See `Tree.from_parents`. Returns (class_row, node_start, node_row)."""
    class_parent = int32_vector("class_parent", class_parent)
    node_parent = int32_vector("node_parent", node_parent)
    classes, nodes = len(class_parent), len(node_parent)
    if not classes or not nodes:
        raise ValueError(
            "`class_parent` and `node_parent` must not be empty: a tree has a root and at least one class. "
            f"Received: {classes} classes, {nodes} nodes"
        )
    if classes + nodes - 1 > _MAX_ROWS:
        raise ValueError(
            f"A tree must have fewer than 2**31 rows. Received: {classes} classes, {nodes} nodes"
        )
    _check_parents(class_parent, node_parent)
    if nodes == 1 or (node_parent[0] == -1 and _in_breadth_first_order(node_parent)):
        parent = node_parent
    else:
        rank, parent = _breadth_first(node_parent)
        class_parent = rank[class_parent]
    own_classes = np.bincount(class_parent, minlength=nodes)
    own_nodes = np.bincount(parent[1:], minlength=nodes)
    sizes = own_classes + own_nodes
    if not sizes.all():
        raise ValueError(
            "Every node must have a child. Received: a node with neither a class nor a node below it"
        )
    node_start = np.zeros(nodes + 1, np.int32)
    np.cumsum(sizes, out=node_start[1:])
    # The children of a node are its classes first, then its inner nodes in the order of their ids.
    node_row = np.full(nodes, -1, np.int32)
    first_node = 1 + np.cumsum(own_nodes) - own_nodes
    inner = parent[1:]
    node_row[1:] = node_start[inner] + own_classes[inner] + (np.arange(1, nodes) - first_node[inner])
    return _class_rows(class_parent, own_classes, node_start, class_order), node_start, node_row


def _class_rows(class_parent, own_classes, node_start, class_order):
    order = None if class_order is None else _permutation(class_order, len(class_parent))
    parents = class_parent if order is None else class_parent[order]
    if np.any(parents[1:] < parents[:-1]):
        by_parent = np.argsort(parents, kind="stable")
        parents = parents[by_parent]
        order = by_parent if order is None else order[by_parent]
    # The rank among all leaves sorted by node, minus the leaves of earlier nodes, plus the rows of these.
    shift = node_start[:-1] - (np.cumsum(own_classes) - own_classes)
    rows = (np.arange(len(parents)) + shift[parents]).astype(np.int32)
    if order is None:
        return rows
    class_row = np.empty_like(rows)
    class_row[order] = rows
    return class_row


def _permutation(class_order, classes):
    order = int32_vector("class_order", class_order)
    if len(order) != classes or order.min() < 0 or not np.all(np.bincount(order, minlength=classes) == 1):
        raise ValueError(
            f"`class_order` must hold every class from 0 to {classes - 1} once. Received: {order}"
        )
    return order


def _check_parents(class_parent, node_parent):
    nodes = len(node_parent)
    for name, parents, low in (("class_parent", class_parent, 0), ("node_parent", node_parent, -1)):
        bad = (parents < low) | (parents >= nodes)
        if bad.any():
            at = int(np.argmax(bad))
            raise ValueError(f"`{name}` must be in [{low}, {nodes}). Received: {name}[{at}]={parents[at]}")
    roots = np.flatnonzero(node_parent == -1)
    if len(roots) != 1:
        raise ValueError(
            f"`node_parent` must be -1 for exactly one node, the root. Received: {len(roots)} roots"
        )


def _in_breadth_first_order(node_parent):
    """Return whether nodes are breadth first already: parents never decrease, and come before their
    children.
    """
    later = node_parent[1:]
    return bool(
        np.all(later[1:] >= later[:-1]) and np.all((later >= 0) & (later < np.arange(1, len(node_parent))))
    )


def _breadth_first(node_parent):
    """Return breadth-first ids: int32 `[num_nodes]`, the new id of each node; and the new parents in new
    order.
    """
    nodes = len(node_parent)
    by_parent = np.argsort(node_parent, kind="stable")
    first = np.searchsorted(node_parent[by_parent], np.arange(nodes + 1))
    order, level = [by_parent[:1]], by_parent[:1]
    while len(level):
        counts = first[level + 1] - first[level]
        ends = np.cumsum(counts)
        offsets = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        level = by_parent[np.repeat(first[level], counts) + offsets]
        order.append(level)
    order = np.concatenate(order)
    if len(order) != nodes:
        lost = np.setdiff1d(np.arange(nodes), order)[0]
        raise ValueError(
            f"`node_parent` must lead from every node to the root. Received: node {lost} is in a cycle"
        )
    rank = np.empty(nodes, np.int32)
    rank[order] = np.arange(nodes, dtype=np.int32)
    parent = rank[node_parent[order]]
    parent[0] = -1
    return rank, parent


def from_children(children):
    """See `Tree.from_children`. Returns (class_row, node_start, node_row)."""
    nodes, parents, leaves = [children], [-1], []
    for index, node in enumerate(nodes):  # `nodes` grows while it is walked: breadth first.
        if not isinstance(node, (list, tuple)) or not len(node):
            raise ValueError(
                f"`children` must be a list of integers and lists, none empty. Received: {node!r}"
            )
        for child in node:
            if isinstance(child, (list, tuple)):
                nodes.append(child)
                parents.append(index)
                continue
            try:
                leaves.append((operator.index(child), index))
            except TypeError:
                raise ValueError(f"`children` must hold integers and lists. Received: {child!r}") from None
    if not leaves:
        raise ValueError("`children` must hold at least one class. Received: no integer")
    ids, owners = np.array(leaves, np.int64).T
    if ids.min() < 0:
        raise ValueError(f"`children` must hold classes of at least 0. Received: {ids.min()}")
    seen, times = np.unique(ids, return_counts=True)
    if times.max() > 1:
        raise ValueError(f"`children` must hold every class once. Received: class {seen[times > 1][0]} twice")
    if seen[-1] != len(seen) - 1:
        lost = int(np.argmax(seen != np.arange(len(seen))))
        raise ValueError(
            f"`children` must hold every class from 0 to {seen[-1]}. Received: class {lost} has no leaf"
        )
    class_parent = np.empty(len(ids), np.int64)
    class_parent[ids] = owners
    return from_parents(class_parent, parents, ids)


def check_arrays(class_row, node_start, node_row):
    """Raises ValueError unless the three int32 arrays describe a tree."""
    classes, nodes = len(class_row), len(node_row)
    rows = classes + nodes - 1
    if not classes or not nodes or len(node_start) != nodes + 1:
        raise ValueError(
            "`class_row` and `node_row` must not be empty, `node_start` must be one longer than `node_row`. "
            f"Received: lengths {classes}, {nodes} and {len(node_start)}"
        )
    if node_start[0] != 0 or node_start[-1] != rows:
        raise ValueError(
            f"`node_start` must begin with 0 and end with {rows} (classes + nodes - 1). "
            f"Received: {node_start[0]} and {node_start[-1]}"
        )
    if np.any(node_start[1:] <= node_start[:-1]):
        at = int(np.argmax(node_start[1:] <= node_start[:-1]))
        raise ValueError(
            f"Every node must have a child. Received: node_start[{at}:{at + 2}]={node_start[at : at + 2]}"
        )
    if node_row[0] != -1:
        raise ValueError(f"`node_row` must be -1 for the root, node 0. Received: node_row[0]={node_row[0]}")
    # The row of a node is before its own rows, so its parent has a lower id: no cycle is possible.
    bad = (node_row[1:] <= node_row[:-1]) | (node_row[1:] >= node_start[1:-1])
    if bad.any():
        at = 1 + int(np.argmax(bad))
        raise ValueError(
            "`node_row` must increase, and each node must come after its parent (numbers go breadth first). "
            f"Received: node_row[{at}]={node_row[at]} after {node_row[at - 1]}, "
            f"node_start[{at}]={node_start[at]}"
        )
    bad = (class_row < 0) | (class_row >= rows)
    if bad.any():
        at = int(np.argmax(bad))
        raise ValueError(
            f"`class_row` must be in [0, {rows}): a class without a row has no leaf. "
            f"Received: class_row[{at}]={class_row[at]}"
        )
    claims = np.zeros(rows, bool)
    claims[node_row[1:]] = True
    bad = claims[class_row]
    if not bad.any():
        claims[class_row] = True
        if claims.all():
            return
        order = np.argsort(class_row, kind="stable")
        twice = class_row[order][1:] == class_row[order][:-1]
        at = int(order[1:][twice].min())
    else:
        at = int(np.argmax(bad))
    raise ValueError(
        "Every row must belong to one class or one inner node. "
        f"Received: row {class_row[at]} of class {at} is claimed twice, so that another has no leaf"
    )
