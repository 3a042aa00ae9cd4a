"""Hashing categories: strings and integers as ids of bins.

Kernels and the rules of an id: `custom_ops/hashing/hashing.h`. They run on CPUs alone.
"""

import tensorflow as tf

from keras_largeout._checks import check_one_of, positive_int
from keras_largeout.ops import _library
from keras_largeout.ops.hashing.reference import category_hash_reference, xxhash64_reference
from keras_largeout.ops.hashing.stock import stock_category_hash

__all__ = ["HASHES", "category_hash", "category_hash_reference", "xxhash64", "xxhash64_reference"]

HASHES = ("farmhash64", "xxhash64")


def xxhash64(values, seed=0):
    """Return XXH64 of each value: the numbers of any library of that name.

    Args:
        values: strings (by their bytes) or integers (by their decimal digits), a tensor of any shape.
        seed: int in `[0, 2**64)`.

    Returns:
        uint64, the shape of `values`.

    Raises:
        TypeError: `values` are neither strings nor integers.
        ValueError: a seed outside its range.

    Example:

    >>> int(xxhash64("keras")) == xxhash.xxh64_intdigest("keras")
    True

    Source: the [specification of xxHash](https://github.com/Cyan4973/xxHash) by Yann Collet.
    """
    values = tf.convert_to_tensor(values)
    flat = tf.reshape(_hashable(values), [-1])
    with tf.device("CPU:0"):
        hashes = _library.ops.largeout_xx_hash64(flat, seed=_signed(seed))
    hashes = tf.reshape(hashes, tf.shape(values))
    hashes.set_shape(values.shape)
    return hashes


def category_hash(values, num_bins, seeds, hash="xxhash64", first=0):
    """Return ids of categories by k hashes, each of bins of its own.

    Args:
        values: list of tensors `[n]` of strings or integers: one, or those of which each combination is a
            category (a cross).
        num_bins: int, at least 2: the bins of each hash.
        seeds: list of k ints in `[0, 2**64)`. With "farmhash64" None is allowed for a single feature: the
            plain hash.
        hash: "xxhash64" (an op of this package) or "farmhash64" (stock TensorFlow ops).
        first: 0, or 1: the first bin of each hash is left to padding.

    Returns:
        int64 `[n, k]`: `j * num_bins + first + hash_j % (num_bins - first)`. The hashes are those of
        `kl.layers.CategoryHashing`.

    Raises:
        TypeError: `values` are neither strings nor integers.
        ValueError: an unknown hash, or another argument outside its range.
        tf.errors.InvalidArgumentError: values of several shapes. (In a graph, ValueError.)

    Example:

    >>> category_hash([tf.constant(["red", "blue"])], num_bins=100, seeds=[0, 1]).shape
    TensorShape([2, 2])
    """
    check_one_of("hash", hash, HASHES)
    num_bins = positive_int("num_bins", num_bins, minimum=2)
    if not seeds or (None in seeds and (hash != "farmhash64" or len(values) > 1)):
        raise ValueError(
            "`seeds` must be one or more ints. (None, the plain hash, is for a single feature and "
            f"'farmhash64'.) Received: seeds={seeds!r}, hash={hash!r}, {len(values)} features"
        )
    bits = [None if seed is None else _signed(seed) for seed in seeds]
    values = [_hashable(tf.convert_to_tensor(value)) for value in values]
    with tf.device("CPU:0"):
        if hash == "farmhash64":
            return stock_category_hash(values, num_bins, seeds, first)
        return _library.ops.largeout_category_hash(values, seeds=bits, num_bins=num_bins, first=first)


def _hashable(values):
    """Return values of a type that the ops take."""
    dtype = values.dtype
    if dtype in (tf.string, tf.int32, tf.int64, tf.uint64):
        return values
    if not dtype.is_integer:
        raise TypeError(f"`values` must be strings or integers. Received: dtype={dtype.name}")
    return tf.cast(values, tf.int64 if dtype == tf.uint32 else tf.int32)


def _signed(seed):
    """Return the bits of an unsigned seed as an attribute of an op."""
    if not 0 <= seed < 2**64:
        raise ValueError(f"A seed must be an int from 0 to 2**64 - 1. Received: {seed!r}")
    return int(seed) - 2**64 if seed >= 2**63 else int(seed)


tf.no_gradient("Largeout>XxHash64")
tf.no_gradient("Largeout>CategoryHash")
