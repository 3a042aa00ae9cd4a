"""Ids that a table has no row for, and strings: what `out_of_range` makes of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.ops.embedding.into_range import into_range
from keras_largeout.ops.mixing import mixed

ROWS = 10
IDS = np.array([0, 3, 9, 10, 27, -1, -12, 2**62], np.int64)


def split_mix(value):
    """The finalizer of SplitMix64, in Python's integers."""
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    value ^= value >> 31
    return value - 2**64 if value >= 2**63 else value


def rows_of(ids, how, padding):
    """A plain reference."""
    first = int(padding)
    moved = {
        "modulo": lambda i: first + i % (ROWS - first),
        "hash": lambda i: first + split_mix(i) % (ROWS - first),
        "default_row": lambda i: ROWS - 1,
    }[how]
    return [i if 0 <= i < ROWS else moved(i) for i in ids]


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("how", ["modulo", "hash", "default_row"])
def test_each_way(how, padding):
    want = rows_of(IDS.tolist(), how, padding)
    got = into_range(tf.constant(IDS), ROWS, how, padding).numpy()
    assert got.tolist() == want
    small = IDS[:-1].astype("int32")  # int32 ids too, and in a graph
    got = tf.function(lambda ids: into_range(ids, ROWS, how, padding))(tf.constant(small)).numpy()
    assert got.tolist() == want[:-1]


def test_mixing_is_split_mix():
    values = np.concatenate([IDS, np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 100)])
    assert mixed(tf.constant(values)).numpy().tolist() == [split_mix(int(v)) for v in values]


@pytest.mark.parametrize("mask", [None, ""])
def test_strings_get_the_ids_of_keras(mask):
    words = tf.constant([["a", "b", ""], ["", "tensor", "flow"]])
    want = keras.layers.Hashing(ROWS, mask_value=mask)(words)
    got = into_range(words, ROWS, "hash", padding=mask == "")
    np.testing.assert_array_equal(got, want)


def test_ragged_and_sparse_ids():
    ragged = tf.RaggedTensor.from_row_lengths(tf.constant(IDS), [3, 0, 5])
    want = rows_of(IDS.tolist(), "modulo", False)
    assert into_range(ragged, ROWS, "modulo").flat_values.numpy().tolist() == want
    assert into_range(ragged.to_sparse(), ROWS, "modulo").values.numpy().tolist() == want


@pytest.mark.parametrize("devices", [1, 2])
def test_layers(devices, tmp_path):
    """A table of the numbers of its rows: what is looked up is the row that was found."""
    table = np.arange(ROWS * 2.0).reshape(ROWS, 2).astype("float32")
    ways = ["modulo", "hash", "default_row"]
    with strategy_of(devices).scope():
        single = kl.layers.ShardedEmbedding(ROWS, 2, out_of_range="hash", weights=table, placement="modulo")
        tables = [kl.layers.TableConfig(how, ROWS, 2, out_of_range=how, combiner=None) for how in ways]
        layer = kl.layers.DistributedEmbedding(
            [kl.layers.FeatureConfig(t.name, t) for t in tables], placement="modulo"
        )
        inputs = [keras.Input((2,), dtype="int64", name=how) for how in ways]
        model = kl.Model(inputs, layer(inputs))
        for rows in layer.get_embedding_tables().values():
            rows.assign(table)
    ids = IDS.reshape(4, 2)
    want = {how: table[rows_of(IDS.tolist(), how, False)].reshape(4, 2, 2) for how in ways}
    if devices == 1:
        np.testing.assert_array_equal(single(ids), want["hash"])
    for how, got in zip(ways, model.predict([ids] * 3, verbose=0)):
        np.testing.assert_array_equal(got, want[how], err_msg=how)
    kl.export_saved_model(model, tmp_path / "export")
    served = tf.saved_model.load(str(tmp_path / "export"))
    found = served.serve(*[tf.constant(ids)] * 3)
    for i, how in enumerate(ways):
        np.testing.assert_array_equal(found[f"output_{i}"], want[how], err_msg=how)


def test_strings_in_a_model(tmp_path):
    keras.utils.set_random_seed(0)
    words = keras.Input((2,), dtype="string", name="words")
    rows = kl.layers.ShardedEmbedding(50, 3, mask_zero=True, combiner="mean", out_of_range="hash")(words)
    model = kl.Model(words, keras.layers.Dense(1)(rows))
    model.compile("adam", "mse")
    x, y = np.array([["a", "b"], ["c", ""], ["", ""]], object), np.array([1.0, 2.0, 3.0])
    x = tf.constant(x.tolist())
    first = model.train_on_batch(x, y)
    for _ in range(5):
        last = model.train_on_batch(x, y)
    assert last < first
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    kl.export_saved_model(model, tmp_path / "export")
    served = tf.saved_model.load(str(tmp_path / "export"))
    np.testing.assert_allclose(served.serve(x)["output_0"], model.predict(x, verbose=0), rtol=1e-6)
    mask = kl.layers.ShardedEmbedding(50, 3, mask_zero=True, out_of_range="hash").compute_mask(x)
    assert mask.numpy().tolist() == [[True, True], [True, False], [False, False]]


def test_a_table_says_for_itself():
    strict, lax = (
        kl.layers.TableConfig(n, ROWS, 2, out_of_range=w) for n, w in (("s", "error"), ("l", None))
    )
    layer = kl.layers.DistributedEmbedding(
        [kl.layers.FeatureConfig(t.name, t) for t in (strict, lax)], out_of_range="zero"
    )
    assert len(layer.fused_tables) == 1
    good, bad = np.array([[1]]), np.array([[ROWS]])
    layer([good, bad])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"feature 's' must lie in \[0, 10\)"):
        layer([bad, good])
    copy = kl.layers.DistributedEmbedding.from_config(layer.get_config())
    assert [f.table.out_of_range for f in copy.feature_configs] == ["error", None]


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"`out_of_range` must be one of .* Received: out_of_range='wrap'"):
        kl.layers.ShardedEmbedding(ROWS, 2, out_of_range="wrap")
    with pytest.raises(ValueError, match=r"`out_of_range` must be one of .* Received: out_of_range='wrap'"):
        kl.layers.TableConfig("t", ROWS, 2, out_of_range="wrap")
    with pytest.raises(ValueError, match="`out_of_range` must be 'hash' where ids are strings"):
        kl.layers.ShardedEmbedding(ROWS, 2, out_of_range="modulo")(tf.constant(["a"]))


@pytest.mark.parametrize("kind", ["integers", "strings", "vocabulary"])
def test_masks_in_a_functional_model(kind, tmp_path):
    """What is padding does not change what a recurrent layer returns."""
    x = np.array([[3, 5, 0, 0], [1, 0, 0, 0]])
    if kind != "integers":
        x = tf.constant([["c", "e", "", ""], ["a", "", "", ""]])
    items = kl.layers.DynamicVocabulary(16, mask_value="") if kind == "vocabulary" else None
    table = kl.layers.ShardedEmbedding(
        items.vocabulary_size() if items else ROWS,
        3,
        mask_zero=True,
        out_of_range="error" if kind == "integers" else "hash",
        vocabulary=items,
    )
    ids = keras.Input((None,), dtype="int32" if kind == "integers" else "string")
    model = kl.Model(ids, keras.layers.GRU(4)(table(ids)))
    got = model(x)
    np.testing.assert_allclose(got[1], model(x[1:, :1])[0], rtol=1e-5)
    np.testing.assert_allclose(got[0], model(x[:1, :2])[0], rtol=1e-5)
    model.save(tmp_path / "m.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "m.keras")(x), got)
