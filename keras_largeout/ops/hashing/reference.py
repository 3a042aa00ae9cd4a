"""XXH64, one value after the other, in Python's integers: the same bits as the ops.

The rules: `custom_ops/hashing/hashing.h`.
"""

import numpy as np

_BITS = 2**64 - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def xxhash64_reference(data, seed=0):
    """Return XXH64 of bytes, an int in `[0, 2**64)`.

    Source: the specification of xxHash by Yann Collet, https://github.com/Cyan4973/xxHash, doc.
    """
    size, at = len(data), 0
    if size < 32:
        hashed = (seed + _P5) & _BITS
    else:
        lanes = [(seed + start) & _BITS for start in (_P1 + _P2, _P2, 0, -_P1)]
        while size - at >= 32:
            lanes = [_round(lane, _word(data, at + 8 * i, 8)) for i, lane in enumerate(lanes)]
            at += 32
        hashed = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18))) & _BITS
        for lane in lanes:
            hashed = ((hashed ^ _round(0, lane)) * _P1 + _P4) & _BITS
    hashed = (hashed + size) & _BITS
    while size - at >= 8:
        hashed = (_rotated(hashed ^ _round(0, _word(data, at, 8)), 27) * _P1 + _P4) & _BITS
        at += 8
    if size - at >= 4:
        hashed = (_rotated(hashed ^ (_word(data, at, 4) * _P1 & _BITS), 23) * _P2 + _P3) & _BITS
        at += 4
    for byte in data[at:]:
        hashed = _rotated(hashed ^ (byte * _P5 & _BITS), 11) * _P1 & _BITS
    hashed = (hashed ^ (hashed >> 33)) * _P2 & _BITS
    hashed = (hashed ^ (hashed >> 29)) * _P3 & _BITS
    return hashed ^ (hashed >> 32)


def category_hash_reference(values, num_bins, seeds, first=0):
    """Return what `wrapper.category_hash` gives with "xxhash64", for lists of strings, bytes or ints.

    Args:
        values: list of p lists `[n]`.
        num_bins, seeds, first: as there.

    Returns:
        int64 `[n, len(seeds)]`.
    """
    parts = [[_bytes(value) for value in column] for column in values]
    if len(parts) > 1:
        digests = [[xxhash64_reference(value).to_bytes(8, "little") for value in part] for part in parts]
        parts = [[b"".join(row) for row in zip(*digests)]]
    bins = num_bins - first
    ids = [
        [j * num_bins + first + xxhash64_reference(value, seed) % bins for j, seed in enumerate(seeds)]
        for value in parts[0]
    ]
    return np.array(ids, np.int64).reshape(len(parts[0]), len(seeds))


def _bytes(value):
    if isinstance(value, bytes):
        return value
    return str(value).encode()


def _rotated(x, by):
    return ((x << by) | (x >> (64 - by))) & _BITS


def _round(lane, word):
    return _rotated((lane + word * _P2) & _BITS, 31) * _P1 & _BITS


def _word(data, at, size):
    return int.from_bytes(data[at : at + size], "little")
