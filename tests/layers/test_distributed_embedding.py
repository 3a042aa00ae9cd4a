"""`DistributedEmbedding` on one device: structures, kinds of ids, errors, files, export."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from keras_largeout.distribute.balance.recording import Recorder, recording
from keras_largeout.layers import DistributedEmbedding, FeatureConfig, TableConfig
from keras_largeout.ops.embedding.wrapper import embedding_lookup_reference
from keras_largeout.ops.export_mode import stock_ops


def table(name="t", rows=9, dim=3, **options):
    return TableConfig(name, rows, dim, keras.initializers.RandomNormal(seed=rows), **options)


def rows_of(layer, name="t"):
    return np.asarray(layer.get_embedding_tables()[name])


STOCK = pytest.mark.parametrize("stock", [False, True], ids=["custom", "stock"])


def scope(stock):
    return stock_ops() if stock else tf.name_scope("custom")


@STOCK
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_combiners_of_dense_ragged_and_sparse_ids(combiner, stock):
    shared, other = table(combiner=combiner), table("u", 7)
    layer = DistributedEmbedding(
        {
            "dense": FeatureConfig("dense", shared),
            "nested": [FeatureConfig("ragged", shared), (FeatureConfig("sparse", shared),)],
            "other": FeatureConfig("other", other, combiner="mean"),
        }
    )
    ragged = tf.ragged.constant([[1, 2, 2], [], [8]], dtype=tf.int64)
    factors = ragged.with_flat_values(tf.constant([0.5, 2.0, 1.0, 3.0]))
    dense, dense_factors = np.array([[1, 2], [3, 3]]), np.array([[1.0, 2.0], [0.0, 4.0]], "float32")
    with scope(stock):
        got = layer(
            {"dense": dense, "nested": [ragged, (ragged.to_sparse(),)], "other": np.array([5, 6])},
            weights={"dense": dense_factors, "nested": [factors, (factors.to_sparse(),)], "other": None},
        )
        plain = layer(
            {"dense": dense, "nested": [ragged, (ragged.to_sparse(),)], "other": np.array([[5, 6]])}
        )
    rows = rows_of(layer)

    def check(got, *args):
        np.testing.assert_allclose(
            got, embedding_lookup_reference(rows, *args, combiner=combiner), rtol=1e-5, atol=1e-6
        )

    check(got["dense"], dense, None, dense_factors)
    check(plain["dense"], dense)
    for output in (got["nested"][0], got["nested"][1][0]):
        check(output, ragged.flat_values, ragged.row_splits, factors.flat_values)
    for output in (plain["nested"][0], plain["nested"][1][0]):
        check(output, ragged.flat_values, ragged.row_splits)
    np.testing.assert_allclose(got["other"], rows_of(layer, "u")[[5, 6]], rtol=1e-6)
    np.testing.assert_allclose(plain["other"], rows_of(layer, "u")[[5, 6]].mean(0)[None], rtol=1e-6)


@STOCK
def test_without_combiner_the_shape_is_kept(stock):
    layer = DistributedEmbedding([FeatureConfig(n, table(combiner=None)) for n in "abc"])
    ragged = tf.ragged.constant([[1, 2, 2], [], [8]])
    with scope(stock):
        dense, kept, sparse = layer([np.array([[[1], [2]]]), ragged, ragged.to_sparse()])
    rows = rows_of(layer)
    np.testing.assert_array_equal(dense, rows[[[[1], [2]]]])
    assert isinstance(kept, tf.RaggedTensor)
    np.testing.assert_array_equal(kept.flat_values, rows[[1, 2, 2, 8]])
    np.testing.assert_array_equal(sparse, kept.to_tensor())


@STOCK
def test_ragged_ids_of_higher_rank(stock):
    ids = tf.ragged.constant([[[1, 2], [3]], [], [[4]]], dtype=tf.int32)
    pairs = tf.RaggedTensor.from_row_lengths([[1, 2], [3, 4], [5, 6]], [1, 0, 2])
    layer = DistributedEmbedding([FeatureConfig("a", table()), FeatureConfig("b", table())])
    with scope(stock):
        bags, uniform = layer([ids, pairs])
    rows = rows_of(layer)
    np.testing.assert_array_equal(bags.row_splits, [0, 2, 2, 3])
    np.testing.assert_allclose(bags.flat_values, [rows[1:3].mean(0), rows[3], rows[4]], rtol=1e-6)
    np.testing.assert_array_equal(uniform.row_splits, [0, 1, 1, 3])
    np.testing.assert_allclose(uniform.flat_values, (rows[[1, 3, 5]] + rows[[2, 4, 6]]) / 2, rtol=1e-6)


@STOCK
def test_padding(stock):
    padded = table(mask_zero=True)
    layer = DistributedEmbedding(
        {"bag": FeatureConfig("bag", padded), "rows": FeatureConfig("rows", padded, combiner=None)}
    )
    ids = np.array([[1, 0, 3], [0, 0, 0]])
    with scope(stock):
        got = layer({"bag": ids, "rows": ids})
    rows = rows_of(layer)
    np.testing.assert_allclose(got["bag"], [(rows[1] + rows[3]) / 2, np.zeros(3)], rtol=1e-6)
    np.testing.assert_array_equal(got["rows"], rows[ids])
    masks = layer.compute_mask({"bag": ids, "rows": ids})
    assert masks["bag"] is None
    np.testing.assert_array_equal(masks["rows"], ids != 0)
    np.testing.assert_array_equal(got["rows"]._keras_mask, ids != 0)


def test_out_of_range_names_feature_table_and_rows():
    features = {"a": FeatureConfig("the a", table()), "b": FeatureConfig("the b", table("u", 7))}
    layer = DistributedEmbedding(features)
    good = np.array([[0, 6]])
    layer({"a": good, "b": good})
    for step in (layer, tf.function(layer)):
        for bad in (7, -1):
            words = rf"`inputs` of the feature .+the b.+ lie in \[0, 7\), .+ table .+u.+ Received: {bad}"
            with pytest.raises(tf.errors.InvalidArgumentError, match=words):
                step({"a": good, "b": np.array([[0, bad]])})  # 7 would be a row of the stack
    zero = DistributedEmbedding(features, out_of_range="zero")
    got = zero({"a": np.array([[8, 9]]), "b": np.array([[-1, 7]])})
    np.testing.assert_allclose(got["a"][0], rows_of(zero)[8], rtol=1e-6)
    np.testing.assert_array_equal(got["b"][0], np.zeros(3))


def test_gradient_is_unique_rows_of_the_stack():
    layer = DistributedEmbedding([FeatureConfig("a", table()), FeatureConfig("b", table("u", 7))])
    with tf.GradientTape() as tape:
        a, b = layer([np.array([5, 2, 5]), np.array([[1, 1], [1, 0]])])
        total = tf.reduce_sum(a) + 2 * tf.reduce_sum(b)
    (gradient,) = tape.gradient(total, layer.trainable_variables)
    merged = np.zeros((16, 3))
    np.add.at(merged, gradient.indices, gradient.values)
    assert len(gradient.indices) == 4
    np.testing.assert_allclose(merged[[2, 5, 9, 10]], np.repeat([[1], [2], [1], [3]], 3, 1), rtol=1e-6)


def test_planning_sees_the_rows_of_the_stack():
    padded = table("u", 7, mask_zero=True)
    features = [FeatureConfig("a", table(), input_shape=(None, 3)), FeatureConfig("b", padded)]
    layer = DistributedEmbedding(features, name="l")
    with recording(Recorder()) as recorder:
        layer([np.array([[1, 2, 2]]), np.array([[0, 6]])])
    np.testing.assert_array_equal(recorder.counts("l/stack_3", 16), np.eye(16)[[1, 2, 2, 15]].sum(0))
    (spec,) = layer.table_specs({"t": np.ones(9), "u": np.full(7, 2.0)})
    assert (spec.name, spec.rows, spec.dim, spec.ids_per_example) == ("l/stack_3", 16, 3, 4)
    np.testing.assert_array_equal(spec.counts, [1] * 9 + [2] * 7)


def test_regularizer_costs_the_distinct_rows_of_its_table():
    regular = table(regularizer=keras.regularizers.L2(0.5))
    features = [FeatureConfig("a", regular), FeatureConfig("b", regular), FeatureConfig("c", table("u", 7))]
    layer = DistributedEmbedding(features)
    layer([np.array([[4, 4]]), np.array([[7, 4]]), np.array([[1, 2]])])
    np.testing.assert_allclose(layer.losses, [0.5 * np.sum(rows_of(layer)[[4, 7]] ** 2)], rtol=1e-6)


def test_constraint_acts_on_its_tables():
    tame = table(constraint=keras.constraints.UnitNorm(axis=1))
    layer = DistributedEmbedding([FeatureConfig("a", tame), FeatureConfig("b", table("u", 7))])
    assert len(layer.fused_tables) == 2
    inputs = [keras.Input((2,), dtype="int32") for _ in range(2)]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(layer(inputs))))
    model.compile(kl.optimizers.SGD(0.1), "mse")
    model.fit([np.array([[1, 2]] * 4), np.array([[1, 2]] * 4)], np.ones(4), verbose=0)
    norms = np.linalg.norm(rows_of(layer), axis=1)
    np.testing.assert_allclose(norms[[1, 2]], 1.0, rtol=1e-5)
    assert not np.isclose(np.linalg.norm(rows_of(layer, "u"), axis=1), 1).any()


def two_towers(**options):
    features = {
        "one": FeatureConfig("one", table(**options)),
        "bag": FeatureConfig("bag", table("u", 7), input_shape=(None, 4), output_shape=(None, 3)),
        "wide": (FeatureConfig("wide", table("w", 5, 2)),),
    }
    ids = {
        "one": keras.Input((), dtype="int64", name="one"),
        "bag": keras.Input((4,), dtype="int64", name="bag"),
        "wide": (keras.Input((2,), dtype="int64", name="wide"),),
    }
    layer = DistributedEmbedding(features)
    out = layer(ids)
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()(keras.tree.flatten(out)))), layer


def batch(rng, n=8):
    return {
        "one": rng.integers(0, 9, n),
        "bag": rng.integers(0, 7, (n, 4)),
        "wide": (rng.integers(0, 5, (n, 2)),),
    }


def test_functional_model_saves_loads_and_exports(tmp_path, rng):
    model, layer = two_towers()
    assert [w.path for w in layer.weights] == [
        f"{layer.name}/stack_3.embeddings",
        f"{layer.name}/w.embeddings",
    ]
    x = batch(rng)
    model.compile(kl.optimizers.LazyAdam(0.1), "mse")
    model.fit(x, np.ones(8), verbose=0)
    want = model.predict(x, verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), want)
    for m in (model, loaded):
        m.fit(x, np.ones(8), verbose=0)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    kl.export_saved_model(model, tmp_path / "export")
    served = tf.saved_model.load(str(tmp_path / "export"))
    got = served.signatures["serving_default"](
        **{k: tf.constant(v) for k, v in {**x, "wide": x["wide"][0]}.items()}
    )
    np.testing.assert_allclose(got["output_0"], model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)


def test_a_file_of_other_tables_changes_nothing(tmp_path):
    def layer_of(rows):
        layer = DistributedEmbedding([FeatureConfig("a", table()), FeatureConfig("b", table("u", rows))])
        layer.build()
        return layer

    store = {}
    layer_of(7).save_own_variables(store)
    assert set(store) == {"t_rows_000000", "u_rows_000000", "digests"}
    other = layer_of(6)
    other.get_embedding_tables()["t"].assign(np.ones((9, 3)))
    with pytest.raises(ValueError, match=r"does not fit `u`: expected shape \(6, 3\)"):
        other.load_own_variables(store)
    np.testing.assert_array_equal(rows_of(other), np.ones((9, 3)))


def test_config_round_trip():
    layer = DistributedEmbedding(
        {
            "a": FeatureConfig("a", table(regularizer="l2", mask_zero=True), input_shape=(None, 2)),
            "b": [FeatureConfig("b", table(regularizer="l2", mask_zero=True), combiner=None)],
        },
        table_stacking=["t"],
        out_of_range="zero",
        placement="modulo",
        name="towers",
    )
    config = json.loads(json.dumps(layer.get_config()))
    copy = DistributedEmbedding.from_config(config)
    assert json.loads(json.dumps(copy.get_config())) == config
    assert copy.fused_tables == {"towers/t": ("t",)}
    assert copy.feature_configs["b"][0].combiner is None


def test_shapes_for_functional_models():
    rows = FeatureConfig("b", table("u", combiner=None))
    layer = DistributedEmbedding((FeatureConfig("a", table()), {"b": rows}))
    assert layer.compute_output_shape(((None, 5), {"b": (None, 4)})) == ((None, 3), {"b": (None, 4, 3)})
    a, b = keras.Input((5,), dtype="int32"), keras.Input((None,), dtype="int32", ragged=True)
    one, nested = layer((a, {"b": b}))
    assert one.shape == (None, 3) and nested["b"].shape == (None, None, 3) and nested["b"].ragged
    weights = keras.Input((5,))
    outputs = layer((a, {"b": b}), weights=(weights, {"b": None}))
    assert outputs[0].shape == (None, 3)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "bfloat16"])
def test_dtype_policies(policy):
    layer = DistributedEmbedding(FeatureConfig("a", table()), dtype=policy)
    out = layer(np.array([[1, 2]], "uint8"))
    assert keras.backend.standardize_dtype(out.dtype) == policy.removeprefix("mixed_")
    assert layer.get_embedding_tables()["t"].dtype == ("bfloat16" if policy == "bfloat16" else "float32")


def test_empty_batches():
    layer = DistributedEmbedding([FeatureConfig("a", table()), FeatureConfig("b", table("u", 7))])
    assert [o.shape for o in layer([np.zeros([0, 4], int), np.zeros([0], int)])] == [(0, 3), (0, 3)]
    np.testing.assert_array_equal(layer([np.zeros([2, 0], int), np.array([1, 2])])[0], np.zeros((2, 3)))


def test_bad_arguments():
    feature = FeatureConfig("a", table())
    for build, words in [
        (lambda: table("a/b"), r"`name` of a table must be a string without '/'"),
        (lambda: table(combiner="min"), r"`combiner` of table 't' must be one of .*'min'"),
        (lambda: table(placement="east"), r"`placement` must be one of .*'east'"),
        (lambda: table(optimizer="lion"), r"`optimizer` of table 't' must be one of .*Lion"),
        (lambda: FeatureConfig("a", "t"), r"`table` of feature 'a' must be a TableConfig. Received: 't'"),
        (lambda: FeatureConfig("a", table(), combiner="min"), r"`combiner` of feature 'a' must be one of"),
        (
            lambda: DistributedEmbedding({"a": table()}),
            r"must be a structure of FeatureConfigs. Received: Ta",
        ),
        (lambda: DistributedEmbedding({}), r"must be a structure of FeatureConfigs. Received: {}"),
        (lambda: DistributedEmbedding(feature, out_of_range="clip"), r"`out_of_range` must be one of"),
        (lambda: DistributedEmbedding(feature, placement="east"), r"`placement` must be one of .* or a Plan"),
        (lambda: DistributedEmbedding(feature, table_stacking="t"), r"`table_stacking` must be 'auto', None"),
        (lambda: DistributedEmbedding(feature, table_stacking=["u"]), r"must name tables of the layer"),
        (
            lambda: DistributedEmbedding([feature, FeatureConfig("b", table(rows=8))]),
            r"two different tables 't', one of them of the feature 'b'",
        ),
        (
            lambda: DistributedEmbedding(
                [feature, FeatureConfig("b", table("u", dim=4))], table_stacking=["t", "u"]
            ),
            r"must have the same `embedding_dim`.* Received: 't' and 'u'",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            build()


def test_bad_inputs():
    layer = DistributedEmbedding({"a": FeatureConfig("first", table(), input_shape=(None, 2))})
    ids = np.array([[1, 2]])
    with pytest.raises(ValueError, match=r"`inputs` must have the structure of .*{'a': 'first'}"):
        layer({"b": ids})
    with pytest.raises(ValueError, match=r"`weights` must have the structure"):
        layer({"a": ids}, weights={"b": ids})
    with pytest.raises(ValueError, match=r"feature 'first' must have the shape .* input_shape=\(None, 2\)"):
        layer({"a": ids[:, None]})
    assert layer({"a": ids[:, :1]})["a"].shape == (1, layer.feature_configs["a"].table.embedding_dim)  # a bag
    rows = DistributedEmbedding(FeatureConfig("rows", table(combiner=None), input_shape=(None, 2)))
    with pytest.raises(ValueError, match=r"feature 'rows' must have the shape .* input_shape=\(None, 2\)"):
        rows(ids[:, :1])
    with pytest.raises(TypeError, match=r"`weights` of the feature 'first' must be a Tensor"):
        layer({"a": ids}, weights={"a": tf.ragged.constant([[1.0, 2.0]])})
    with pytest.raises(ValueError, match=r"`weights` must have the shape .* \(in the feature 'first'\)"):
        layer({"a": ids}, weights={"a": np.ones((2, 1), "float32")})
    with pytest.raises(NotImplementedError, match=r"`inputs` must be integers"):
        large = DistributedEmbedding(FeatureConfig("a", table(rows=2**25)))
        large.compute_output_spec(keras.Input((2,), dtype="float32"))


def test_which_tables_are_stacked():
    tables = [table("a"), table("b", 5), table("c", 5, 4), table("d", placement="range"), table("e")]
    alone = {"l/b": ("b",), "l/c": ("c",), "l/d": ("d",)}

    def stacks(tables, stacking="auto"):
        features = [FeatureConfig(t.name, t) for t in tables]
        return DistributedEmbedding(features, table_stacking=stacking, name="l").fused_tables

    assert stacks(tables) == {"l/stack_3": ("a", "b", "e"), "l/c": ("c",), "l/d": ("d",)}
    assert stacks(tables, [["a", "e"]]) == {"l/stack_3": ("a", "e"), **alone}
    assert len(stacks(tables, None)) == 5
    large = [table("a", 2**30), table("b", 2**30), table("c", 3)]  # rows that 31 bits count
    assert stacks(large) == {"l/stack_3": ("a", "c"), "l/b": ("b",)}


def test_what_the_caller_gave_is_copied():
    table = kl.layers.TableConfig("t", 10, 4)
    inner = [kl.layers.FeatureConfig("a", table)]
    configs, stacking = {"x": inner}, [["t"]]
    layer = kl.layers.DistributedEmbedding(configs, table_stacking=stacking)
    inner.append(kl.layers.FeatureConfig("b", table))
    configs["y"] = kl.layers.FeatureConfig("c", table)
    stacking[0].append("u")
    assert [f.name for f in keras.tree.flatten(layer.feature_configs)] == ["a"]
    assert layer({"x": [np.array([[1]])]})["x"][0].shape == (1, 4)
    assert layer.get_config()["table_stacking"] == [["t"]]
