"""Random bits that are functions of a key and a counter: `custom_ops/common/random.h` in NumPy."""

import ml_dtypes
import numpy as np

GAMMA = np.uint64(0x9E3779B97F4A7C15)


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
        return mix64(mix64(first + GAMMA) + step)


def fold_key(key, shared):
    """Return a key of 32 bits for each uint64 of `shared`, the part of a counter that many elements have."""
    with np.errstate(over="ignore"):
        return mix64(key + GAMMA * np.asarray(shared, np.uint64)).astype(np.uint32)


def random_bits(folded, low):
    """Return a uint32 for each uint32 of `low` among the elements of a folded key."""
    with np.errstate(over="ignore"):
        x = np.asarray(low).astype(np.uint32) * np.uint32(0x9E3779B9) + folded
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
        return x ^ (x >> np.uint32(16))


def round_stochastically(values, random):
    """Return float32 values as bfloat16, each rounded up with the probability of what is cut off."""
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = ((bits + (random & np.uint32(0xFFFF))) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).view(ml_dtypes.bfloat16)
