"""Calls of the ops of vocabulary that they accept."""

import numpy as np
import tensorflow as tf

from tests.fuzz.recipes import RECIPES

EMPTY = -(2**63)
_WILD = (EMPTY, EMPTY + 1, -1, 0, 2**63 - 1)


def _some_ids(d, n):
    ids = d.rng.integers(0, 1 + d.size(0, 200), n)
    return np.where(d.rng.random(n) < 0.1, d.pick(_WILD), ids)


def _keys(d):
    """Free ones, ids in any slot, the same id in many: files may be damaged."""
    capacity = 16 * d.size(1, 5)
    return np.where(d.rng.random(capacity) < d.rng.random(), EMPTY, _some_ids(d, capacity))


def _find(d):
    return {"keys": d.variable(tf.constant(_keys(d))), "ids": tf.constant(_some_ids(d, d.size(0, 3000)))}


def _update(d):
    keys, admit_after = _keys(d), d.pick([1, 2, 3, 255])
    clock = [d.pick([0, 3, 2**32 - 1, 2**63 - 1, -(2**63), -1]), d.pick([0, 639, 2**40, 2**63 - 1, -1])]
    scores = d.values(tf.int64, keys.shape)
    sketch = d.rng.integers(0, 256, (d.size(admit_after > 1, 3), 64))
    return {
        "keys": d.variable(tf.constant(keys)),
        "scores": d.variable(tf.constant(scores)),
        "sketch": d.variable(tf.constant(sketch, tf.uint8)),
        "clock": d.variable(tf.constant(clock, tf.int64)),
        "ids": tf.constant(_some_ids(d, d.size(0, 3000))),
        "admit_after": admit_after,
        "evict": d.pick(["lfu", "lru"]),
    }


RECIPES.update(VocabularyFind=_find, VocabularyUpdate=_update)
