"""A model whose tables are on several devices leaves as the SavedModel that one device writes."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from _mirrored import LENGTH, VOCAB, data, fit, model_of, tables
from _tables import strategy_of
from _training import in_the_suite

import keras_largeout as kl
from keras_largeout.ops.tree_softmax import stock_top_k
from keras_largeout.planning.placement import Placement
from keras_largeout.tables import chunks
from keras_largeout.tables import export_proxy as proxy_variable

PLACEMENTS = {
    "permutation": "permutation",
    "columns": "columns",
    "hot": Placement.by_modulo(VOCAB, 3).with_hot_rows([0, 1, 2, 50]),
}


def assert_same(found, expected):
    np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found["ids"], expected["ids"])


@pytest.mark.parametrize("kind", in_the_suite(PLACEMENTS, "columns", "hot"))
def test_served_as_trained(kind, monkeypatch, tmp_path):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4 * 6 * 10)  # several slices a table,
    monkeypatch.setattr(proxy_variable, "_FILE_BYTES", 2000)  # and several files of them
    monkeypatch.setattr(stock_top_k, "_DENSE_CLASSES", 0 if kind == "hot" else 10**6)
    model = model_of(3, lambda: kl.optimizers.LazyAdam(0.05), PLACEMENTS[kind])
    fit(model, data()[:2])
    with strategy_of(3).scope():
        serving = model.get_layer("next").predictor(model, k=5)
    tokens = data(1, seed=2)[0][:5]
    expected = {name: np.array(values) for name, values in serving(tokens).items()}

    kl.export_saved_model(serving, tmp_path / "outside")
    with strategy_of(3).scope():
        kl.export_saved_model(serving, tmp_path / "inside")
    fit(model, data(1)[:2])  # neither the files nor the model have anything of the other
    for path in (tmp_path / "outside", tmp_path / "inside"):
        assert b"Largeout" not in (path / "saved_model.pb").read_bytes()
        loaded = tf.saved_model.load(str(path))
        assert_same(loaded.serve(tokens), expected)
        assert_same(loaded.signatures["serving_default"](tokens=tf.constant(tokens)), expected)
    assert np.abs(expected["scores"] - serving(tokens)["scores"]).max() > 1e-4


def test_each_table_is_one_variable(tmp_path):
    model = model_of(3, lambda: kl.optimizers.SGD(0.1))
    kl.export_saved_model(model.get_layer("next").predictor(model, k=5), tmp_path / "1")
    prefix = str(tmp_path / "1/variables/variables")
    reader = tf.train.load_checkpoint(prefix)
    saved = {tuple(shape): name for name, shape in tf.train.list_variables(prefix)}
    for table in tables(model).values():
        np.testing.assert_array_equal(reader.get_tensor(saved[table.shape]), table.numpy())
    assert {p.name.split(".")[0] for p in pathlib.Path(prefix).parent.iterdir()} == {"variables"}
    assert [p.name for p in tmp_path.iterdir()] == ["1"]  # nothing is left of the work


def test_ids_out_of_range_give_zeros(tmp_path):
    with strategy_of(2).scope():
        tokens = keras.Input((LENGTH,), dtype="int32")
        bag = kl.layers.ShardedEmbedding(9, 2, combiner="sum", placement="range")
        model = keras.Model(tokens, bag(tokens))
    kl.export_saved_model(model, tmp_path / "1")
    ids = np.array([[-1, 9, 2, 8]], np.int32)
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    table = bag.table.numpy()
    np.testing.assert_allclose(loaded.serve(ids)["output_0"][0], table[2] + table[8], rtol=1e-6)


def test_parts_are_no_variable_otherwise():
    with strategy_of(2).scope():
        layer = kl.layers.ShardedEmbedding(9, 2, placement="range")
        layer.build()
    with pytest.raises(ValueError, match=r"not one variable\. Received: 'embeddings', in 2 parts"):
        _ = layer.table.variable
