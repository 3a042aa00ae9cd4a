"""`head_tail`, the default tree: a wide root of the most frequent classes over clusters of the rest."""

import numpy as np
from numpy.typing import ArrayLike

from keras_largeout._checks import positive_int
from keras_largeout.trees import _check
from keras_largeout.trees import clusters as grouping
from keras_largeout.trees.cost import BYTES_PER_VALUE, MULTIPLY_ADDS_PER_BYTE, PRODUCTS, probability_touched
from keras_largeout.trees.tree import Tree

_ROOTS = ((192, 64), (448, 64), (896, 128))
_ARITIES = (8, 16, 32, 64)
#: For a better model a step may cost this many times the least: for a wider root, for wider nodes below it.
_WIDER_ROOT, _WIDER_ARITY = 1.6, 1.4


def head_tail(
    counts: ArrayLike,
    vectors: ArrayLike | None = None,
    head: int | None = None,
    clusters: int | None = None,
    arity: int | None = None,
    dim: int = 300,
    tokens: int = 3200,
    seed: int = 0,
) -> Tree:
    """Return a wide root of the most frequent classes over clusters of the rest: near a full softmax in
    quality.

    The root has the `head` most frequent classes as leaves, and `clusters` inner nodes as children. Each of
    these has a cluster of the other classes. A node below the root has the most frequent classes of its group
    as leaves, and splits the others evenly among its other children. It has as many leaves as the least depth
    of the tree allows.

    With `vectors`, clusters are made by k-means on angles, none larger than twice the mean, and groups are
    split across their principal direction. So similar classes share subtrees. Without `vectors`, a cluster is
    a range of classes of similar frequency, and all clusters are about equally probable.

    If `head`, `clusters` or `arity` is None, it is chosen by cost, among roots of 192 + 64, 448 +
    64 and 896 + 128 children, and arities from 8 to 64. `TreeCost` states the cost model. A byte counts as
    much as 8 multiply-adds, and nodes of one depth in the tail are taken to be equally probable. A wider root
    makes a better model; a larger arity does too, but less so. Therefore the choice is the widest root whose
    cost at its best arity is at most 1.6 times the least cost of all, and then the largest arity that costs
    at most 1.4 times as much as the best one. Up to 1024 classes the root holds all of them: a full softmax.

    Args:
        counts: finite numbers `[num_classes]`: how often each class occurs, in any unit. A 0 is
            taken as the smallest other count.
        vectors: None, or numbers `[num_classes, k]`, such as `cooccurrence_vectors` makes. A row of zeros
            means that nothing is known of the class. Defaults to `None`.
        head: int, how many classes are children of the root; None: chosen by cost. Defaults to `None`.
        clusters: int, how many inner nodes are children of the root; None: chosen by cost. Defaults to
            `None`.
        arity: int of at least 2, the most children that a node below the root has; None: chosen by cost.
            Defaults to `None`.
        dim: int, width of the hidden vectors, for the cost. Defaults to `300`.
        tokens: int, targets per step, for the cost. Defaults to `3200`.
        seed: int, seed of the clustering. Equal arguments give equal trees. Defaults to `0`.

    Returns:
        A `Tree`.

    Raises:
        ValueError: counts that are negative, not finite, or all 0; vectors of another length or not finite;
            numbers out of range.

    Example:

    ```python
    counts = np.bincount(words, minlength=num_classes) + 1
    tree = kl.trees.head_tail(counts, dim=512)
    kl.layers.HierarchicalSoftmax(num_classes, counts=counts, tree=tree)
    ```

    References:
        - E. Grave et al., "Efficient softmax approximation for GPUs", ICML 2017 (a head, and clusters of the
          tail).
        - A. Mnih and G. Hinton, "A scalable hierarchical distributed language model", NIPS 2008 (trees from
          vectors).
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
            f"`vectors` must be an array of numbers of shape [{classes}, k], one row per class. "
            f"Received: shape {vectors.shape}, dtype {vectors.dtype}"
        )
    if not all(np.isfinite(vectors[i : i + 65536]).all() for i in range(0, classes, 65536)):
        raise ValueError("`vectors` must be finite. Received: a value that is NaN or infinite")
    return vectors


def _equal_mass(counts, parts):
    """Return sizes of `parts` ranges of about equal mass, none of them empty."""
    parts = min(parts, len(counts))
    mass = np.cumsum(counts)
    ends = np.searchsorted(mass, mass[-1] * np.arange(1, parts + 1) / parts) + 1
    ends = np.maximum.accumulate(ends - np.arange(parts)) + np.arange(parts)
    ends = np.minimum(ends, len(counts) - np.arange(parts)[::-1])
    ends[-1] = len(counts)
    return np.diff(ends, prepend=0)


def _split_plan(sizes, arity):
    """Return how many classes of each group are leaves, and how many parts the others are split into."""
    below = np.full(len(sizes), 1, np.int64)  # What one child can hold when the tree is as shallow as can be.
    while np.any(short := below * arity < sizes):
        below[short] *= arity
    parts = np.where(below > 1, -(-(sizes - arity) // np.maximum(below - 1, 1)), 0)
    return np.where(below > 1, arity - parts, sizes), parts


def _grow(items, sizes, arity, vectors):
    """Makes nodes for groups of tail classes, level by level.

    Args:
        items: integers, tail classes, group after group, each group with the most frequent class first.
        sizes: integers `[groups]`.
        arity: int.
        vectors: floats `[tail classes, k]`, or None.

    Returns:
        The node of every tail class, and the parents of all nodes, including the root.
    """
    class_node = np.empty(len(items), np.int32)
    parents = [np.array([-1]), np.zeros(len(sizes), np.int64)]
    first = 1
    while len(sizes):
        leaves, parts = _split_plan(sizes, arity)
        group = np.repeat(np.arange(len(sizes)), sizes)
        rank = np.arange(len(items)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        is_leaf = rank < leaves[group]
        class_node[items[is_leaf]] = first + group[is_leaf]
        open_groups = np.flatnonzero(parts)
        parents.append(first + np.repeat(open_groups, parts[open_groups]))
        first += len(sizes)
        items, sizes = items[~is_leaf], (sizes - leaves)[open_groups]
        items, sizes = grouping.split_groups(items, sizes, parts[open_groups], vectors)
        # Tail classes are numbered by frequency: the smallest of a group is its most frequent one.
        items = items[np.lexsort((items, np.repeat(np.arange(len(sizes)), sizes)))]
    return class_node, np.concatenate(parents)


def _choose(probability, head, clusters, arity, dim, tokens):
    """Return `head`, `clusters` and `arity`, chosen as `head_tail` says; `probability` is sorted, largest
    first.
    """
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
    """Return multiply-adds per step, where a byte counts as `MULTIPLY_ADDS_PER_BYTE` of them."""
    root = head + min(clusters, tail)
    rows, touched = float(root), float(root)
    nodes, left = float(clusters), tail - clusters
    while left > 0:
        rows += tail_mass * arity
        touched += nodes * arity * probability_touched(tail_mass / nodes, tokens)
        left -= nodes * (arity - 1)
        nodes = min(nodes * arity, max(left / (arity - 1), 1.0))
    return PRODUCTS * dim * rows * tokens + MULTIPLY_ADDS_PER_BYTE * BYTES_PER_VALUE * dim * touched
