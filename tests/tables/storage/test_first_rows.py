"""The first values of single rows: from a seed and the row alone."""

import statistics

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.tables.stacked import StackedInitializer, sections_of
from keras_largeout.tables.storage.lazy_initializer import LazyInitializer

NORMAL = statistics.NormalDist()


def rows_of(initializer, rows=20_000, width=8, dtype="float32"):
    first = LazyInitializer.of(keras.initializers.get(initializer), (rows, width), dtype)
    return first(tf.range(rows, dtype=tf.int64)).numpy()


def test_uniform_values():
    values = rows_of(keras.initializers.RandomUniform(-0.05, 0.15, seed=1))
    assert values.min() >= -0.05 and values.max() < 0.15
    counts = np.histogram(values, 20, (-0.05, 0.15))[0]
    assert abs(counts / values.size - 0.05).max() < 0.003
    assert len(np.unique(values)) > 0.9 * values.size
    assert abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < 0.03
    assert abs(np.corrcoef(values[1:, 0], values[:-1, 0])[0, 1]) < 0.03


@pytest.mark.parametrize(("kind", "most"), [("RandomNormal", 6.0), ("TruncatedNormal", 2.0)])
def test_normal_values(kind, most):
    values = rows_of(getattr(keras.initializers, kind)(0.5, 0.1, seed=2)).reshape(-1)
    z = (values - 0.5) / 0.1
    assert abs(z).max() <= most + 1e-4
    below = NORMAL.cdf(-2) if most == 2 else 0.0
    for share in (0.05, 0.3, 0.5, 0.8, 0.99):
        want = NORMAL.inv_cdf(below + share * (1 - 2 * below))
        assert abs(np.quantile(z, share) - want) < 0.03, share


def test_scaled_by_the_shape():
    values = rows_of(keras.initializers.GlorotUniform(seed=3), 5000, 100)
    limit = np.sqrt(6 / 5100)
    assert limit * 0.99 < abs(values).max() <= limit


def test_constants():
    assert LazyInitializer.of(keras.initializers.Zeros(), (3, 2), "float32").are_zero
    assert not LazyInitializer.of(keras.initializers.Ones(), (3, 2), "float32").are_zero
    np.testing.assert_array_equal(rows_of(keras.initializers.Constant(0.1), 3, 2), np.full((3, 2), 0.1, "f4"))
    slot = LazyInitializer.of(keras.initializers.Constant(0.1), (3,), "float32")
    assert slot(tf.constant([2, 0], tf.int64)).shape == (2,)
    assert rows_of("uniform", dtype="bfloat16").dtype == tf.bfloat16.as_numpy_dtype


def test_a_row_alone_and_among_others():
    first = LazyInitializer.of(keras.initializers.RandomNormal(seed=4), (2**40, 5), "float32")
    rows = tf.constant([7, 2**39, 0, 7, 2**40 - 1], tf.int64)
    together = first(rows).numpy()
    for row, values in zip(rows, together):
        np.testing.assert_array_equal(tf.function(first)(row[None])[0], values)
    again = LazyInitializer([list(law) for law in first.laws], first.shape, first.dtype)
    np.testing.assert_array_equal(again(rows), together)
    other = LazyInitializer.of(keras.initializers.RandomNormal(seed=5), (2**40, 5), "float32")(rows)
    assert not np.any(other == together)


def test_sections_have_the_values_that_they_have_alone():
    sections = sections_of({"a": 30, "b": 20, "c": 50})
    laws = (
        keras.initializers.RandomUniform(seed=1),
        keras.initializers.Ones(),
        keras.initializers.RandomNormal(seed=2),
    )
    values = rows_of(StackedInitializer(laws, sections), 100, 3)
    for section, law in zip(sections, laws):
        np.testing.assert_array_equal(values[section.start : section.stop], rows_of(law, section.rows, 3))


def test_what_is_refused():
    for initializer in (keras.initializers.Orthogonal(), lambda shape, dtype=None: tf.zeros(shape)):
        with pytest.raises(ValueError, match="`initializer` of a table in files must be one of Keras's"):
            LazyInitializer.of(initializer, (4, 4), "float32")
