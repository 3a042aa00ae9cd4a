"""The random numbers of the fan-in ops, in NumPy: `custom_ops/fan_in/fan_in_random.h` says what they are."""

import numpy as np

from keras_largeout.ops.random_bits import GAMMA, fold_key, mix64, random_bits


def mix32(element, key):
    """Return one uint32 for each uint64 of `element`."""
    element = np.asarray(element, np.uint64)
    return random_bits(fold_key(key, element >> np.uint64(32)), element)


def _below(key, item, draw_number, limit):
    with np.errstate(over="ignore"):
        stream = mix64(key + GAMMA * np.uint64(item + 1))
        return (int(mix64(stream + GAMMA * np.uint64(draw_number + 1))) >> 32) * limit >> 32


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
