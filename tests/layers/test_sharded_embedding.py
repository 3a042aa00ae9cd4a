"""`ShardedEmbedding` beyond what Keras's own Embedding can do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.layers.sharded_embedding import ShardedEmbedding
from keras_largeout.ops.embedding.wrapper import embedding_lookup_reference
from keras_largeout.ops.export_mode import stock_ops


def _layer(rng, rows=9, dim=3, **kwargs):
    return ShardedEmbedding(rows, dim, weights=rng.normal(size=(rows, dim)).astype("float32"), **kwargs)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("stock", [False, True], ids=["custom", "stock"])
def test_combiners_of_dense_ragged_and_sparse_ids(rng, combiner, stock):
    layer = _layer(rng, combiner=combiner)
    table = layer.embeddings.numpy()
    ragged = tf.ragged.constant([[1, 2, 2], [], [8]], dtype=tf.int64)
    weights = ragged.with_flat_values(tf.constant([0.5, 2.0, 1.0, 3.0]))
    want = embedding_lookup_reference(
        table, ragged.flat_values, ragged.row_splits, weights.flat_values, combiner=combiner
    )

    def check(got):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)

    with stock_ops() if stock else tf.name_scope("custom"):
        check(layer(ragged, weights=weights))
        check(layer(ragged.to_sparse(), weights=weights.to_sparse()))
        dense = layer(np.array([[1, 2], [3, 3]]), weights=np.array([[1.0, 2.0], [0.0, 4.0]]))
    want = embedding_lookup_reference(
        table, [[1, 2], [3, 3]], weights=[[1.0, 2.0], [0.0, 4.0]], combiner=combiner
    )
    check(dense)


@pytest.mark.parametrize("stock", [False, True], ids=["custom", "stock"])
def test_padding_is_left_out_of_bags(rng, stock):
    layer = _layer(rng, combiner="mean", mask_zero=True)
    table = layer.embeddings.numpy()
    with stock_ops() if stock else tf.name_scope("custom"):
        got = layer(np.array([[1, 0, 3], [0, 0, 0]]))
        ragged = layer(tf.ragged.constant([[1, 0, 3], [0]]))
        sparse = layer(tf.ragged.constant([[1, 0, 3], [0]]).to_sparse())
        weighed = layer(np.array([[1, 0, 3], [0, 0, 0]]), weights=np.array([[1.0, 5.0, 3.0], [1.0] * 3]))
    want = np.stack([(table[1] + table[3]) / 2, np.zeros(3)])
    for result in (got, ragged, sparse):
        np.testing.assert_allclose(result, want, rtol=1e-6)
    np.testing.assert_allclose(weighed, [(table[1] + 3 * table[3]) / 4, np.zeros(3)], rtol=1e-6)
    assert layer.compute_mask(np.array([[1, 0]])) is None


def test_out_of_range(rng):
    ids = np.array([[1, 9], [-1, 2]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="9"):
        _layer(rng)(ids)
    layer = _layer(rng, out_of_range="zero")
    got, table = layer(ids).numpy(), layer.embeddings.numpy()
    np.testing.assert_array_equal(got, [[table[1], np.zeros(3)], [np.zeros(3), table[2]]])


def test_training_touches_the_rows_of_the_batch_only(rng):
    layer = _layer(rng, rows=50)
    before = layer.embeddings.numpy()
    model = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    ids = rng.integers(0, 20, (32, 4))
    model.fit(ids, rng.normal(size=32), verbose=0)
    changed = np.flatnonzero((layer.embeddings.numpy() != before).any(1))
    np.testing.assert_array_equal(changed, np.unique(ids))


def test_gradient_is_unique_rows(rng):
    layer = _layer(rng)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(np.array([[5, 2], [5, 5]])))
    gradient = tape.gradient(total, layer.trainable_variables)[0]
    np.testing.assert_array_equal(gradient.indices, [2, 5])
    np.testing.assert_array_equal(gradient.values, [[1] * 3, [3] * 3])


def test_regularizer_costs_the_rows_of_the_batch(rng):
    layer = _layer(rng, embeddings_regularizer=keras.regularizers.L2(0.5))
    layer(np.array([[4, 4], [7, 4]]))
    want = 0.5 * np.sum(layer.embeddings.numpy()[[4, 7]] ** 2)
    np.testing.assert_allclose(layer.losses, [want], rtol=1e-6)


@pytest.mark.parametrize("subclassed", [False, True])
def test_save_and_load(tmp_path, rng, subclassed):
    ids = rng.integers(0, 9, (8, 4))
    model = keras.Sequential([ShardedEmbedding(9, 3, combiner="mean"), keras.layers.Dense(1)])
    if not subclassed:
        model.build((None, 4))
    model.compile("sgd", "mse")
    model.fit(ids, np.ones(8), verbose=0)  # a Sequential without a shape builds inside fit
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.predict(ids, verbose=0), model.predict(ids, verbose=0))
    model.save_weights(tmp_path / "m.weights.h5")
    loaded.layers[0].embeddings.assign(np.zeros((9, 3)))
    loaded.load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(loaded.layers[0].embeddings.numpy(), model.layers[0].embeddings.numpy())


def test_loads_what_keras_embedding_saved():
    stock, store = keras.layers.Embedding(9, 3), {}
    stock.build()
    stock.save_own_variables(store)
    layer = ShardedEmbedding(9, 3)
    layer.build()
    layer.load_own_variables({key: np.asarray(value) for key, value in store.items()})
    np.testing.assert_array_equal(layer.embeddings.numpy(), np.asarray(stock.embeddings))


def test_weights_of_another_size(tmp_path):
    small, large = (keras.Sequential([ShardedEmbedding(n, 3, name="e")]) for n in (9, 10))
    for model in (small, large):
        model.build((None, 4))
    small.save_weights(tmp_path / "e.weights.h5")
    before = large.layers[0].embeddings.numpy()
    with pytest.raises(ValueError, match=r"does not fit `embeddings`: expected shape \(10, 3\)"):
        large.load_weights(tmp_path / "e.weights.h5")
    np.testing.assert_array_equal(large.layers[0].embeddings.numpy(), before)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "bfloat16"])
def test_dtype_policies(rng, policy):
    layer = ShardedEmbedding(9, 3, dtype=policy)
    out = layer(np.array([[1, 2]]))
    assert keras.backend.standardize_dtype(out.dtype) == policy.removeprefix("mixed_")
    assert layer.embeddings.dtype == ("bfloat16" if policy == "bfloat16" else "float32")


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"`combiner` must be one of .* Received: combiner='min'"):
        ShardedEmbedding(3, 2, combiner="min")
    with pytest.raises(ValueError, match=r"`out_of_range` must be one of .* Received: out_of_range='clip'"):
        ShardedEmbedding(3, 2, out_of_range="clip")
    with pytest.raises(ValueError, match=r"`dtype` of a table must be float32 or bfloat16"):
        ShardedEmbedding(3, 2, dtype="float16").build()
    with pytest.raises(ValueError, match=r"`value` must have the shape of the table"):
        ShardedEmbedding(3, 2, weights=np.zeros((2, 2)))


def test_empty_batch(rng):
    assert _layer(rng)(np.zeros([0, 4], "int32")).shape == (0, 4, 3)
    assert _layer(rng, combiner="mean")(np.zeros([0, 4], "int32")).shape == (0, 3)
    np.testing.assert_array_equal(_layer(rng, combiner="mean")(np.zeros([2, 0], "int32")), np.zeros((2, 3)))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_sequential_without_an_input_keeps_large_ids(policy):
    rows = 2**24 + 10 if policy == "float32" else 5000
    layer = ShardedEmbedding(rows, 1, embeddings_initializer="zeros", dtype=policy)
    model = keras.Sequential([layer, keras.layers.Flatten()])
    ids = np.arange(rows - 9, rows, dtype="int32")[:, None]
    layer.build()
    layer.embeddings.value.scatter_update(
        tf.IndexedSlices(np.arange(1.0, 10)[:, None].astype("float32"), ids[:, 0])
    )
    np.testing.assert_array_equal(model.predict(ids, verbose=0)[:, 0], np.arange(1.0, 10))


def test_ids_of_other_integer_types(rng):
    layer = _layer(rng)
    want = layer(np.array([[1, 8]]))
    for dtype in ("uint8", "int16", "uint32", "int64", "float32"):
        np.testing.assert_array_equal(layer(np.array([[1, 8]], dtype)), want)
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(2**32 + 1)):
        layer(np.array([[2**32 + 1]], "uint64"))
    assert ShardedEmbedding(np.int64(4), np.int32(2)).get_config()["input_dim"] == 4
