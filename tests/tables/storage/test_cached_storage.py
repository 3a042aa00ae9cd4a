"""Tables in host memory with a cache on the device: the numbers of tables without one, to the bit.

CPU:0 is the host, CPU:1 and those after it stand for GPUs.
"""

import functools
import gc
import threading
import types
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of
from _training import arrays_of, fit, needs_multi_optimizer
from tables.storage._models import OPTIMIZERS, ROWS, assert_same_bits, model_of, tables_of

import keras_largeout as kl
import keras_largeout.optimizers as klo
from keras_largeout.layers import DistributedEmbedding, FeatureConfig, ShardedEmbedding, TableConfig
from keras_largeout.planning.placement import Placement
from keras_largeout.tables.storage.batch_rows import BatchRows
from keras_largeout.tables.storage.row_cache import RowCaches

BATCH, BATCHES = 4, 16
# Batch k uses some of the rows 4k .. 4k + 11: neighbours share rows, and all of them use some 70.
IDS = np.random.default_rng(1).integers(0, 12, (BATCHES, BATCH, 4)) + 4 * np.arange(BATCHES)[:, None, None]
IDS = IDS.reshape(-1, 4)
DATA = (IDS, IDS[:, 1:] % 7), np.sin(IDS.sum(axis=1, keepdims=True)).astype("float32")
model_of = functools.partial(model_of, "host", small="replicated", beside_host=True)


def dataset(batches=BATCHES, batch=BATCH):
    return tf.data.Dataset.from_tensor_slices(DATA).batch(batch).take(batches)


def caches_of(model):
    return [part.cache for table in tables_of(model) for part in table.shards if hasattr(part, "cache")]


def moved(caches):
    return [(cache.brought, cache.written_back) for cache in caches]


def layer_of(cache_rows=None, rows=40, **kwargs):
    with strategy_of(1, beside_host=True).scope():
        layer = ShardedEmbedding(rows, 3, "normal", storage="host", cache_rows=cache_rows, name="e", **kwargs)
        layer.build()
    return layer


def two_optimizers():
    choice = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.01), {".*embeddings.*": klo.Adagrad(0.1)})
    return keras.optimizers.MultiOptimizer(choice)


def stepped(cache_rows, optimizer, eager=False, **kwargs):
    """The rows and slots of a small table after steps, between which rows come and go."""
    strategy, random = strategy_of(1, beside_host=True), np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    layer = layer_of(cache_rows, **kwargs)
    with strategy.scope():
        optimizer = optimizer()
        optimizer.build(layer.trainable_variables)

    def of_replica(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(layer(ids)) - layer(ids + 1))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, [w.value for w in layer.trainable_variables]), layer.trainable_variables)
        )

    def step(ids):
        strategy.run(of_replica, (ids,))

    step = step if eager else tf.function(step)
    for number in range(5):
        if cache_rows:
            begin = layer.table.shards[0].prefetch(np.arange(7 * number, 7 * number + 8) % 40)
            if number % 2:
                begin()
        step(tf.constant(random.integers(7 * number - 4, 7 * number + 12, (6, 2)) % 39))
    return arrays_of(layer.table)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        *((optimizer, {}) for optimizer in OPTIMIZERS.values()),
        (OPTIMIZERS["lazy_adam"], {"dtype": "bfloat16"}),
        (OPTIMIZERS["momentum"], {"eager": True}),
        pytest.param(two_optimizers, {}, marks=needs_multi_optimizer),
    ],
)
def test_every_optimizer(optimizer, options):
    options["embeddings_constraint"] = keras.constraints.MaxNorm(1.5, axis=1)
    got, want = (stepped(cache_rows, optimizer, **options) for cache_rows in (12, None))
    assert got.keys() == want.keys()
    for name, rows in want.items():
        np.testing.assert_array_equal(got[name], rows, err_msg=name)


class Interrupted(Exception):
    pass


def interrupt(batch, logs):
    if batch == 9:
        raise Interrupted


def test_training():
    """Everything that happens to a model in one process, one after the other."""
    options = {"optimizer": OPTIMIZERS["lazy_adam"], "own": "adagrad"}
    plain, cached = model_of(**options), model_of(cache_rows=40, **options)
    caches = caches_of(cached)
    prefetched = functools.partial(kl.distribute.prefetch_rows, dataset(), cached)

    def assert_alike(of_plain, of_cached):
        got, want = (
            (fit(m, d), arrays_of(*tables_of(m))) for m, d in ((cached, of_cached), (plain, of_plain))
        )
        assert_same_bits(got, want)

    assert_alike(dataset(4), dataset(4))  # nobody announces anything
    assert moved(caches) == [(0, 0)] * 3
    assert_alike(dataset(), prefetched(1))
    assert_alike(dataset(), prefetched(7))
    assert all(back > 0 for _, back in moved(caches)[:2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="`cache_rows` of 'words' must be at least"):
        fit(cached, prefetched())
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)
    for model, data in ((plain, dataset()), (cached, prefetched(2))):
        with pytest.raises(Interrupted):
            model.fit(data, callbacks=[callback], verbose=0)
    assert_alike(dataset(), prefetched(3))
    weights = [np.ones_like(weight) for weight in plain.get_weights()]
    for model, data in ((plain, dataset()), (cached, prefetched(2))):
        model.set_weights(weights)
        with strategy_of(1, beside_host=True).scope():
            model.compile(OPTIMIZERS["adagrad"](), "mse")
        model.fit(data, validation_data=dataset(4), epochs=2, verbose=0)
    assert_alike(dataset(), prefetched(2))
    assert all((cache.row_at >= 0).any() for cache in caches)
    assert [len(cache.members) for cache in caches] == [2, 2, 2]  # slots of a former optimizer are gone


def test_saving(tmp_path):
    """Files of a model with a cache, and of one without, are the same."""
    plain, cached = model_of(), model_of(cache_rows=40)
    fit(cached, kl.distribute.prefetch_rows(dataset(), cached, 2))
    cached.save_weights(tmp_path / "c.weights.h5")
    with strategy_of(1, beside_host=True).scope():
        plain.optimizer.build(plain.trainable_variables)
    plain.load_weights(tmp_path / "c.weights.h5")
    want = arrays_of(*tables_of(cached))
    np.testing.assert_equal(arrays_of(*tables_of(plain)), want)
    for table in tables_of(cached):
        table.assign(np.zeros(table.shape))
    plain.save_weights(tmp_path / "p.weights.h5")
    cached.load_weights(tmp_path / "p.weights.h5")
    np.testing.assert_equal(arrays_of(*tables_of(cached)), want)
    assert all((cache.row_at >= 0).any() for cache in caches_of(cached))
    # The variable that an export takes has all rows.
    np.testing.assert_equal(tables_of(cached)[0].variable.numpy(), want["embeddings"])


def test_config():
    layer = layer_of(7)
    assert layer.get_config()["cache_rows"] == 7
    assert ShardedEmbedding.from_config(layer.get_config()).cache_rows == 7
    assert "cache_rows" not in layer_of().get_config()
    config = TableConfig("a", 3, 2, storage="host", cache_rows=2)
    assert TableConfig.from_config(config.get_config()) == config
    assert config != TableConfig("a", 3, 2, storage="host")
    assert "cache_rows" not in TableConfig("a", 3, 2, storage="host").get_config()
    ShardedEmbedding(3, 2, storage="host", cache_rows=2).build()  # beside no device: nothing to cache


@pytest.mark.parametrize(
    "placement", [Placement.by_permutation(ROWS, 2).with_hot_rows(np.array([0, 3, 7])), "columns"], ids=str
)
def test_two_devices(placement):
    plain, cached = (
        model_of(OPTIMIZERS["lazy_adam"], 2, placement, **extra) for extra in ({}, {"cache_rows": 40})
    )
    data = kl.distribute.prefetch_rows(dataset(8), cached, 2)

    def assert_alike():
        assert_same_bits(
            *((fit(m, d), arrays_of(*tables_of(m))) for m, d in ((cached, data), (plain, dataset(8))))
        )

    assert_alike()
    words = tables_of(cached)[0]
    for part in words.shards:
        assert part.value.device.endswith("CPU:0")
        if part.part != "hot":
            assert part.held.device.endswith(f"CPU:{part.part + 1}")
            assert {m.held.device for m in part.cache.members} == {part.held.device}
            assert part.cache.brought > 0
    if placement != "columns":
        assert not words.array.parts["hot"].can_prefetch
        other = Placement.by_permutation(ROWS, 2, seed=5).with_hot_rows(np.array([0, 3, 7]))
        for model in (plain, cached):
            kl.distribute.rebalance(model, {"words": other})
        before = moved(caches_of(cached))
        assert_alike()
        assert moved(caches_of(cached)) != before  # the rows are found at their new places


def test_predict_beside_training():
    plain, cached = model_of(), model_of(cache_rows=40)
    stop, found = threading.Event(), []

    def predict():
        while not stop.is_set() or not found:
            found.append(cached.predict(list(DATA[0]), batch_size=16, verbose=0))

    thread = threading.Thread(target=predict)
    thread.start()
    try:
        got = fit(cached, kl.distribute.prefetch_rows(dataset().repeat(3), cached, 2))
    finally:
        stop.set()
        thread.join()
    assert all(np.isfinite(rows).all() for rows in found)
    np.testing.assert_array_equal(got, fit(plain, dataset().repeat(3)))
    np.testing.assert_equal(arrays_of(*tables_of(cached)), arrays_of(*tables_of(plain)))


def test_which_rows_are_in_the_cache():
    layer = layer_of(8)
    (part,) = layer.table.shards
    cache, rows = part.cache, layer.table.numpy()

    def held():
        return set(cache.row_at[cache.row_at >= 0].tolist())

    part.prefetch(np.arange(4))()
    part.prefetch(np.array([2, 3, 4, 5]))()
    assert held() == set(range(6)) and moved([cache]) == [(6, 0)]  # 2 and 3 were there
    begin = part.prefetch(np.arange(10, 16))
    # Beside 2 .. 5, which are in use, there is room for four more: 0 and 1 leave.
    assert held() == {2, 3, 4, 5, 10, 11, 12, 13} and moved([cache]) == [(10, 2)]
    begin()
    assert {10, 11, 12, 13, 14, 15} < held() and len(held()) == 8
    assert moved([cache]) == [(12, 4)]
    np.testing.assert_array_equal(layer.table.numpy(), rows)
    np.testing.assert_array_equal(layer(np.arange(40)), rows)
    # Each row is in one place: what is in host memory of one in the cache is not looked at.
    part.value.assign(np.full((40, 3), np.nan, "float32"))
    np.testing.assert_array_equal(layer(np.arange(10, 16)), rows[10:16])
    layer.table.caches.flush()
    assert held() == set()
    np.testing.assert_array_equal(part.value[10:16], rows[10:16])


def test_wanted_rows():
    """Of ragged ids, in nested and subclassed models; nothing else of the model is computed."""
    table = TableConfig("t", 50, 3, storage="host", cache_rows=9, placement="range")
    features = DistributedEmbedding([FeatureConfig("f", table), FeatureConfig("g", table, combiner=None)])
    with strategy_of(1, beside_host=True).scope():
        inputs = [keras.Input((None,), dtype="int64", ragged=True), keras.Input((), dtype="int64")]
        bags, rows = features(inputs)
        inner = keras.Model(inputs, keras.layers.Dense(2)(bags) + keras.layers.Dense(2)(rows))

        class Outer(keras.Model):
            def __init__(self):
                super().__init__()
                self.inner, self.dense = inner, keras.layers.Dense(1)

            def call(self, inputs, training=None):
                self.add_loss(tf.reduce_sum(tf.cast(inputs["rows"], tf.float32)))
                return self.dense(self.inner([inputs["bags"], inputs["rows"]]))

        model = Outer()
        x = {"bags": tf.ragged.constant([[3, 4, 4], [], [5]], dtype=tf.int64), "rows": tf.constant([7, 3, 8])}
        model(x)
    data = tf.data.Dataset.from_tensors((x, np.zeros((3, 1)), np.ones(3)))
    wanted = BatchRows(model, data.element_spec)
    (batch,) = data
    (part,) = features.tables[0].shards
    assert sorted({row for p, rows in wanted(batch) for row in rows if p is part}) == [3, 4, 5, 7, 8]
    kinds = {op.type for op in wanted.function.graph.get_operations()}
    assert not kinds & {"MatMul", "ResourceGather", "MutexLock", "Largeout>EmbeddingCombine"}, kinds
    assert not any(tf.is_symbolic_tensor(loss) for loss in model.losses)
    found = kl.distribute.prefetch_rows(data, model)
    assert found.element_spec == data.element_spec and int(found.cardinality()) == 1
    (got,) = found
    for tensors in zip(*(tf.nest.flatten(element, expand_composites=True) for element in (got, batch))):
        np.testing.assert_array_equal(*tensors)
    assert moved([part.cache]) == [(5, 0)]


def test_errors_of_a_dataset_come_after_the_batches_before_them():
    layer = layer_of(8)
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    ids = tf.data.Dataset.range(6).batch(2)
    broken = ids.map(lambda x: tf.debugging.check_numerics(4.0 / tf.cast(4 - x, tf.float32), "broken"))
    broken = tf.data.Dataset.zip(ids, broken)
    found = []
    with pytest.raises(tf.errors.OpError, match="broken"):
        for batch in kl.distribute.prefetch_rows(broken, model, 5):
            found.append(batch[0].numpy().tolist())
    assert found == [[0, 1], [2, 3]]
    # What is wrong with a batch is for the step to say. The lock is free again after it.
    bad = ids.map(lambda x: x + 38)
    assert len(list(kl.distribute.prefetch_rows(bad, model, 2))) == 3
    with pytest.raises(tf.errors.InvalidArgumentError, match="must lie in"):
        model.predict(bad, verbose=0)
    assert model.predict(ids, verbose=0).shape == (6, 3)


def test_a_dataset_keeps_its_model_no_longer_than_it_lives():
    model = keras.Sequential([keras.Input((), dtype="int64"), layer_of(8)])
    data = kl.distribute.prefetch_rows(tf.data.Dataset.range(6).batch(2), model, 2)
    assert len(list(data.prefetch(1))) == 3
    alive = weakref.ref(model)
    del model, data
    gc.collect()
    assert alive() is None


def test_what_is_refused():
    for value in (0, 2.5, True, "3"):
        with pytest.raises(
            ValueError, match=r"`cache_rows` must be a positive integer. Received: cache_rows="
        ):
            ShardedEmbedding(3, 2, storage="host", cache_rows=value)
    with pytest.raises(ValueError, match=r"`cache_rows` must be None unless storage='host'. .*=3 with"):
        TableConfig("a", 3, 2, cache_rows=3)
    servers = types.SimpleNamespace(plan_name="e", name="e", remote=True)
    with pytest.raises(ValueError, match=r"`cache_rows` must be None on parameter servers, .*=8 of 'e'"):
        RowCaches.of_table(servers, 8)
    layer = layer_of(8)
    with pytest.raises(AttributeError, match=r"tables in one memory. .* with cache_rows=8"):
        _ = layer.embeddings
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    data = tf.data.Dataset.range(6).batch(2)
    with pytest.raises(ValueError, match=r"`batches` must be a positive integer. Received: batches=0"):
        kl.distribute.prefetch_rows(data, model, 0)
    with pytest.raises(
        ValueError, match=r"`dataset` must be a tf.data.Dataset of batches. Received: dataset="
    ):
        kl.distribute.prefetch_rows(np.zeros(3), model)
    with pytest.raises(ValueError, match="`model` must be a built model"):
        kl.distribute.prefetch_rows(data, keras.Sequential([keras.layers.Dense(1)]))
    dense = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert kl.distribute.prefetch_rows(data, dense) is data
