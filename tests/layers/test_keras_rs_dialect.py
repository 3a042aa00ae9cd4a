"""What code that was written for `keras_rs.layers.DistributedEmbedding` says, and ours takes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.layers import DistributedEmbedding, FeatureConfig, TableConfig

ROWS, DIM, BATCH = 23, 7, 8
RAGGED = [[1], [2, 3, 4, 5]] * (BATCH // 2)


def table(**options):
    return TableConfig("table", ROWS, DIM, **options)


def feature(columns, **options):
    return FeatureConfig("feature", table(**options), (BATCH, columns), (BATCH, DIM))


def of_kind(kind, values):
    """Values of ragged rows as a tensor of that kind, not wider than they are."""
    ragged = tf.ragged.constant(values)
    return {"ragged": ragged, "sparse": ragged.to_sparse()}[kind]


def combined(rows, ids, weights, combiner):
    """The reference, bag by bag, float64."""
    out = []
    for bag, w in zip(ids, weights):
        w = np.asarray(w, np.float64)
        total = (rows[bag] * w[:, None]).sum(0)
        norm = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
        out.append(total / norm)
    return np.array(out)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["flat", "column", "ragged", "sparse"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_numbers(combiner, kind, weighted):
    flat = kind in ("flat", "column")
    layer = DistributedEmbedding(feature(1 if flat else 13, combiner=combiner))
    ids = [[2], [3]] * (BATCH // 2) if flat else RAGGED
    weights = [[float(1 + n) for n in range(len(bag))] for bag in ids]
    if flat:
        arrays = [np.array(ids, "int32"), np.array(weights, "float32") * 3]
        weights = arrays[1]
        arrays = [array[:, 0] for array in arrays] if kind == "flat" else arrays
    else:
        arrays = [of_kind(kind, ids), of_kind(kind, weights)]
    arrays, weights = (arrays, weights) if weighted else (arrays[:1], [[1.0] * len(bag) for bag in ids])
    got = layer(*arrays)
    rows = np.asarray(layer.get_embedding_tables()["table"])
    np.testing.assert_allclose(got, combined(rows, ids, weights, combiner), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(layer(layer.preprocess(*arrays)), got)


def test_what_a_shape_still_refuses():
    """Another rank; and without a combiner another length, which bags may have."""
    for ids in (np.ones((BATCH, 2, 13)), np.ones(BATCH)):
        with pytest.raises(ValueError, match=r"must have the shape that its config says"):
            DistributedEmbedding(feature(13))(ids)
    single = FeatureConfig("feature", table(combiner=None), (BATCH, 13))
    for ids in (np.ones((BATCH, 2)), tf.sparse.from_dense(np.ones((BATCH, 14), "int32"))):
        with pytest.raises(ValueError, match=r"must have the shape that its config says"):
            DistributedEmbedding(single)(ids)
    for length in (2, 14):
        assert DistributedEmbedding(feature(13))(np.ones((BATCH, length))).shape == (BATCH, DIM)


@pytest.mark.parametrize("weighted", [False, True])
def test_preprocessed_inputs_in_a_model(weighted, tmp_path):
    configs = {"group": {"a": feature(2), "b": feature(2)}}
    layer = DistributedEmbedding(configs)
    ids = keras.tree.map_structure(lambda f: keras.Input((2,), dtype="int32"), configs)
    weights = keras.tree.map_structure(lambda f: keras.Input((2,)), configs) if weighted else None
    out = layer(layer.preprocess(ids, weights))
    x = keras.layers.Concatenate()(keras.tree.flatten(out))
    model = keras.Model((ids, weights) if weighted else ids, keras.layers.Dense(1)(x))
    model.compile("adam", "mse")
    rng = np.random.default_rng(0)
    data = keras.tree.map_structure(lambda f: rng.integers(0, ROWS, (BATCH, 2)), configs)
    if weighted:
        data = (data, keras.tree.map_structure(lambda f: rng.random((BATCH, 2), "float32"), configs))
    before = model.predict(data, verbose=0)
    model.fit(data, np.ones((BATCH, 1)), verbose=0)
    assert not np.allclose(model.predict(data, verbose=0), before)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(data, verbose=0), model.predict(data, verbose=0))


def test_preprocess_refuses_another_structure():
    layer = DistributedEmbedding({"a": feature(2)})
    ids = np.ones((BATCH, 2), "int32")
    with pytest.raises(ValueError, match="`inputs` must have the structure"):
        layer.preprocess({"b": ids})
    with pytest.raises(ValueError, match="`weights` must have the structure"):
        layer.preprocess({"a": ids}, {"b": ids})


def test_configs_are_equal_if_they_say_the_same():
    assert table() == table() and hash(table()) == hash(table())
    assert feature(2) == feature(2) and hash(feature(2)) == hash(feature(2))
    others = [
        {"combiner": "sum"},
        {"initializer": "uniform"},
        {"max_ids_per_partition": 3},
        {"max_unique_ids_per_partition": 3},
        {"placement": "modulo"},
        {"placement": kl.distribute.Placement.by_permutation(ROWS, 2)},
    ]
    for options in others:
        assert table(**options) != table()
        assert feature(2, **options) != feature(2)
        if options.get("placement", "modulo") == "modulo":
            assert TableConfig.from_config(table(**options).get_config()) == table(**options)
    assert feature(2) != feature(3) and table() != "table"
    layer = DistributedEmbedding([feature(2), feature(2)])
    again = keras.layers.deserialize(keras.layers.serialize(layer))
    assert again.feature_configs == layer.feature_configs
    assert len(again.fused_tables) == 1
    assert DistributedEmbedding.has_sparsecores() is False


def test_equal_tables_of_a_loaded_model_are_one(tmp_path):
    """Also such as have optimizers, which Keras numbers while it loads them."""
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    own = [table(optimizer=kl.optimizers.SGD(schedule, name="own")) for _ in range(2)]
    layer = DistributedEmbedding(
        [FeatureConfig(f"f{i}", t) for i, t in enumerate([*own, TableConfig("u", 5, DIM)])]
    )
    inputs = [keras.Input((2,), dtype="int32") for _ in range(3)]
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").layers[-1]
    assert list(loaded.fused_tables.values()) == list(layer.fused_tables.values()) == [("table",), ("u",)]
    assert len(loaded.table_optimizers()) == 1


def test_what_is_for_tpus_is_refused():
    with pytest.raises(
        ValueError,
        match=r"`placement` of table 'table' .* there are no TPUs here\. Received: placement='sparsecore'",
    ):
        DistributedEmbedding(feature(2, placement="sparsecore"))
    with pytest.raises(ValueError, match=r"`update_stats` must be False.* Received: update_stats=True"):
        DistributedEmbedding(feature(2), update_stats=True)
    DistributedEmbedding(feature(2, placement="default_device"), update_stats=False)


@pytest.mark.parametrize("devices", [1, 3])
def test_tables_have_subscripts(devices):
    with strategy_of(devices).scope():
        layer = DistributedEmbedding(feature(2), placement="modulo")
        layer.build()
    rows = layer.get_embedding_tables()["table"]
    want = rows.numpy()
    mask = np.arange(ROWS) % 5 == 1
    subscripts = [
        3, -1, np.int64(4), slice(None), slice(2, 9), slice(20, 2, -3), slice(5, 5), [3, 3, 1], [], mask,
        np.array([[0, -1], [7, 8]]), Ellipsis, (4, 2), (slice(3), 1), ([1, 2], slice(2, 5)), (2, Ellipsis),
        None,
    ]  # fmt: skip
    for key in subscripts:
        got = rows[key]
        assert got.shape == want[key].shape, key
        np.testing.assert_array_equal(got, want[key], err_msg=str(key))
    assert len(rows) == ROWS
    for key in (ROWS, -ROWS - 1, [0, ROWS], mask[:-1]):
        with pytest.raises(IndexError):
            rows[key]


def test_only_the_rows_asked_for_are_read(monkeypatch):
    layer = DistributedEmbedding(feature(2))
    layer.build()
    rows, read = layer.get_embedding_tables()["table"], []

    def noted(self, span, to_first=False):
        read.append(span)
        return np.zeros((span[1] - span[0], DIM))

    monkeypatch.setattr(type(rows.array), "read", noted)
    rows[[7, 3, 4, 3]]
    assert read == [(3, 5), (7, 8)]
