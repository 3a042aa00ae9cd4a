"""The random numbers of the fan-in ops, in NumPy: `custom_ops/fan_in/fan_in_random.h` says what they are."""

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def mix64(z):
    """Return the finaliser of SplitMix64: uint64 to uint64, a bijection."""
    with np.errstate(over="ignore"):
        z = np.uint64(z)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def random_key(seed):
    """Return the key of one op call from `seed`, (seed, step)."""
    with np.errstate(over="ignore"):
        first, step = (np.uint64(int(s) & 0xFFFFFFFFFFFFFFFF) for s in seed)
        return mix64(mix64(first + _GAMMA) + step)


def mix32(element, key):
    """Return one uint32 for each uint64 of `element`."""
    with np.errstate(over="ignore"):
        element = np.asarray(element, np.uint64)
        high = element >> np.uint64(32)
        folded = np.array([mix64(key + _GAMMA * h) for h in np.unique(high)], np.uint64)
        folded = folded[np.searchsorted(np.unique(high), high)].astype(np.uint32)
        x = element.astype(np.uint32) * np.uint32(0x9E3779B9) + folded
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
        return x ^ (x >> np.uint32(16))


def _below(key, item, draw_number, limit):
    with np.errstate(over="ignore"):
        stream = mix64(key + _GAMMA * np.uint64(item + 1))
        return (int(mix64(stream + _GAMMA * np.uint64(draw_number + 1))) >> 32) * limit >> 32


def draw(key, item, limit, taken, count):
    """Return `count` different numbers in `[0, limit)`, none of `taken`, for class `item`; in order of
    drawing.
    """
    taken = {int(t) for t in taken}
    new, number = [], 0
    if limit <= 4 * (len(taken) + count):  # few are free: shuffle those
        free = [i for i in range(limit) if i not in taken]
        for number in range(count):
            at = number + _below(key, item, number, len(free) - number)
            free[number], free[at] = free[at], free[number]
        return free[:count]
    while len(new) < count:  # most are free: draw until one is
        value = _below(key, item, number, limit)
        number += 1
        if value not in taken:
            taken.add(value)
            new.append(value)
    return new
