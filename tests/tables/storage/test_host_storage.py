"""Tables in host memory: the numbers of tables in the memory of devices.

CPU:0 is the host, CPU:1 and those after it stand for GPUs.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of
from _training import arrays_of, needs_multi_optimizer
from tables.storage._models import (
    DATA,
    DIM,
    ON_ONE_DEVICE,
    OPTIMIZERS,
    ROWS,
    assert_same_bits,
    model_of,
    tables_of,
    trained,
)

import keras_largeout as kl
import keras_largeout.optimizers as klo
from keras_largeout.layers import ShardedEmbedding, TableConfig
from keras_largeout.planning.placement import Placement

HOT = Placement.by_permutation(ROWS, 3).with_hot_rows(np.array([0, 3, 7]))
model_of = functools.partial(model_of, small="replicated", beside_host=True)


def two_optimizers():
    choice = keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.01), {".*embeddings.*": klo.Adagrad(0.1)})
    return keras.optimizers.MultiOptimizer(choice)


def assert_same_on(optimizer, devices=3, **options):
    want, got = (trained(model_of(s, optimizer, devices, **options)) for s in ("device", "host"))
    assert_same_bits(got, want)


# What several devices add is the exchange, which knows nothing of optimizers.
@pytest.mark.parametrize(("name", "devices"), [*ON_ONE_DEVICE, ("lazy_adam", 3)])
def test_same_bits_as_on_the_device(name, devices):
    assert_same_on(OPTIMIZERS[name], devices)


@pytest.mark.parametrize("placement", ["columns", HOT], ids=str)
def test_placements(placement):
    assert_same_on(OPTIMIZERS["lazy_adam"], placement=placement)


def test_an_optimizer_of_the_tables():
    assert_same_on(OPTIMIZERS["sgd"], own="adagrad")


@needs_multi_optimizer
def test_two_optimizers():
    assert_same_on(two_optimizers)


@pytest.mark.parametrize("devices", [1, 3])
def test_where_rows_and_slots_lie(devices):
    for storage in ("device", "host"):
        model = model_of(storage, OPTIMIZERS["lazy_adam"], devices, HOT)
        with strategy_of(devices, beside_host=True).scope():
            model.optimizer.build(model.trainable_variables)
        for table in tables_of(model):
            for array in table.array.arrays():
                lie = {
                    component.device.rpartition(":")[2]
                    for part in array.parts.values()
                    for component in part.copies
                }
                assert (lie == {"0"}) == (storage == "host"), (array.name, lie)
    (hot,) = [p for key, p in model.get_layer("words").table.array.parts.items() if key == "hot"] or [None]
    assert hot is None or len(hot.copies) == 1  # not a copy per device


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
    model = model_of("host", OPTIMIZERS["lazy_adam"], 3)
    _, want = trained(model)
    model.save_weights(tmp_path / "m.weights.h5")
    other = model_of("device", OPTIMIZERS["lazy_adam"])
    with strategy_of(1, beside_host=True).scope():
        other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "m.weights.h5")
    got = arrays_of(*tables_of(other))
    for name, rows in want.items():
        np.testing.assert_array_equal(got[name], rows, err_msg=name)
    model.save(tmp_path / "m.keras")
    with strategy_of(1, beside_host=True).scope():
        copy = keras.models.load_model(tmp_path / "m.keras")
    assert [t.is_offloaded for t in tables_of(copy)] == [True] * 3
    np.testing.assert_allclose(
        copy.predict(list(DATA[0]), verbose=0), model.predict(list(DATA[0]), verbose=0), rtol=1e-5
    )


def test_load_balance_and_rebalance():
    model = model_of("host", OPTIMIZERS["lazy_adam"], 2, "range")
    plain = model_of("host", OPTIMIZERS["lazy_adam"], 2, "range")
    balance = kl.callbacks.LoadBalance()
    assert_same_bits(trained(model, callbacks=[balance]), trained(plain))
    assert balance.loads["words"].asked.sum() > 0
    assert "words" in kl.distribute.rebalance(model, balance.plan())
    np.testing.assert_allclose(trained(model)[0], trained(plain)[0], rtol=1e-5)


def test_a_plan_says_host():
    specs = [kl.distribute.TableSpec("words", ROWS, DIM), kl.distribute.TableSpec("others", ROWS, DIM)]
    plan = kl.distribute.plan(specs, 2, memory_per_device=ROWS * DIM * 3, host_memory=1e6, small=0)
    assert sorted(plan.storages.values()) == ["device", "host"]
    with strategy_of(2, beside_host=True).scope():
        for name, storage in plan.storages.items():
            layer = ShardedEmbedding(ROWS, DIM, placement=plan, name=name)
            layer.build()
            assert layer.table.is_offloaded == (storage == "host")


def test_on_the_host_itself_nothing_is_brought():
    words = ShardedEmbedding(ROWS, DIM, storage="host")
    words.build()
    assert words.table.is_offloaded == bool(tf.config.list_logical_devices("GPU"))


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"`storage` must be one of \('device', 'host'\)"):
        ShardedEmbedding(ROWS, DIM, storage="disk")
    with pytest.raises(ValueError, match="`storage` must be one of"):
        TableConfig("a", 3, 2, storage=None)
    words = ShardedEmbedding(ROWS, DIM, storage="host", name="words")
    with pytest.raises(ValueError, match='`kernel` of a head must be an embedding with storage="device"'):
        kl.layers.FullSoftmax(ROWS, kernel=words).build((None, DIM))
