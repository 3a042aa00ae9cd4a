"""The combiner "max" in layers: kinds of ids, padding, export, gradients, and where the rows are."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.ops.embedding.wrapper import embedding_lookup_reference
from keras_largeout.ops.export_mode import stock_ops

ROWS, DIM = 9, 3
IDS = tf.ragged.constant([[1, 2, 2], [], [8, 0, 3]], dtype=tf.int64)


def table_of(rng):
    return (rng.normal(size=(ROWS, DIM)) - 2).astype("float32")  # mostly negative: zeros would win


def sharded(rng, **options):
    return kl.layers.ShardedEmbedding(ROWS, DIM, weights=table_of(rng), combiner="max", **options)


def distributed(rng, **options):
    table = kl.layers.TableConfig("t", ROWS, DIM, combiner="max", **options)
    layer = kl.layers.DistributedEmbedding(kl.layers.FeatureConfig("f", table))
    layer.build()
    layer.get_embedding_tables()["t"].assign(table_of(rng))
    return layer


def rows_of(layer):
    if isinstance(layer, kl.layers.ShardedEmbedding):
        return layer.table.numpy()
    return layer.get_embedding_tables()["t"].numpy()


LAYERS = pytest.mark.parametrize("layer_of", [sharded, distributed])


@LAYERS
@pytest.mark.parametrize("stock", [False, True], ids=["custom", "stock"])
@pytest.mark.parametrize("padding", [False, True])
def test_kinds_of_ids(rng, layer_of, stock, padding):
    layer = layer_of(rng, mask_zero=padding)
    flat, splits = IDS.flat_values.numpy(), IDS.row_splits.numpy()
    kept = (flat != 0).astype("float32") if padding else None
    want = embedding_lookup_reference(rows_of(layer), flat, splits, kept, combiner="max")
    dense = np.array([[1, 2], [0, 0]])
    kept = (dense != 0).astype("float32") if padding else None
    want_dense = embedding_lookup_reference(rows_of(layer), dense, None, kept, combiner="max")
    with stock_ops() if stock else tf.name_scope("custom"):
        np.testing.assert_allclose(layer(IDS), want, rtol=1e-6)
        np.testing.assert_allclose(layer(IDS.to_sparse()), want, rtol=1e-6)
        np.testing.assert_allclose(layer(dense), want_dense, rtol=1e-6)


@LAYERS
def test_ids_outside_the_table(rng, layer_of):
    ids = np.array([[1, 9], [-1, 77]])
    want = embedding_lookup_reference(rows_of(layer_of(rng)), ids, combiner="max", out_of_range="zero")
    layer = layer_of(rng, out_of_range="zero")
    want[0] = rows_of(layer)[1]
    np.testing.assert_allclose(layer(ids), want, rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Received: .*(9|-1|77)"):
        layer_of(rng)(ids)


@LAYERS
def test_weights_are_refused(rng, layer_of):
    ids = np.array([[1, 2]])
    with pytest.raises(ValueError, match=r"`weights`.* must be None with combiner='max'.*Received: weights"):
        layer_of(rng)(ids, weights=np.ones([1, 2], "float32"))


def trained(layer, strategy=None):
    """The table after steps of lazy Adam on ragged bags, some of them empty."""
    rng = np.random.default_rng(3)
    ids = rng.integers(0, ROWS, (32, 4)) * (np.arange(4) < rng.integers(0, 5, (32, 1)))
    with (strategy or strategy_of(1)).scope():
        layer = layer()
        inputs = keras.Input((4,), dtype="int32")
        model = kl.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(layer(inputs)))
        model.compile(kl.optimizers.LazyAdam(0.1), "mse")
    model.fit(ids, rng.normal(size=32), batch_size=8, shuffle=False, verbose=0)
    table = rows_of(layer)
    kl.close_files(model)
    return table


class Gathered(keras.layers.Layer):
    """The same in TensorFlow's ops: what `sharded` has to learn."""

    def __init__(self, rows):
        super().__init__()
        self.table = self.add_weight(shape=rows.shape, initializer=lambda *_, **__: rows)

    def call(self, ids):
        kept, rows = (ids != 0)[..., None], keras.ops.take(self.table, ids, axis=0)
        largest = tf.reduce_max(tf.where(kept, rows, -1e9), axis=1)
        return tf.where(tf.reduce_any(kept, axis=1), largest, 0.0)


@pytest.mark.parametrize("place", ["device", "host", "file"])
def test_training_where_the_rows_are(rng, place, tmp_path):
    state = rng.bit_generator.state

    def layer():
        rng.bit_generator.state = state
        storage = f"file:{tmp_path}" if place == "file" else place
        return sharded(rng, mask_zero=True, storage=storage, name="words")

    rng.bit_generator.state = state
    rows = table_of(rng)
    data = np.random.default_rng(3)
    ids = data.integers(0, ROWS, (32, 4)) * (np.arange(4) < data.integers(0, 5, (32, 1)))
    inputs = keras.Input((4,), dtype="int32")
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(Gathered(rows)(inputs)))
    model.compile(kl.optimizers.LazyAdam(0.1), "mse")
    model.fit(ids, data.normal(size=32), batch_size=8, shuffle=False, verbose=0)
    np.testing.assert_allclose(trained(layer), model.layers[1].table.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("placement", ["modulo", "columns"])
def test_two_devices(rng, placement):
    state = rng.bit_generator.state

    def layer(**options):
        rng.bit_generator.state = state
        return sharded(rng, mask_zero=True, **options)

    one = trained(layer)
    two = trained(lambda: layer(placement=placement), strategy_of(2))
    np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)


@LAYERS
def test_export(rng, layer_of, tmp_path):
    layer = layer_of(rng, mask_zero=True)
    inputs = keras.Input((3,), dtype="int32")
    model = kl.Model(inputs, layer(inputs))
    ids = np.array([[1, 0, 3], [0, 0, 0]], "int32")
    kl.export_saved_model(model, str(tmp_path / "model"))
    served = tf.saved_model.load(str(tmp_path / "model"))
    (got,) = served.serve(ids).values()
    np.testing.assert_allclose(got, model.predict(ids, verbose=0), rtol=1e-6)
