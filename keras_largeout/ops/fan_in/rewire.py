"""The connections of a class to inputs: drawn at random, pruned and regrown, in place.

Kernels: `custom_ops/fan_in/fan_in_rewire.h`. Every random number depends on seed, class and draw alone, so
connections are the same on any number of devices and threads.
"""

import math

import tensorflow as tf

from keras_largeout.ops import _library
from keras_largeout.ops.fan_in._arguments import INDEX_DTYPES, int64, variable
from keras_largeout.ops.fan_in.growth import (
    fan_in_candidate_gradient,
    fan_in_candidate_gradient_reference,
    fan_in_candidates,
    fan_in_candidates_reference,
)
from keras_largeout.ops.fan_in.reference import (
    fan_in_connections_reference,
    fan_in_prune_threshold_reference,
    fan_in_rewire_reference,
)

__all__ = [
    "fan_in_candidate_gradient",
    "fan_in_candidate_gradient_reference",
    "fan_in_candidates",
    "fan_in_candidates_reference",
    "fan_in_connections",
    "fan_in_connections_reference",
    "fan_in_degrees",
    "fan_in_prune_threshold",
    "fan_in_prune_threshold_reference",
    "fan_in_rewire",
    "fan_in_rewire_reference",
]

KEY_DIGITS = 7  # of 9 bits: the 63 bits by which connections are ordered


def fan_in_connections(num_rows, fan_in, num_inputs, seed, first_class=0, dtype=None):
    """Return initial connections: `fan_in` different inputs for each class, uniform.

    Args:
        num_rows: Number of classes to draw for: `first_class .. first_class + num_rows`. Large layers are
            filled chunk by chunk.
        fan_in: K.
        num_inputs: I, up to 2^31 - 1.
        seed: int64 `[2]`, for instance (seed, 0).
        first_class: The class of row 0.
        dtype: uint16 or uint32; `None`: uint16 where `num_inputs` <= 65536, else uint32.

    Returns:
        `[num_rows, fan_in]` of `dtype`.

    Raises:
        ValueError: `fan_in` > `num_inputs`, or `dtype` too small for `num_inputs`.
    """
    small = num_inputs <= 1 << 16
    dtype = (tf.uint16 if small else tf.uint32) if dtype is None else tf.as_dtype(dtype)
    if not 0 < fan_in <= num_inputs:
        raise ValueError(f"`fan_in` must be in [1, num_inputs={num_inputs}]. Received: fan_in={fan_in}")
    if dtype != tf.uint32 and not (dtype == tf.uint16 and small):
        raise ValueError(
            "`dtype` must be uint32, or uint16 where `num_inputs` <= 65536. "
            f"Received: dtype={dtype.name}, num_inputs={num_inputs}"
        )
    return _library.ops.largeout_fan_in_connections(
        num_rows=int64(num_rows),
        fan_in=int64(fan_in),
        num_inputs=int64(num_inputs),
        first_class=int64(first_class),
        seed=int64(seed),
        dtype=dtype,
    )


def fan_in_prune_threshold(weights, fraction, seed, first_class=0, connections=None, summed=tf.identity):
    """Return the threshold below which `fraction` of all connections are: for `fan_in_rewire(threshold=...)`.

    Connections are ordered by |weight|, equal ones at random (by `seed`), so that exactly
    `int(fraction * C * K + 0.5)` of them are pruned whatever ties there are.

    Args:
        weights: Variable `[C, K]`, or a list of them: the parts of one layer, each where its device is.
        fraction: From 0 to 1.
        seed: int64 `[2]`, (seed, step): the one given to `fan_in_rewire`.
        first_class: The class of row 0; for a list, a list.
        connections: Of all weights, also those that other processes have; None for those given here.
        summed: Function of int64 `[n]`, to the sums over all processes.

    Returns:
        int64 scalar; -1: prune nothing.
    """
    if isinstance(weights, (list, tuple)):
        parts, first = list(weights), list(first_class)
    else:
        parts, first = [weights], [first_class]
    parts = [variable("weights", part, (tf.float32, tf.bfloat16)) for part in parts]
    if not 0 <= fraction <= 1:
        raise ValueError(f"`fraction` must be in [0, 1]. Received: fraction={fraction}")
    seed = int64(seed)
    if connections is None:
        connections = sum(math.prod(part.shape) for part in parts)
    rank = tf.constant(int(fraction * connections + 0.5), tf.int64)
    # The key of that rank, 63 bits, from the most significant on: each pass counts how many keys with the
    # prefix found so far continue with which digit.
    prefix, left = tf.zeros([], tf.int64), rank
    for digit in range(KEY_DIGITS):
        counts = [
            _library.ops.largeout_fan_in_key_counts(
                weights=part.handle,
                prefix=prefix,
                seed=seed,
                first_class=int64(start),
                dtype=part.dtype,
                digit=digit,
            )
            for part, start in zip(parts, first)
        ]
        counts = summed(tf.add_n(counts))
        below = tf.cumsum(counts)
        found = tf.searchsorted(below, left[None], side="left", out_type=tf.int64)[0]
        found = tf.minimum(found, tf.size(counts, tf.int64) - 1)
        left -= tf.where(found > 0, below[tf.maximum(found - 1, 0)], 0)
        prefix = prefix * tf.size(counts, tf.int64) + found
    return tf.where(rank > 0, prefix, -1)


def fan_in_rewire(
    weights,
    indices,
    num_inputs,
    seed,
    slots=(),
    fraction=None,
    threshold=None,
    candidates=None,
    scores=None,
    first_row=0,
    num_rows=None,
    first_class=0,
):
    """Prunes the weakest connections of every class and regrows as many others, in place.

    A regrown connection has weight zero and zero slots, and goes to an input that the class was not
    connected to before (where too few are free: to one that it does not keep). No class ever has an input
    twice.

    Args:
        weights: Variable `[C, K]`, float32 or bfloat16.
        indices: Variable `[C, K]`, uint16 or uint32.
        num_inputs: I.
        seed: int64 `[2]`, (seed, step): give another step each time.
        slots: Variables float32 `[C, K]`, the optimizer's slots of `weights`.
        fraction: Prune the `int(fraction * K + 0.5)` connections of smallest |weight| of every class (equal
            ones at random). This or `threshold`.
        threshold: Prune what is below this result of `fan_in_prune_threshold` (same `seed`).
        candidates: `None` (regrow at random), or int32 `[num_rows, M]`: regrow those of largest |score| (the
            first of equal ones) that the class is not connected to, and at random where they do not suffice.
        scores: float32 `[num_rows, M]`, for instance from `fan_in_candidate_gradient`.
        first_row: The rows `first_row .. first_row + num_rows` are rewired; all by default.
        num_rows: See `first_row`.
        first_class: The class of row 0 of `weights`.

    Returns:
        int64 scalar, the number of connections that changed.

    References:
        [Mocanu et al., 2018](https://doi.org/10.1038/s41467-018-04316-3) (magnitude pruning, random growth);
        [Evci et al., 2020](https://arxiv.org/abs/1911.11134) (growth by gradient).
    """
    weights = variable("weights", weights, (tf.float32, tf.bfloat16))
    indices = variable("indices", indices, INDEX_DTYPES)
    slots = [variable("slots", slot, (tf.float32,)) for slot in slots]
    if (fraction is None) == (threshold is None):
        raise ValueError(
            "One of `fraction` and `threshold` must be given. "
            f"Received: fraction={fraction}, threshold={threshold}"
        )
    if (candidates is None) != (scores is None):
        raise ValueError("`candidates` and `scores` must be given together. Received: one of them")
    if fraction is not None and not 0 <= fraction <= 1:
        raise ValueError(f"`fraction` must be in [0, 1]. Received: fraction={fraction}")
    num_rows = weights.shape[0] - first_row if num_rows is None else num_rows
    return _library.ops.largeout_fan_in_rewire(
        weights=weights.handle,
        indices=indices.handle,
        slots=[slot.handle for slot in slots],
        num_inputs=int64(num_inputs),
        rows=tf.stack([int64(first_row), int64(num_rows)]),
        first_class=int64(first_class),
        count=-1 if fraction is None else int(fraction * weights.shape[1] + 0.5),
        threshold=int64(-1 if threshold is None else threshold),
        seed=int64(seed),
        candidates=tf.zeros([num_rows, 0], tf.int32) if candidates is None else candidates,
        scores=tf.zeros([num_rows, 0], tf.float32) if scores is None else scores,
        dtype=weights.dtype,
        Tindices=indices.dtype,
    )


def fan_in_degrees(indices, num_inputs):
    """Return how many connections every input has: int64 `[num_inputs]`.

    Args:
        indices: Variable `[C, K]`, uint16 or uint32.
        num_inputs: I.

    Raises:
        tf.errors.InvalidArgumentError: An index outside `[0, num_inputs)`.
    """
    indices = variable("indices", indices, INDEX_DTYPES)
    return _library.ops.largeout_fan_in_degrees(
        indices=indices.handle, num_inputs=int64(num_inputs), Tindices=indices.dtype
    )
