"""Grouping classes by word vectors: k-means with a cap on sizes, and balanced principal splits."""

import numpy as np

_SAMPLE = 32768
_CHUNK = 65536


def unit_rows(vectors, rows):
    """Return the rows `rows` of `vectors` as float32 unit vectors. Rows of zeros stay zero."""
    chosen = np.asarray(vectors[rows], np.float32)
    return chosen / np.maximum(np.linalg.norm(chosen, axis=1, keepdims=True), 1e-12)


def capped_kmeans(vectors, clusters, cap, seed):
    """Clusters of unit vectors by angle, none larger than `cap`.

    Lloyd's iterations on the first 32768 vectors find the centres. (Callers pass the most frequent classes
    first: their vectors are the best known, and matter most.) Then every vector goes to the nearest centre
    that has room.

    Args:
        vectors: float32 `[n, d]`, rows of length 1 or 0.
        clusters: int, the number of clusters.
        cap: int, the largest size, `cap * clusters >= n`.
        seed: int, seed of the choice of the first centres.

    Returns:
        int32 `[n]`: the cluster of each vector. Clusters may be empty.
    """
    sample = vectors[:_SAMPLE]
    centres = _first_centres(sample, clusters, np.random.default_rng(seed))
    for _ in range(12):
        near = np.argmax(sample @ centres.T, axis=1)
        sums = np.stack(
            [np.bincount(near, sample[:, j], minlength=clusters) for j in range(sample.shape[1])], 1
        )
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(norms > 1e-6, sums / np.maximum(norms, 1e-6), centres).astype(np.float32)
    return _assign_capped(vectors, centres, cap)


def _first_centres(sample, clusters, rng):
    """Return k-means++ (Arthur and Vassilvitskii, SODA 2007): each centre is drawn far from those before
    it.
    """
    chosen = [int(rng.integers(len(sample)))]
    distance = 1 - sample @ sample[chosen[0]]
    while len(chosen) < clusters:
        weight = np.maximum(distance, 0).astype(np.float64)
        total = weight.sum()
        draw = rng.choice(len(sample), p=weight / total) if total > 0 else rng.integers(len(sample))
        chosen.append(int(draw))
        distance = np.minimum(distance, 1 - sample @ sample[chosen[-1]])
    return sample[chosen]


def _assign_capped(vectors, centres, cap):
    room = np.full(len(centres), cap, np.int64)
    cluster = np.full(len(vectors), -1, np.int32)
    left = np.arange(len(vectors))
    while len(left):
        # Every round fills at least one cluster, or assigns all vectors that are left.
        open_ids = np.flatnonzero(room)
        best, score = np.empty(len(left), np.int64), np.empty(len(left), np.float32)
        for i in range(0, len(left), _CHUNK):
            products = vectors[left[i : i + _CHUNK]] @ centres[open_ids].T
            best[i : i + _CHUNK] = open_ids[np.argmax(products, axis=1)]
            score[i : i + _CHUNK] = products.max(axis=1)
        nearest_first = np.lexsort((-score, best))
        in_order = best[nearest_first]
        rank = np.arange(len(left)) - np.searchsorted(in_order, in_order)
        fits = rank < room[in_order]
        placed = nearest_first[fits]
        cluster[left[placed]] = best[placed]
        room -= np.bincount(best[placed], minlength=len(room))
        left = np.sort(left[nearest_first[~fits]])
    return cluster


def split_groups(items, sizes, parts, vectors=None):
    """Splits consecutive groups of items into equal parts, with similar items together, all groups at once.

    A group is halved again and again across the principal direction of its vectors, so its parts are always
    of equal size. Without vectors the items keep their order.

    Args:
        items: integers `[n]`, rows of `vectors`, group after group.
        sizes: integers `[g]`, the sizes of the groups; they sum to n.
        parts: integers `[g]`, how many parts to make of each group, at most its size.
        vectors: float32 `[m, d]` or None.

    Returns:
        The items, reordered within their groups, and the sizes of all parts, group after group.
    """
    while np.any(parts > 1):
        starts = np.cumsum(sizes) - sizes
        if vectors is not None:
            wide = np.flatnonzero(parts > 1)
            direction = np.zeros((len(sizes), vectors.shape[1]), np.float32)
            direction[wide] = _principal(vectors, items, starts[wide], sizes[wide])
            group = np.repeat(np.arange(len(sizes)), sizes)
            along = np.empty(len(items), np.float32)
            for i in range(0, len(items), _CHUNK):
                part = slice(i, i + _CHUNK)
                along[part] = np.einsum("ij,ij->i", vectors[items[part]], direction[group[part]])
            items = items[np.lexsort((along, group))]
        left_parts = (parts + 1) // 2
        left_sizes = sizes * left_parts // parts
        sizes = np.stack([left_sizes, sizes - left_sizes], 1).ravel()
        parts = np.stack([left_parts, parts - left_parts], 1).ravel()
        kept = parts > 0
        sizes, parts = sizes[kept], parts[kept]
    return items, sizes


def _principal(vectors, items, starts, sizes, sample=64, steps=4):
    """Return the leading principal direction of each group, from up to 64 of its items, by power
    iteration.
    """
    count = int(min(sample, sizes.max()))
    directions = np.empty((len(starts), vectors.shape[1]), np.float32)
    chunk = max(1, 2**22 // (count * vectors.shape[1]))
    for i in range(0, len(starts), chunk):
        at = starts[i : i + chunk, None] + np.arange(count) * sizes[i : i + chunk, None] // count
        x = vectors[items[at]]
        x -= x.mean(axis=1, keepdims=True)
        # The item farthest from the mean is never orthogonal to all that varies, so it is a safe first guess.
        far = np.argmax(np.einsum("gij,gij->gi", x, x), axis=1)
        v = x[np.arange(len(x)), far][:, :, None]
        for _ in range(steps):
            v = np.matmul(x.transpose(0, 2, 1), np.matmul(x, v))
            v /= np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-20)
        directions[i : i + chunk] = v[:, :, 0]
    return directions
