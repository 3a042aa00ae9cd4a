"""Calls of the ops of hashing that they accept."""

import tensorflow as tf

from tests.fuzz.recipes import RECIPES

_TYPES = (tf.string, tf.int32, tf.int64, tf.uint64)


def _values(d, n):
    dtype = d.pick(_TYPES)
    if dtype != tf.string:
        return d.tensor(dtype, (n,))
    return tf.constant([d.rng.bytes(d.size(0, d.pick([8, 31, 200]))) for _ in range(n)], tf.string)


def _seed(d):
    return d.pick([0, 1, -1, 2**63 - 1, -(2**63)])


def _hash(d):
    return {"values": _values(d, d.size(0, 600)), "seed": _seed(d)}


def _categories(d):
    n, k = d.size(0, 600), d.size(1, 5)
    return {
        "values": [_values(d, n) for _ in range(d.size(1, 3))],
        "seeds": [_seed(d) for _ in range(k)],
        "num_bins": d.pick([2, 3, 1000, 2**32 + 1, (2**63 - 1) // k]),
        "first": d.size(0, 1),
    }


RECIPES.update(XxHash64=_hash, CategoryHash=_categories)
