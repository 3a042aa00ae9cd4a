"""Tables in host memory: the numbers of tables in the memory of devices.

CPU:0 is the host, CPU:1 and those after it stand for GPUs.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of
from _training import arrays_of, fit, needs_multi_optimizer

import keras_largeout as kl
import keras_largeout.optimizers as klo
from keras_largeout.distribute.planning.placement import Placement
from keras_largeout.layers import DistributedEmbedding, FeatureConfig, ShardedEmbedding, TableConfig

ROWS, DIM, BATCH = 50, 3, 12
RNG = np.random.default_rng(0)
IDS = RNG.integers(0, ROWS, (4 * BATCH, 4))
DATA = [IDS, IDS[:, 1:] % 7], np.sin(IDS.sum(axis=1, keepdims=True)).astype("float32")
OPTIMIZERS = {
    "sgd": lambda: klo.SGD(0.1, momentum=0.9),
    "adagrad": lambda: klo.Adagrad(0.1, clipnorm=0.1),
    "rowwise_adagrad": lambda: klo.RowWiseAdagrad(0.1),
    "lazy_adam": lambda: klo.LazyAdam(0.01, weight_decay=0.1),
    "ftrl": lambda: klo.Ftrl(0.1),
    "accumulating": lambda: klo.LazyAdam(0.01, gradient_accumulation_steps=2),
}


def two_optimizers():
    choice = keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.01), {".*embeddings.*": klo.Adagrad(0.1)})
    return keras.optimizers.MultiOptimizer(choice)


HOT = Placement.by_permutation(ROWS, 3).with_hot_rows(np.array([0, 3, 7]))


def model_of(devices, storage, optimizer, placement="permutation", own=None):
    """Two kinds of layers with three tables."""
    keras.utils.set_random_seed(3)
    with strategy_of(devices, beside_host=True).scope():
        ids = [keras.Input((4,), dtype="int64"), keras.Input((3,), dtype="int64")]
        options = {"placement": placement} if devices > 1 else {}
        words = ShardedEmbedding(ROWS, DIM, storage=storage, name="words", **options)
        tables = [
            TableConfig(name, rows, 2, "uniform", storage=storage, placement=place, optimizer=own)
            for name, rows, place in (("a", 50, "modulo"), ("b", 7, "replicated"))
        ]
        features = DistributedEmbedding([FeatureConfig(t.name, t) for t in tables], name="features")
        vectors = [keras.layers.Flatten()(words(ids[0])), *features(ids)]
        model = kl.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()(vectors)))
        model.compile(optimizer(), "mse")
    return model


def tables_of(model):
    return [model.get_layer("words").table, *model.get_layer("features").tables]


def trained(*args, **kwargs):
    model = model_of(*args, **kwargs)
    losses = fit(model, (tuple(DATA[0]), DATA[1]), batch=BATCH, epochs=2)
    dense = {w.path: w for w in model.get_layer("features").trainable_weights if not hasattr(w, "array")}
    return losses, arrays_of(*tables_of(model), **dense), model


def assert_same(got, want):
    np.testing.assert_array_equal(got[0], want[0])
    assert got[1].keys() == want[1].keys()
    for name, rows in want[1].items():
        np.testing.assert_array_equal(got[1][name], rows, err_msg=name)


@pytest.mark.parametrize(("name", "devices"), [*((name, 3) for name in OPTIMIZERS), ("lazy_adam", 1)])
def test_same_bits_as_on_the_device(name, devices):
    optimizer = OPTIMIZERS[name]
    want, got = (trained(devices, storage, optimizer) for storage in ("device", "host"))
    assert_same(got, want)


@pytest.mark.parametrize("placement", ["columns", HOT], ids=str)
def test_placements(placement):
    want, got = (trained(3, s, OPTIMIZERS["lazy_adam"], placement) for s in ("device", "host"))
    assert_same(got, want)


def test_an_optimizer_of_the_tables():
    want, got = (trained(3, s, OPTIMIZERS["sgd"], own="adagrad") for s in ("device", "host"))
    assert_same(got, want)


@needs_multi_optimizer
def test_two_optimizers():
    want, got = (trained(3, storage, two_optimizers) for storage in ("device", "host"))
    assert_same(got, want)


@pytest.mark.parametrize("devices", [1, 3])
def test_where_rows_and_slots_lie(devices):
    for storage in ("device", "host"):
        model = model_of(devices, storage, OPTIMIZERS["lazy_adam"], HOT if devices > 1 else "auto")
        with strategy_of(devices, beside_host=True).scope():
            model.optimizer.build(model.trainable_variables)
        for table in tables_of(model):
            for array in table.array.arrays():
                lie = {
                    component.device.rpartition(":")[2]
                    for part in array.parts.values()
                    for component in part.components
                }
                assert (lie == {"0"}) == (storage == "host"), (array.name, lie)
    (hot,) = [p for key, p in model.get_layer("words").table.array.parts.items() if key == "hot"] or [None]
    assert hot is None or len(hot.components) == 1  # not a copy per device


def test_only_distinct_rows_cross():
    """What the device gets from the host is no larger than the rows that the batch uses."""
    with strategy_of(1, beside_host=True).scope():
        words = ShardedEmbedding(1000, 8, combiner="sum", storage="host")
        words.build()

    @tf.function
    def step(ids):
        with tf.device("CPU:1"):
            return words(ids)

    graph = step.get_concrete_function(tf.TensorSpec([64, 10], tf.int64)).graph
    of_host = [op for op in graph.get_operations() if op.device.endswith("CPU:0") and op.type != "Const"]
    sent = {
        op.type
        for op in of_host
        if any(not c.device.endswith("CPU:0") for o in op.outputs for c in o.consumers())
    }
    assert sent <= {"ResourceGather", "Identity"}, sent
    ids = tf.constant(np.tile([3, 5], (64, 5)))
    np.testing.assert_allclose(
        step(ids), 5 * words.table.numpy()[[3, 5]].sum(0)[None].repeat(64, 0), rtol=1e-6
    )


def test_saved_and_loaded_with_another_storage(tmp_path):
    _, want, model = trained(3, "host", OPTIMIZERS["lazy_adam"])
    model.save_weights(tmp_path / "m.weights.h5")
    other = model_of(1, "device", OPTIMIZERS["lazy_adam"])
    with strategy_of(1, beside_host=True).scope():
        other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "m.weights.h5")
    got = arrays_of(*tables_of(other))
    for name, rows in want.items():
        np.testing.assert_array_equal(got[name], rows, err_msg=name)
    model.save(tmp_path / "m.keras")
    with strategy_of(1, beside_host=True).scope():
        copy = keras.models.load_model(tmp_path / "m.keras")
    assert [t.apart for t in tables_of(copy)] == [True] * 3
    np.testing.assert_allclose(copy.predict(DATA[0], verbose=0), model.predict(DATA[0], verbose=0), rtol=1e-5)


def test_load_balance_and_rebalance():
    model = model_of(3, "host", OPTIMIZERS["lazy_adam"], "range")
    plain = model_of(3, "host", OPTIMIZERS["lazy_adam"], "range")
    balance = kl.callbacks.LoadBalance()
    data = (tuple(DATA[0]), DATA[1])
    losses = fit(model, data, batch=BATCH, callbacks=[balance])
    assert losses == fit(plain, data, batch=BATCH)
    assert balance.loads["words"].asked.sum() > 0
    assert "words" in kl.distribute.rebalance(model, balance.plan())
    np.testing.assert_allclose(fit(model, data, batch=BATCH), fit(plain, data, batch=BATCH), rtol=1e-5)


def test_a_plan_says_host():
    specs = [kl.distribute.TableSpec("words", ROWS, DIM), kl.distribute.TableSpec("others", ROWS, DIM)]
    plan = kl.distribute.plan(specs, 2, memory_per_device=ROWS * DIM * 3, host_memory=1e6, small=0)
    assert sorted(plan.storages.values()) == ["device", "host"]
    with strategy_of(2, beside_host=True).scope():
        for name, storage in plan.storages.items():
            layer = ShardedEmbedding(ROWS, DIM, placement=plan, name=name)
            layer.build()
            assert layer.table.apart == (storage == "host")


def test_on_the_host_itself_nothing_is_brought():
    words = ShardedEmbedding(ROWS, DIM, storage="host")
    words.build()
    assert words.table.apart == bool(tf.config.list_logical_devices("GPU"))


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"`storage` must be one of \('device', 'host'\)"):
        ShardedEmbedding(ROWS, DIM, storage="disk")
    with pytest.raises(ValueError, match="`storage` must be one of"):
        TableConfig("a", 3, 2, storage=None)
    words = ShardedEmbedding(ROWS, DIM, storage="host", name="words")
    with pytest.raises(ValueError, match='`kernel` of a head must be an embedding with storage="device"'):
        kl.layers.FullSoftmax(ROWS, kernel=words).build((None, DIM))
