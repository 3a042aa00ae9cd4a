"""Lookups in the rows of records: those of a table, to the bit."""

import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.files.record_marks import record_marks
from keras_largeout.ops import records as rec
from keras_largeout.ops._library import ops
from keras_largeout.ops.embedding.wrapper import embedding_lookup

pytestmark = pytest.mark.usefixtures("on_cpu")

ROWS = 50
NO_SPLITS = np.zeros(0, np.int64)
SPLITS = np.array([0, 3, 3, 7, 12])
WRONG = (tf.errors.InvalidArgumentError, ValueError)


def twins(rng, dtype, dim, more=5):
    """A table, and its rows in records."""
    table = tf.cast(rng.normal(size=(ROWS, dim)), dtype)
    words = rec.record_words(dtype, dim)
    records = np.full((ROWS, words + more), np.nan, np.float32)
    row_bytes = dim * table.dtype.size
    records.view(np.uint8)[:, 4 : 4 + row_bytes] = table.numpy().view(np.uint8).reshape(ROWS, row_bytes)
    records[:, 0] = record_marks(records[:, 1:], np.arange(ROWS))
    return tf.Variable(table), tf.Variable(records)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "splits", "combiner"),
    [
        ((4, 3), NO_SPLITS, None),
        ((), NO_SPLITS, None),
        ((4, 3), NO_SPLITS, "sum"),
        ((12,), SPLITS, "mean"),
        ((12,), SPLITS, "sqrtn"),
        ((0,), NO_SPLITS, None),
        ((0, 3), NO_SPLITS, "sum"),
    ],
    ids=str,
)
def test_bits_of_a_table(rng, dtype, shape, splits, combiner):
    table, records = twins(rng, dtype, dim := 5)
    ids = tf.constant(rng.integers(-2, ROWS + 2, shape), rng.choice(["int32", "int64"]))
    rows = None if not len(splits) else splits
    want = embedding_lookup(table, ids, rows, combiner=combiner, out_of_range="zero")
    got, written = rec.record_lookup(records, ids, splits, combiner, "zero", dtype, dim)
    assert written.numpy()
    np.testing.assert_array_equal(tf.cast(got, tf.float32), tf.cast(want, tf.float32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_weights(rng, dtype):
    table, records = twins(rng, dtype, 7)
    ids, weights = rng.integers(0, ROWS, (6, 4)), rng.normal(size=(6, 4)).astype("float32")
    want = embedding_lookup(table, ids, weights=weights, combiner="mean")
    got = ops.largeout_record_lookup(
        records.handle, ids, NO_SPLITS, weights, combiner="mean", dtype=table.dtype, dim=7
    )
    np.testing.assert_array_equal(tf.cast(got.output, tf.float32), tf.cast(want, tf.float32))


def test_rows_that_were_never_written(rng):
    _, records = twins(rng, "float32", 4)
    records.assign(tf.tensor_scatter_nd_update(records, [[7, 0]], [0.0]))

    def written(ids):
        return rec.record_lookup(records, ids, NO_SPLITS, None, "zero", "float32", 4)[1].numpy()

    assert written(np.delete(np.arange(ROWS), 7))
    assert not written([3, 7, 3])
    assert written([-1, ROWS, 1 << 20])  # those that are dropped are not looked at
    assert written(np.zeros(0, np.int64))


def test_wrong_calls(rng):
    _, records = twins(rng, "float32", 4)

    def call(variable=records, ids=(1, 2), splits=NO_SPLITS, combiner=None, out_of_range="error", dim=4):
        ids = tf.constant(ids, tf.int64)
        return rec.record_lookup(variable, ids, splits, combiner, out_of_range, "float32", dim)

    call()
    with pytest.raises(WRONG, match=r"ids\[1\] = 50|50"):
        call(ids=(1, ROWS))
    with pytest.raises(WRONG, match="must have at least 12 words in a record"):
        call(dim=11)
    with pytest.raises(WRONG, match=r"must have the shape \[rows, words\]"):
        call(variable=tf.Variable(tf.zeros([3])))
    with pytest.raises(WRONG, match="row_splits"):
        call(splits=SPLITS)
    with pytest.raises(WRONG, match="row_splits"):
        call(splits=np.array([0, 5]), combiner="sum")


def test_shape_function():
    variable = tf.Variable(tf.zeros([ROWS, 9]), shape=[ROWS, None])

    @tf.function
    def shapes(ids, splits):
        one, written = rec.record_lookup(variable, ids, NO_SPLITS, None, "error", "bfloat16", 5)
        bags = rec.record_lookup(variable, ids, NO_SPLITS, "sum", "error", "float32", 5)[0]
        ragged = rec.record_lookup(variable, ids[:, 0], splits, "sum", "error", "float32", 5)[0]
        assert (one.shape, written.shape) == ([None, 3, 5], []), one.shape
        assert (bags.shape, ragged.shape) == ([None, 5], [2, 5])
        assert one.dtype == tf.bfloat16
        return bags

    shapes.get_concrete_function(tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([3], tf.int64))
