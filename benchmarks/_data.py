"""Seeded Zipf batches, made once by the parent process and read by every library."""

from pathlib import Path

import numpy as np


def zipf_ranks(rows, exponent, shape, seed):
    """Return int64 ranks in [0, rows), p(rank) ~ 1 / (rank + 1) ** exponent, by inverting the CDF."""
    cdf = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
    draws = np.random.default_rng(seed).random(shape)
    return np.minimum(np.searchsorted(cdf, draws * cdf[-1], side="right"), rows - 1)


def spread(ranks, rows):
    """Return ranks permuted over [0, rows): frequent rows are no neighbours, as in a table of hashed ids."""
    step = int(rows * 0.6180339887498949) | 1
    while np.gcd(step, rows) != 1:
        step += 2
    return (ranks * step + rows // 3) % rows


def zipf_counts(rows, exponent, total=10**9):
    """Return int64 counts of a corpus of about `total` tokens, most frequent class first, none below one."""
    weight = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    return np.maximum(np.rint(weight * (total / weight.sum())), 1).astype(np.int64)


def save(folder, **arrays):
    """Writes arrays as .npy files. Returns `{name: path}`, which the workers get."""
    paths = {}
    for name, array in arrays.items():
        path = Path(folder, f"{name}.npy")
        np.save(path, array)
        paths[name] = str(path)
    return paths


def load(data, name):
    """Return one array of `data`, read into this process."""
    return np.load(data[name])
