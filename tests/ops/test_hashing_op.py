"""The ops of `hashing`: the numbers of xxHash and of Keras's own layer; shapes; what they refuse."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.ops._library import ops
from keras_largeout.ops.hashing.wrapper import (
    HASHES,
    category_hash,
    category_hash_reference,
    xxhash64,
    xxhash64_reference,
)

SEEDS = [0, 1, 2**63, 2**64 - 1]


def test_equals_the_reference_for_every_length(rng):
    seed = 2**63 + 1
    values = [rng.bytes(n) for n in range(130)]  # no valid UTF-8, zeros among them
    got = xxhash64(tf.constant(values), seed)
    assert got.dtype == tf.uint64
    assert got.numpy().tolist() == [xxhash64_reference(value, seed) for value in values]


def test_equals_the_package_xxhash(rng):
    xxhash = pytest.importorskip("xxhash")
    values = [rng.bytes(n) for n in range(300)]
    for seed in SEEDS:
        want = [xxhash.xxh64_intdigest(value, seed) for value in values]
        assert xxhash64(tf.constant(values), seed).numpy().tolist() == want
        assert [xxhash64_reference(value, seed) for value in values] == want


def test_published_values():
    assert xxhash64_reference(b"") == 0xEF46DB3751D8E999
    assert xxhash64_reference(b"abc") == 0x44BC2CF5AD770999


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("hash", HASHES)
def test_integers_are_their_digits(dtype, hash):
    limits = np.iinfo(dtype)
    values = np.array([0, 7, 100, limits.min, limits.max], dtype)
    digits = tf.constant([str(value) for value in values.tolist()])
    for seeds in ([3], [0, 2**64 - 1]):
        got = category_hash([tf.constant(values)], 1000, seeds, hash)
        np.testing.assert_array_equal(got, category_hash([digits], 1000, seeds, hash))


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("num_bins", [2, 2**40])
def test_ids_equal_the_reference(rng, columns, first, num_bins):
    values = [[rng.bytes(int(n)) for n in rng.integers(0, 40, 77)] for _ in range(columns)]
    values[-1] = rng.integers(-(10**9), 10**9, 77).tolist()
    got = category_hash([tf.constant(v) for v in values], num_bins, [0, 5, 2**64 - 1], first=first)
    assert got.dtype == tf.int64
    np.testing.assert_array_equal(got, category_hash_reference(values, num_bins, [0, 5, 2**64 - 1], first))


@pytest.mark.parametrize("first", [0, 1])
def test_farmhash_is_that_of_keras(first):
    words = tf.constant(["", "a", "B00005N7P0", "\x00", "x" * 100])
    want = keras.layers.Hashing(97, mask_value="no such word" if first else None)(words)
    np.testing.assert_array_equal(category_hash([words], 97, [None], "farmhash64", first)[:, 0], want)
    # Beside other hashes it is computed another way.
    several = category_hash([words], 97, [None, 1], "farmhash64", first)
    np.testing.assert_array_equal(several[:, 0], want)
    assert np.all(several[:, 1] >= 97 + first) and np.all(several[:, 1] < 194)


@pytest.mark.parametrize("hash", HASHES)
def test_few_values(hash):
    for values in ([], ["one"]):
        values = tf.constant(values, tf.string)
        assert category_hash([values], 10, [0, 1], hash).shape == (len(values), 2)
        assert category_hash([values, values], 10, [0], hash).shape == (len(values), 1)
    assert xxhash64(tf.zeros([2, 0, 3], tf.string)).shape == (2, 0, 3)
    assert xxhash64(tf.constant("scalar")).shape == ()


def test_shapes_in_graphs():
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec(None, tf.int64)])
    def ids(words, numbers):
        got = ops.largeout_category_hash([words, numbers], seeds=[1, 2, 3], num_bins=9, first=0)
        assert got.shape.as_list() == [None, 3]
        assert ops.largeout_xx_hash64(words, seed=0).shape.as_list() == [None]
        return got

    assert ids(tf.constant(["a"]), tf.constant([1], tf.int64)).shape == (1, 3)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"`values` must have the shape \[n\], the same n"
    ):
        ids(tf.constant(["a"]), tf.constant([1, 2], tf.int64))

    @tf.function
    def known():
        words = tf.zeros([7], tf.string)
        assert ops.largeout_category_hash([words], seeds=[1, 2], num_bins=9, first=0).shape == (7, 2)

    known()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_bins": 1}, r"`num_bins` must be at least 2.* num_bins=1 and 2 hashes"),
        ({"num_bins": 2**62}, r"`num_bins` must be at least 2, and the bins of all hashes fewer than 2"),
        ({"first": 2}, r"`first` must be 0 or 1. Received: first=2"),
        ({"values": [[["a"]]]}, r"`values` must have the shape \[n\]"),
        ({"values": [["a"], ["a", "b"]]}, r"`values` must have the shape \[n\], the same n all of them"),
    ],
)
@pytest.mark.parametrize("graph", [False, True])
def test_errors_of_the_op(changed, message, graph):
    arguments = {"values": [["a", "b"]], "seeds": [0, 1], "num_bins": 9, "first": 0} | changed
    call = lambda: ops.largeout_category_hash(**arguments)  # noqa: E731
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        (tf.function(call) if graph else call)()


def test_errors_of_the_wrapper():
    words = tf.constant(["a"])
    with pytest.raises(TypeError, match=r"`values` must be strings or integers. Received: dtype=float32"):
        category_hash([tf.constant([1.5])], 9, [0])
    with pytest.raises(TypeError, match=r"dtype=bool"):
        xxhash64(tf.constant([True]))
    with pytest.raises(ValueError, match=r"`hash` must be one of .*Received: hash='md5'"):
        category_hash([words], 9, [0], "md5")
    with pytest.raises(ValueError, match=r"`num_bins` must be an integer of at least 2"):
        category_hash([words], 1, [0])
    with pytest.raises(ValueError, match=r"`seeds` must be one or more ints.*Received: seeds=\[\]"):
        category_hash([words], 9, [])
    with pytest.raises(ValueError, match=r"`seeds` .*Received: seeds=\[None\], hash='xxhash64'"):
        category_hash([words], 9, [None])
    with pytest.raises(ValueError, match=r"A seed must be an int from 0"):
        category_hash([words], 9, [-1])
