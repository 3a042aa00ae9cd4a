"""`stochastic_rounding` of the optimizers: small steps of bfloat16 rows add up, wherever the rows are."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import one_shard, strategy_of
from conformance._optimizers import OPTIMIZERS, make

import keras_largeout as kl
import keras_largeout.optimizers as klo
from keras_largeout.planning.placement import Placement
from keras_largeout.tables.shard import ShardVariable

ROWS, DIM = 40, 6


def shard(shape=(ROWS, DIM), value=1.5, dtype="bfloat16"):
    return one_shard(shape, keras.initializers.Constant(value), dtype=dtype)


def slices(indices, values, rows=ROWS):
    return tf.IndexedSlices(values, tf.constant(indices), tf.constant((rows, *values.shape[1:]), tf.int64))


# Each rule moves 1.5 by a twentieth of the distance of its neighbours, 1 / 128.
TINY = {
    "sgd": 4e-4,
    "momentum": 1e-4,
    "nesterov": 1e-4,
    "adagrad": 8e-4,
    "row_wise_adagrad": 8e-4,
    "lazy_adam": 4e-4,
}


@pytest.mark.parametrize("name", TINY)
def test_tiny_steps_follow_float32_where_rounding_to_nearest_stands_still(name):
    shape = (500, 8)
    tables = {kind: shard(shape, dtype=kind) for kind in ("float32", "bfloat16")}
    tables["stochastic"] = shard(shape)
    gradient = slices(np.arange(500), tf.ones(shape), 500)
    for kind, table in tables.items():
        rounding = {"stochastic_rounding": True} if kind == "stochastic" else {}
        optimizer = make(name, learning_rate=TINY[name], **rounding)
        optimizer.build([table])
        for _ in range(30):
            optimizer.apply([gradient], [table])
    found = {kind: np.asarray(table.numpy(), "float64") for kind, table in tables.items()}
    assert (found["bfloat16"] == 1.5).all()
    assert np.ptp(found["float32"]) == 0
    moved, unit = 1.5 - found["float32"][0, 0], 1 / 128
    assert moved > 0.5 * unit
    # The variance of one rounding is p (1 - p) units squared, p the part of a unit: at most 0.25.
    deviation = np.sqrt(30 * 0.25 / found["stochastic"].size) * unit
    assert abs(1.5 - found["stochastic"].mean() - moved) < 4 * deviation < 0.2 * moved
    assert len(np.unique(found["stochastic"])) > 1


def test_a_model_learns_at_a_rate_that_rounding_to_nearest_loses():
    ids, losses = np.arange(512) % 64, {}
    kinds = {"float32": ("float32", False), "nearest": ("bfloat16", False), "stochastic": ("bfloat16", True)}
    for kind, (dtype, rounding) in kinds.items():
        tokens = keras.Input((), dtype="int32")
        one = keras.initializers.Ones()
        x = kl.layers.ShardedEmbedding(64, 16, dtype=dtype, embeddings_initializer=one)(tokens)
        model = kl.Model(tokens, keras.layers.Activation("linear", dtype="float32")(x))
        own = {"stochastic_rounding": True} if rounding else {}
        model.compile(klo.SGD(0.02, **own), "mse")
        history = model.fit(ids, np.zeros((512, 16), "float32"), epochs=10, batch_size=64, verbose=0)
        losses[kind] = history.history["loss"]
    assert losses["nearest"][-1] == losses["nearest"][0] == 1.0
    np.testing.assert_allclose(losses["stochastic"], losses["float32"], rtol=0.01)


def trained(devices=1, placement="auto", **options):
    """The rows of a layer after three steps, in which no row comes twice: all devices have the same sums."""
    rng = np.random.default_rng(1)
    with strategy_of(devices).scope():
        tokens = keras.Input((), dtype="int32")
        layer = kl.layers.ShardedEmbedding(ROWS, DIM, dtype="bfloat16", placement=placement, **options)
        model = kl.Model(tokens, keras.layers.Activation("linear", dtype="float32")(layer(tokens)))
        model.compile(klo.LazyAdam(0.01, stochastic_rounding=True), "mse")
    layer.table.assign(rng.normal(size=(ROWS, DIM)))
    x = np.concatenate([rng.permutation(ROWS)[:24] for _ in range(3)])
    model.fit(x, rng.normal(size=(72, DIM)), batch_size=24, shuffle=False, verbose=0)
    return layer.table.numpy()


PLACEMENTS = ["range", "modulo", "permutation", "columns", "replicated", Placement.on_device(ROWS, 2, 1)]


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_two_devices_round_as_one(placement):
    np.testing.assert_array_equal(trained(devices=2, placement=placement), trained())


@pytest.mark.parametrize(
    "placement",
    [
        Placement.by_modulo(ROWS, 2).with_hot_rows([0, 3, 4]),
        Placement.explicit(np.arange(ROWS) % 3 - 1, 2),
    ],
    ids=["hot", "explicit"],
)
def test_rows_without_a_formula_are_rounded_too(placement):
    got, want = trained(devices=2, placement=placement), trained()
    assert (got != want).mean() > 0.1  # by other bits
    np.testing.assert_allclose(got.astype("float32"), want.astype("float32"), rtol=2**-5, atol=1e-3)


def test_rows_in_files_and_in_host_memory_round_alike(tmp_path):
    want = trained()
    np.testing.assert_array_equal(trained(storage=f"file:{tmp_path}"), want)
    np.testing.assert_array_equal(trained(storage="host"), want)


def test_seeds_steps_and_tables_have_bits_of_their_own():
    def rows_of(seed, steps=1, tables=1):
        weights = [shard() for _ in range(tables)]
        optimizer = klo.SGD(0.003, stochastic_rounding=True, rounding_seed=seed)
        for _ in range(steps):
            optimizer.apply([slices(np.arange(ROWS), tf.ones((ROWS, DIM)))] * tables, weights)
        return [weight.numpy() for weight in weights]

    first, second = rows_of(0, tables=2)
    np.testing.assert_array_equal(first, rows_of(0)[0])
    assert (first != second).any() and (first != rows_of(1)[0]).any()
    up_twice = np.count_nonzero(rows_of(0, steps=2)[0] == 1.5 - 2 / 128)
    assert 0 < up_twice < np.count_nonzero(first == 1.5 - 1 / 128)


def test_a_model_that_was_saved_goes_on_with_the_same_bits(tmp_path):
    def model_of():
        tokens = keras.Input((), dtype="int32")
        x = kl.layers.ShardedEmbedding(ROWS, DIM, dtype="bfloat16", name="table")(tokens)
        model = kl.Model(tokens, keras.layers.Activation("linear", dtype="float32")(x))
        model.compile(klo.Adagrad(0.01, stochastic_rounding=True, rounding_seed=3), "mse")
        return model

    x, y = np.arange(ROWS), np.ones((ROWS, DIM), "float32")
    model = model_of()
    model.fit(x, y, batch_size=20, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.stochastic_rounding and again.optimizer.rounding_seed == 3
    for each in (model, again):
        each.fit(x, y, batch_size=20, shuffle=False, verbose=0)
    np.testing.assert_array_equal(
        again.get_layer("table").table.numpy(), model.get_layer("table").table.numpy()
    )


@pytest.mark.usefixtures("rewritten_graphs")
@pytest.mark.parametrize("name", ["sgd", "row_wise_adagrad", "lazy_adam"])
def test_one_pass_and_two_passes_round_alike(monkeypatch, name):
    def rows_of():
        layer = kl.layers.ShardedEmbedding(
            ROWS, DIM, dtype="bfloat16", optimizer=make(name, stochastic_rounding=True)
        )
        layer.build(None)
        layer.table.assign(np.random.default_rng(0).normal(size=(ROWS, DIM)))
        head = keras.Sequential(
            [keras.Input((5,), dtype="int32"), layer, keras.layers.Flatten(dtype="float32")]
        )
        head.compile(keras.optimizers.SGD(), "mse")
        head.fit(
            np.arange(100).reshape(20, 5) * 7 % ROWS,
            np.ones((20, 5 * DIM)),
            batch_size=10,
            verbose=0,
            shuffle=False,
        )
        return layer.table.numpy()

    want = rows_of()
    monkeypatch.setattr(ShardVariable, "fuses_updates", False)
    np.testing.assert_array_equal(rows_of(), want)


@pytest.mark.parametrize("own", [False, True])
def test_a_bfloat16_tree_learns_in_one_pass_and_in_two(own):
    def head_of(rounding):
        optimizer = klo.SGD(2e-3, stochastic_rounding=rounding)
        x = keras.Input((DIM,))
        head = kl.layers.HierarchicalSoftmax(
            ROWS, dtype="bfloat16", kernel_initializer="ones", optimizer=optimizer if own else None
        )
        model = kl.Model(x, head(x))
        model.compile(keras.optimizers.SGD() if own else optimizer, loss=head.loss)
        model.fit(np.ones((64, DIM)), np.arange(64) % ROWS, epochs=3, verbose=0)
        (rows,) = (weight for weight in head.weights if weight.dtype == "bfloat16")
        return rows.numpy().astype("float32")

    assert (head_of(False) == 1).all()
    assert 0.02 < (head_of(True) != 1).mean() < 0.9


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_config(name):
    optimizer = make(name, stochastic_rounding=True, rounding_seed=5)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert (again.stochastic_rounding, again.rounding_seed) == (True, 5)
    assert not make(name).stochastic_rounding


@pytest.mark.parametrize("seed", [-1, 0.5, True, 1 << 32])
def test_a_seed_must_be_an_integer_of_32_bits(seed):
    with pytest.raises(ValueError, match=r"`rounding_seed` must be .*Received: rounding_seed="):
        klo.SGD(stochastic_rounding=True, rounding_seed=seed)


def test_float32_refuses_it():
    optimizer = klo.SGD(0.1, stochastic_rounding=True)
    message = r"`stochastic_rounding` must be False unless a trained weight is bfloat16.*weights of float32"
    with pytest.raises(ValueError, match=message):
        optimizer.build([shard(dtype="float32"), keras.Variable(1.0)])
    layer = kl.layers.ShardedEmbedding(ROWS, DIM, optimizer=klo.SGD(0.1, stochastic_rounding=True))
    with pytest.raises(ValueError, match=message):
        layer.build(None)


def test_float32_weights_beside_a_bfloat16_table_are_trained_as_ever():
    table, bias, dense = shard(), shard((ROWS,), dtype="float32"), keras.Variable([1.0, 2.0])
    optimizer = klo.SGD(0.1, stochastic_rounding=True)
    sparse = slices([3], tf.ones((1, DIM)))
    optimizer.apply([sparse, slices([3], tf.ones(1)), tf.ones(2)], [table, bias, dense])
    np.testing.assert_allclose(bias.numpy()[3], 1.4)
    np.testing.assert_allclose(dense.numpy(), [0.9, 1.9])


def test_dense_bfloat16_weights_are_refused_and_rows_of_ordinary_ones_are_not():
    variable = keras.Variable(np.full((ROWS, DIM), 1.5), dtype="bfloat16")
    optimizer = klo.SGD(0.003, stochastic_rounding=True)
    optimizer.apply([slices(np.arange(ROWS), tf.ones((ROWS, DIM)))], [variable])
    changed = np.count_nonzero(np.asarray(variable.value, "float32") != 1.5)
    assert 0.2 < changed / (ROWS * DIM) < 0.6
    with pytest.raises(ValueError, match="`stochastic_rounding` acts on weights that are updated by rows"):
        optimizer.apply([tf.ones((ROWS, DIM))], [variable])


def test_a_cache_is_refused():
    optimizer = klo.SGD(0.1, stochastic_rounding=True)
    with strategy_of(1, beside_host=True).scope():
        layer = kl.layers.ShardedEmbedding(ROWS, DIM, dtype="bfloat16", storage="host", cache_rows=9)
        layer.build(None)
        with pytest.raises(ValueError, match="must be False for a bfloat16 table with `cache_rows`"):
            optimizer.build(layer.trainable_variables)


def test_fixed_fan_in_has_a_rounding_of_its_own():
    with pytest.raises(ValueError, match="`stochastic_rounding` of the `optimizer` must be False here"):
        kl.layers.SparseOutput(ROWS, 4, optimizer=klo.SGD(0.1, stochastic_rounding=True))
