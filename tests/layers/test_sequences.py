"""`FeatureConfig.max_sequence_length` and `TableConfig.dtype`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl

TABLE = np.arange(20.0).reshape(10, 2).astype("float32")


def layer_of(length=3, **options):
    table = kl.layers.TableConfig("t", 10, 2, combiner=None, **options)
    feature = kl.layers.FeatureConfig("f", table, max_sequence_length=length)
    layer = kl.layers.DistributedEmbedding(feature)
    layer.build()
    layer.get_embedding_tables()["t"].assign(TABLE)
    return layer


ROWS = [[1, 2, 3, 4], [5], [], [6, 7, 8]]
WANT = np.stack([TABLE[[1, 2, 3]], TABLE[[5, 0, 0]], TABLE[[0, 0, 0]], TABLE[[6, 7, 8]]])
WANT[1, 1:] = WANT[2] = 0


def test_ragged_and_sparse_sequences():
    ragged = tf.ragged.constant(ROWS, dtype=tf.int64)
    layer = layer_of()
    for ids in (ragged, ragged.to_sparse()):
        got = layer(ids)
        assert got.shape == (4, 3, 2)
        np.testing.assert_array_equal(got, WANT)
    got = tf.function(layer)(ragged)
    np.testing.assert_array_equal(got, WANT)


def test_dense_sequences_and_a_mask():
    layer = layer_of(4, mask_zero=True)
    ids = tf.constant([[1, 2], [3, 0]])
    got = layer(ids)
    np.testing.assert_array_equal(got[:, :2], TABLE[ids.numpy()])
    np.testing.assert_array_equal(got[:, 2:], 0)
    assert layer.compute_mask(ids).numpy().tolist() == [
        [True, True, False, False],
        [True, False, False, False],
    ]
    ragged = layer.compute_mask(tf.ragged.constant([[1], [2, 0, 3]]))
    assert ragged.numpy().tolist() == [[True, False, False, False], [True, False, True, False]]


def test_in_a_functional_model(tmp_path):
    ids = keras.Input((None,), dtype="int64", ragged=True)
    layer = layer_of(3, mask_zero=True)
    rows = layer(ids)
    assert rows.shape == (None, 3, 2)
    model = kl.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
    model.compile(kl.optimizers.Adagrad(0.1), "mse")
    x = tf.ragged.constant(ROWS, dtype=tf.int64)
    model.fit(tf.data.Dataset.from_tensors((x, tf.zeros([4, 1]))), verbose=0)
    model.save(tmp_path / "m.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "m.keras")(x), model(x))


@pytest.mark.parametrize("kind", ["ragged", "sparse", "dense"])
def test_the_mask_of_a_functional_model(kind):
    """A GRU takes no step for padding: neither for that of the ids, nor for what was added or cut."""
    gru = keras.layers.GRU(2)
    for length in (3, 6):
        options = {kind: True} if kind != "dense" else {}
        ids = keras.Input((4,) if kind == "dense" else (None,), dtype="int64", **options)
        layer = layer_of(length, mask_zero=True)
        model = kl.Model(ids, gru(layer(ids)))
        x = tf.ragged.constant(ROWS, dtype=tf.int64)
        x = {"ragged": lambda x: x, "sparse": lambda x: x.to_sparse(), "dense": lambda x: x.to_tensor()}[
            kind
        ](x)
        got = model(x)
        for row, ids in zip(got, ROWS):
            rows = TABLE[ids[:length]].reshape(1, -1, 2)
            np.testing.assert_allclose(row, gru(rows)[0] if len(ids) else 0 * row, rtol=1e-5, atol=1e-6)


def test_a_table_has_a_dtype_of_its_own():
    tables = [kl.layers.TableConfig(n, 10, 2, dtype=d) for n, d in (("a", "bfloat16"), ("b", None))]
    layer = kl.layers.DistributedEmbedding([kl.layers.FeatureConfig(t.name, t) for t in tables])
    layer.build()
    assert {name: rows.dtype for name, rows in layer.get_embedding_tables().items()} == {
        "a": "bfloat16",
        "b": "float32",
    }
    a, b = layer([np.array([[1]]), np.array([[1]])])
    assert a.dtype == b.dtype == tf.float32
    copy = kl.layers.DistributedEmbedding.from_config(layer.get_config())
    assert copy.feature_configs[0].table.dtype == "bfloat16"


def test_what_is_refused():
    table = kl.layers.TableConfig("t", 10, 2)
    with pytest.raises(ValueError, match="`max_sequence_length` of feature 'f' must be None where bags are"):
        kl.layers.FeatureConfig("f", table, max_sequence_length=3)
    with pytest.raises(ValueError, match="must have rank 2, as its config has max_sequence_length=3"):
        layer_of()(tf.constant([1, 2]))
    with pytest.raises(ValueError, match="`max_sequence_length` must be a positive integer"):
        kl.layers.FeatureConfig("f", table, combiner=None, max_sequence_length=0)
