"""Vocabularies on NumPy arrays, one id after the other: the same bits as the ops.

The rules: `custom_ops/vocabulary/vocabulary.h`.
"""

import numpy as np

EMPTY = -(2**63)  # the key of a free slot
EVICT = ("lfu", "lru")
SLOTS = 16  # of a bucket
COUNTERS = 64  # of a block of the sketch
_BITS = 2**64 - 1


def mix(x):
    """Return the finalizer of SplitMix64 (Steele et al. 2014) of a Python int."""
    x = (x + 0x9E3779B97F4A7C15) & _BITS
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _BITS
    return x ^ (x >> 31)


def _buckets(id, capacity):
    """Return both buckets in which an id may be, as ranges of slots."""
    h, buckets = mix(int(id) & _BITS), capacity // SLOTS
    first = ((h >> 32) * buckets) >> 32, ((h & 0xFFFFFFFF) * buckets) >> 32
    return [range(SLOTS * bucket, SLOTS * (bucket + 1)) for bucket in first]


def _find(keys, id):
    if id == EMPTY:
        return -1
    return next((s for bucket in _buckets(id, len(keys)) for s in bucket if keys[s] == id), -1)


def find_reference(keys, ids):
    """Return what `find` gives for an array of keys."""
    ids = np.asarray(ids, np.int64)
    return np.array([_find(keys, id) for id in ids.reshape(-1)], np.int64).reshape(ids.shape)


def _count(sketch, id, occurrences):
    """Adds to the counters of an id by a conservative update. Returns what it counts now."""
    h2 = mix(mix(int(id) & _BITS))
    block = sketch[((h2 >> 32) * len(sketch)) >> 32]
    counters = [(h2 >> (6 * k)) & 63 for k in range(4)]
    new = min(255, min(int(block[c]) for c in counters) + occurrences)
    for c in counters:
        block[c] = max(int(block[c]), new)
    return new


def _score(evict, count, step):
    return step if evict == "lru" else (min(count, 2**31 - 1) << 32) | (step & 0xFFFFFFFF)


def _slot_for(keys, scores, id, evict, step):
    """Return the slot that a new id gets: a free one, else that of the lowest score; None: none is to be
    had.
    """
    buckets = _buckets(id, len(keys))
    free = [[s for s in bucket if keys[s] == EMPTY] for bucket in buckets]
    if free[0] or free[1]:
        return free[1][0] if len(free[1]) > len(free[0]) else free[0][0]

    def touched(score):
        return score == step if evict == "lru" else score & 0xFFFFFFFF == step & 0xFFFFFFFF

    slots = [s for bucket in buckets for s in bucket if not touched(int(scores[s]))]
    return min(slots, key=lambda s: scores[s], default=None)  # the first of equals


def update_reference(keys, scores, sketch, clock, ids, admit_after, evict, begins_step=True):
    """Return what `update` does to arrays, in place.

    Returns:
        `(rows, replaced)`, int64: the shape of `ids`, and `[m]`.
    """
    ids = np.asarray(ids, np.int64)
    clock[0] += begins_step
    step, replaced = int(clock[0]), []
    rows = find_reference(keys, ids.reshape(-1))
    for row in rows[rows >= 0]:
        scores[row] = _score(evict, (int(scores[row]) >> 32) + 1, step)
    missing = {}  # id: how often; in the order of their first occurrences
    for id in ids.reshape(-1)[rows < 0].tolist():
        if id != EMPTY:
            missing[id] = missing.get(id, 0) + 1
    for id, count in missing.items():
        if admit_after > 1:
            clock[1] += count
            count = _count(sketch, id, count)
            if count < admit_after:
                continue
        slot = _slot_for(keys, scores, id, evict, step)
        if slot is None:
            continue
        if keys[slot] != EMPTY:
            replaced.append(slot)
        keys[slot], scores[slot] = id, _score(evict, count, step)
    while len(sketch) and clock[1] >= 4 * admit_after * len(sketch):
        sketch //= 2
        clock[1] //= 2
    return find_reference(keys, ids), np.array(replaced, np.int64)
