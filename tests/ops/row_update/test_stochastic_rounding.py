"""Rows of bfloat16 that are rounded stochastically: the bits of the reference, right in the mean."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from ops._row_update import HYPER, make

from keras_largeout.ops import random_bits, records
from keras_largeout.ops import row_update as ru
from keras_largeout.ops.embedding import update as eu

BFLOAT16 = ml_dtypes.bfloat16
ROUNDING = ru.rounding_numbers(5, 7, (3, 2, 1009), 11)


def run(rule, variable, slots, indices, values, hyper, rounding=ROUNDING):
    variable, slots = tf.Variable(variable), [tf.Variable(slot) for slot in slots]

    @tf.function
    def step():
        ru.row_update(rule, variable, slots, indices, values, hyper, rounding=rounding)

    step()
    return variable.numpy(), [slot.numpy() for slot in slots]


def assert_rounded_alike(got, want):
    """The same rows but for a neighbour where float32, rounded otherwise, is on the other side of a bit."""
    assert got.dtype == want.dtype == BFLOAT16
    steps = got.view("int16").astype(int) - want.view("int16").astype(int)
    assert np.abs(steps).max(initial=0) <= 1 and np.count_nonzero(steps) <= 0.01 * steps.size


@pytest.mark.parametrize("rule", ru.RULES)
@pytest.mark.parametrize("shape", [(57, 17), (57,), (1, 64), (40, 3, 5), (57, 4)])
def test_equals_reference(rng, device, rule, shape):
    variable, slots = make(rng, rule, shape, BFLOAT16)
    for n in (0, 1, 77):  # unsorted, with duplicates
        indices = rng.integers(0, shape[0], n)
        values = rng.normal(size=(n, *shape[1:])).astype("float32")
        arguments = rule, variable, slots, indices, values, HYPER[rule](0.01)
        got, got_slots = run(*arguments)
        want, want_slots = ru.row_update_reference(*arguments, rounding=ROUNDING.numpy())
        assert_rounded_alike(got, want)
        for a, b in zip(got_slots, want_slots):  # slots are float32: as without rounding
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        untouched = np.setdiff1d(np.arange(shape[0]), indices)
        np.testing.assert_array_equal(got[untouched], variable[untouched])


@pytest.mark.parametrize("rule", ["sgd", "row_wise_adagrad", "lazy_adam"])
def test_lookups_and_records_round_alike(rng, rule):
    variable, slots = make(rng, rule, (50, 6), BFLOAT16)
    # Without duplicates: a sum in float64 may be another bfloat16.
    ids, grad = rng.permutation(50)[:40], rng.normal(size=(40, 6)).astype(BFLOAT16)
    hyper = HYPER[rule](0.01)
    of_lookup, own_slots = tf.Variable(variable), [tf.Variable(slot) for slot in slots]
    nothing = tf.zeros([0], tf.int64), tf.zeros([0])
    lookup = eu.LookupGradient(tf.constant(ids), *nothing, tf.constant(grad))
    eu.embedding_update(rule, of_lookup, own_slots, lookup, hyper, ROUNDING)
    want, _ = eu.embedding_update_reference(
        rule, variable, slots, ids, grad, hyper, rounding=ROUNDING.numpy()
    )
    assert_rounded_alike(of_lookup.numpy(), want)

    width = 1 if rule == "row_wise_adagrad" else 6
    packed = np.zeros((50, records.record_words("bfloat16", 6) + len(slots) * width), "float32")
    packed[:, 1:4] = variable.view("float32")
    for k, slot in enumerate(slots):
        packed[:, 4 + k * width : 4 + (k + 1) * width] = slot.reshape(50, width)
    in_records = tf.Variable(packed)
    records.record_update(rule, in_records, ids, grad, hyper, "bfloat16", 6, ROUNDING)
    got, _ = run(rule, variable, slots, ids, grad, hyper)
    np.testing.assert_array_equal(in_records.numpy()[:, 1:4].view(BFLOAT16), got)
    want = records.record_update_reference(
        rule, packed, ids, grad, hyper, "bfloat16", 6, rounding=ROUNDING.numpy()
    )
    assert_rounded_alike(got, want[:, 1:4].copy().view(BFLOAT16))


def test_parts_of_a_table_have_the_bits_of_the_table(rng):
    variable, slots = make(rng, "adagrad", (60, 10), BFLOAT16)
    values, hyper = rng.normal(size=(60, 10)).astype("float32"), HYPER["adagrad"](0.0)
    want, _ = run("adagrad", variable, slots, np.arange(60), values, hyper, ru.rounding_numbers(5, 7))

    def part(rows, columns, numbers):
        mine = variable[rows][:, columns]
        own_slots = [slot[rows][:, columns] for slot in slots]
        got, _ = run(
            "adagrad", mine, own_slots, np.arange(len(mine)), values[rows][:, columns], hyper, numbers
        )
        np.testing.assert_array_equal(got, want[rows][:, columns])

    for shard in range(3):
        part(slice(shard, None, 3), slice(None), ru.rounding_numbers(5, 7, (3, shard, 0)))
        part(slice(20 * shard, 20 * shard + 20), slice(None), ru.rounding_numbers(5, 7, (1, 20 * shard, 0)))
        scattered = (np.arange(20) * 7 + shard) % 60
        part(scattered, slice(None), ru.rounding_numbers(5, 7, (7, shard, 60)))
    part(slice(None), slice(4, 10), ru.rounding_numbers(5, 7, first_column=4))
    others, _ = run("adagrad", variable, slots, np.arange(60), values, hyper, ru.rounding_numbers(6, 7))
    assert (others != want).any()


@pytest.mark.parametrize("rule", ru.RULES)
def test_the_mean_of_many_roundings_is_the_float32_value(rng, rule):
    copies = 2000  # rows that differ in their random bits alone
    variable, slots = make(rng, rule, (1, 9), BFLOAT16)
    values, hyper = rng.normal(size=(1, 9)).astype("float32"), HYPER[rule](0.01)
    want, _ = ru.row_update_reference(rule, variable.astype("float32"), slots, [0], values, hyper)
    many = [np.repeat(array, copies, axis=0) for array in (variable, values, *slots)]
    got, _ = run(rule, many[0], many[2:], np.arange(copies), many[1], hyper, ru.rounding_numbers(1, 2))
    got = got.astype("float64")
    below = np.floor(np.ldexp(want[0].astype("float64"), 8 - np.frexp(want[0])[1]))
    unit = np.ldexp(1.0, np.frexp(want[0])[1] - 8)
    assert set(np.unique(got / unit - below)) <= {0.0, 1.0}  # one of the two neighbours
    up = want[0] / unit - below
    deviation = np.sqrt(up * (1 - up) / copies) * unit
    assert np.all(np.abs(got.mean(axis=0) - want[0]) <= 5 * deviation + 1e-6)


def test_the_reference_rounds_to_a_neighbour():
    values = np.array([1.0, 1.001, -1.001, np.inf, -np.inf, 0.0, 3.3e38, np.nan], "float32")
    low = random_bits.round_stochastically(values, np.uint32(0)).astype("float32")
    high = random_bits.round_stochastically(values, np.uint32(0xFFFFFFFF)).astype("float32")
    np.testing.assert_array_equal(low[:6], [1, 1, -1, np.inf, -np.inf, 0])
    np.testing.assert_array_equal(high[:6], [1, 1.0078125, -1.0078125, np.inf, -np.inf, 0])
    assert np.isnan(low[-1]) and np.isnan(high[-1]) and np.isfinite(low[-2])


@pytest.mark.parametrize("position, bad", [(0, -1), (2, 50)])
def test_an_index_out_of_range_changes_nothing(rng, position, bad):
    data, _ = make(rng, "sgd", (50, 8), BFLOAT16)
    variable, indices = tf.Variable(data), np.array([3, 4, 4])
    indices[position] = bad
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"indices\[{position}\] = {bad}; nothing was"):
        ru.row_update("sgd", variable, [], indices, tf.ones((3, 8)), HYPER["sgd"](0.0), rounding=ROUNDING)
    np.testing.assert_array_equal(variable.numpy(), data)


@pytest.mark.parametrize(
    ("dtype", "rounding", "message", "inferred"),
    [
        ("float32", ROUNDING, "`rounding` must have the shape .0. where rows are not bfloat16", ""),
        ("bfloat16", [1, 2], r"`rounding` must have the shape \[0\], or \[6\].*\[2\]", ""),
        ("bfloat16", [[1]], r"`rounding` must have the shape \[0\], or \[6\].*\[1,1\]", "|must be rank 1"),
    ],
)
def test_what_rounding_must_be(dtype, rounding, message, inferred):
    variable, rounding = tf.Variable(tf.ones((10, 4), dtype)), tf.constant(rounding, tf.int64)

    def row_update(rounding):
        ru.row_update("sgd", variable, [], [1], tf.ones((1, 4)), HYPER["sgd"](0.0), rounding=rounding)

    def embedding_update(rounding):
        nothing = tf.zeros([0], tf.int64), tf.zeros([0])
        lookup = eu.LookupGradient(tf.constant([1]), *nothing, tf.ones((1, 4), dtype))
        eu.embedding_update("sgd", variable, [], lookup, HYPER["sgd"](0.0), rounding)

    def record_update(rounding):
        words = tf.Variable(tf.zeros([10, 5]))
        records.record_update("sgd", words, [1], tf.ones((1, 4)), HYPER["sgd"](0.0), dtype, 4, rounding)

    for call in (row_update, embedding_update, record_update):
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message + inferred):
            call(rounding)
        if call is not record_update:
            with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message + inferred):
                tf.function(call)(rounding)
            unknown = tf.function(call, input_signature=[tf.TensorSpec(None, tf.int64)])
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                unknown(rounding)
    assert (variable.numpy() == 1).all()
