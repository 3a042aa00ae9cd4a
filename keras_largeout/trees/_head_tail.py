"""The default tree: a wide root of the most frequent classes over clusters of the rest."""

import numpy as np

from keras_largeout._checks import positive_int
from keras_largeout.trees import _check
from keras_largeout.trees import clusters as grouping
from keras_largeout.trees.cost import BYTES_PER_VALUE, MULTIPLY_ADDS_PER_BYTE, PRODUCTS, passed_by_batch
from keras_largeout.trees.tree import Tree

_ROOTS = ((192, 64), (448, 64), (896, 128))
_ARITIES = (8, 16, 32, 64)
#: How much more a step may cost for a better model: by a wider root, and by wider nodes below it.
_WIDER_ROOT, _WIDER_ARITY = 1.6, 1.4


def head_tail(counts, vectors=None, head=None, clusters=None, arity=None, dim=300, tokens=3200, seed=0):
    """A wide root of the most frequent classes over clusters of the rest: near a full softmax in quality.

    The root has `head` classes as direct leaves and `clusters` inner children. A node below the root holds
    the most frequent classes of its group as leaves, as many as leave just enough children for the others at
    the least depth, and splits the others evenly.

    With `vectors`, the clusters are those of k-means by angle with sizes capped at twice the mean, and groups
    are split across their principal direction, so that similar classes share subtrees. Without, clusters are
    ranges of similar frequency and equal mass.

    Parameters left as None are chosen by cost. Candidates are roots of 192 + 64, 448 + 64 and 896 + 128 and
    arities 8 to 64. The model: a token costs `3 * dim` multiply-adds per child of the nodes on its path, a
    touched row moves `20 * dim` bytes per batch of `tokens`, a byte costs as much as 8 multiply-adds; nodes
    of one depth in the tail are equally likely. Quality grows with the root, less with the arity. So the
    widest root is taken whose cost at its best arity is at most 1.6 times the least of all, then the widest
    arity that costs at most 1.4 times the best one. Up to 1024 classes, the widest of these roots holds
    them all, and the tree is a full softmax.

    Args:
        counts: positive, finite numbers `[num_classes]`, how often each class occurs.
        vectors: floats `[num_classes, k]`, such as made by `cooccurrence_vectors`; a zero row means unknown.
        head: classes that are direct children of the root.
        clusters: inner children of the root.
        arity: the largest number of children of a node below the root, at least 2.
        dim: width of the hidden vectors, for the cost model.
        tokens: targets in one step, for the cost model.
        seed: of the clustering; the same arguments give the same tree.

    Returns:
        A `Tree`.

    Raises:
        ValueError: for counts that are not positive and finite, vectors of another length or not finite, or
            parameters out of range.

    Source: E. Grave et al., "Efficient softmax approximation for GPUs", ICML 2017 (a head and clusters of
    the tail); A. Mnih and G. Hinton, "A scalable hierarchical distributed language model", NIPS 2008 (trees
    from vectors).
    """
    counts = _check.class_counts(counts)
    classes = len(counts)
    for name, value, minimum in (("head", head, 0), ("clusters", clusters, 1), ("arity", arity, 2)):
        if value is not None:
            positive_int(name, value, minimum)
    dim, tokens = positive_int("dim", dim), positive_int("tokens", tokens)
    vectors = _checked_vectors(vectors, classes)
    order = _check.by_frequency(counts)
    head, clusters, arity = _choose(counts[order] / counts.sum(), head, clusters, arity, dim, tokens)
    tail = classes - head
    if tail <= clusters:
        return Tree.from_parents(np.zeros(classes, np.int32), [-1], order)
    if vectors is None:
        items, sizes = np.arange(tail), _equal_mass(counts[order[head:]], clusters)
    else:
        # From here on rows of `vectors` are tail classes, most frequent first.
        vectors = grouping.unit_rows(vectors, order[head:])
        cluster = grouping.capped_kmeans(vectors, clusters, -(-2 * tail // clusters), seed)
        items, sizes = np.argsort(cluster, kind="stable"), np.bincount(cluster, minlength=clusters)
    tail_parent, node_parent = _grow(items, sizes[sizes > 0], arity, vectors)
    class_parent = np.zeros(classes, np.int32)
    class_parent[order[head:]] = tail_parent
    return Tree.from_parents(class_parent, node_parent, order)


def _checked_vectors(vectors, classes):
    if vectors is None:
        return None
    vectors = np.asarray(vectors)
    if (
        vectors.ndim != 2
        or len(vectors) != classes
        or not vectors.shape[1]
        or vectors.dtype.kind not in "iuf"
    ):
        raise ValueError(
            f"`vectors` must be an array of numbers of shape [{classes}, k]: a row a class. "
            f"Received: shape {vectors.shape}, dtype {vectors.dtype}"
        )
    if not all(np.isfinite(vectors[i : i + 65536]).all() for i in range(0, classes, 65536)):
        raise ValueError("`vectors` must be finite. Received: a value that is NaN or infinite")
    return vectors


def _equal_mass(counts, parts):
    """Sizes of `parts` ranges of about equal mass, none of them empty."""
    parts = min(parts, len(counts))
    mass = np.cumsum(counts)
    ends = np.searchsorted(mass, mass[-1] * np.arange(1, parts + 1) / parts) + 1
    ends = np.maximum.accumulate(ends - np.arange(parts)) + np.arange(parts)
    ends = np.minimum(ends, len(counts) - np.arange(parts)[::-1])
    ends[-1] = len(counts)
    return np.diff(ends, prepend=0)


def _split_plan(sizes, arity):
    """How many classes of each group stay as leaves, and how many parts the others form."""
    below = np.full(len(sizes), 1, np.int64)  # What one child can hold when the tree is as shallow as can be.
    while np.any(short := below * arity < sizes):
        below[short] *= arity
    parts = np.where(below > 1, -(-(sizes - arity) // np.maximum(below - 1, 1)), 0)
    return np.where(below > 1, arity - parts, sizes), parts


def _grow(items, sizes, arity, vectors):
    """Nodes for groups of tail classes, level by level. `items` are most frequent first within each group.

    Returns (the node of every tail class, the parents of all nodes including the root).
    """
    class_node = np.empty(len(items), np.int32)
    parents = [np.array([-1]), np.zeros(len(sizes), np.int64)]
    first = 1
    while len(sizes):
        leaves, parts = _split_plan(sizes, arity)
        group = np.repeat(np.arange(len(sizes)), sizes)
        position = np.arange(len(items)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        is_leaf = position < leaves[group]
        class_node[items[is_leaf]] = first + group[is_leaf]
        open_groups = np.flatnonzero(parts)
        parents.append(first + np.repeat(open_groups, parts[open_groups]))
        first += len(sizes)
        items, sizes = items[~is_leaf], (sizes - leaves)[open_groups]
        items, sizes = grouping.split_groups(items, sizes, parts[open_groups], vectors)
        # Tail classes are numbered by frequency: the most frequent of a group are its smallest numbers.
        items = items[np.lexsort((items, np.repeat(np.arange(len(sizes)), sizes)))]
    return class_node, np.concatenate(parents)


def _choose(probability, head, clusters, arity, dim, tokens):
    """The parameters that are None, by the model in `head_tail`; `probability` is sorted, largest first."""
    classes = len(probability)
    if head is None and clusters is None and classes <= sum(_ROOTS[-1]):
        return classes, 0, 2
    mass = np.concatenate([[0.0], np.cumsum(probability)])
    roots = [(h if head is None else head, c if clusters is None else clusters) for h, c in _ROOTS]
    options = _ARITIES if arity is None else (arity,)
    costs = {}
    for h, c in roots:
        h = min(h, classes)
        tail_mass = max(1.0 - mass[h], 0.0)
        costs[h, c] = [_step_cost(classes - h, tail_mass, h, c, a, dim, tokens) for a in options]
    least = min(map(min, costs.values()))
    root = max((r for r, cost in costs.items() if min(cost) <= _WIDER_ROOT * least), key=sum)
    best = min(costs[root])
    arity = max(a for a, cost in zip(options, costs[root]) if cost <= _WIDER_ARITY * best)
    return *root, arity


def _step_cost(tail, tail_mass, head, clusters, arity, dim, tokens):
    """Multiply-adds per step, where a byte counts as `MULTIPLY_ADDS_PER_BYTE` of them."""
    root = head + min(clusters, tail)
    rows, touched = float(root), float(root)
    nodes, left = float(clusters), tail - clusters
    while left > 0:
        rows += tail_mass * arity
        touched += nodes * arity * passed_by_batch(tail_mass / nodes, tokens)
        left -= nodes * (arity - 1)
        nodes = min(nodes * arity, max(left / (arity - 1), 1.0))
    return PRODUCTS * dim * rows * tokens + MULTIPLY_ADDS_PER_BYTE * BYTES_PER_VALUE * dim * touched
