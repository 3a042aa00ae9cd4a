"""`DecayTables`: after s steps every row was decayed (s // every) times, wherever it is."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.planning.placement import Placement

ROWS, DIM, RATE, EVERY = 30, 4, 0.01, 5
FACTOR = (1 - RATE) ** EVERY


def made(devices=1, **options):
    """Its gradients are zero: what changes is the decay."""
    with strategy_of(devices).scope():
        inputs = keras.Input((), dtype="int32")
        table = kl.layers.ShardedEmbedding(
            ROWS, DIM, keras.initializers.RandomNormal(seed=4), name="table", **options
        )
        outputs = keras.layers.Dense(1, kernel_initializer="zeros", trainable=False)(table(inputs))
        model = kl.Model(inputs, outputs)
        model.compile(kl.optimizers.SGD(0.1), "mse")
    return model


def fit(model, steps, **options):
    ids = np.arange(2 * steps) % 7
    model.fit(ids, np.zeros(2 * steps), batch_size=2, shuffle=False, verbose=0, **options)


def rows(model):
    return model.get_layer("table").table.numpy()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"storage": "host", "cache_rows": 5},
        {"devices": 2, "placement": Placement.by_modulo(ROWS, 2).with_hot_rows([1, 7])},
        {"devices": 2, "placement": "columns"},
        {"dtype": "bfloat16"},
    ],
    ids=["one device", "host with a cache", "two devices", "columns", "bfloat16"],
)
def test_all_rows(options):
    model = made(**options)
    before = rows(model).astype("float64")
    fit(model, 12, callbacks=[kl.callbacks.DecayTables(RATE, EVERY)])
    tolerance = 1e-2 if "dtype" in options else 1e-6
    np.testing.assert_allclose(rows(model).astype("float64"), before * FACTOR**2, rtol=tolerance)


def test_rows_of_files_that_were_written(tmp_path):
    model = made(storage=f"file:{tmp_path}")
    before = rows(model)
    fit(model, 12, callbacks=[kl.callbacks.DecayTables(RATE, EVERY)])
    np.testing.assert_allclose(rows(model)[:7], before[:7] * FACTOR**2, rtol=1e-6)
    np.testing.assert_array_equal(rows(model)[7:], before[7:])
    kl.close_files(model)


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_steps_count_whatever_calls_make_them(steps_per_execution):
    model = made()
    model.compile(kl.optimizers.SGD(0.1), "mse", steps_per_execution=steps_per_execution)
    before, decay = rows(model), kl.callbacks.DecayTables(RATE, EVERY)
    for times, steps in ((0, 3), (1, 6), (4, 12)):  # 3, 9, 21 steps
        fit(model, steps, callbacks=[decay])
        np.testing.assert_allclose(rows(model), before * FACTOR**times, rtol=1e-6)


def test_a_restored_training_goes_on(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 9:
                raise KeyboardInterrupt

    def callbacks(*more):
        decay = kl.callbacks.DecayTables(RATE, EVERY)
        return [decay, kl.callbacks.BackupAndRestore(str(tmp_path), save_freq=5), *more]

    model = made()
    before = rows(model)
    with pytest.raises(KeyboardInterrupt):
        fit(model, 12, callbacks=callbacks(Stop()))
    again = made()
    fit(again, 12, callbacks=callbacks())
    np.testing.assert_allclose(rows(again), before * FACTOR**2, rtol=1e-6)


def test_chosen_tables():
    tables = [kl.layers.TableConfig(name, 9 + i, DIM) for i, name in enumerate("ab")]
    features = {table.name: kl.layers.FeatureConfig(table.name, table) for table in tables}
    inputs = {name: keras.Input((2,), dtype="int32", name=name) for name in "ab"}
    embedding = kl.layers.DistributedEmbedding(features)
    found = embedding(inputs)
    head = kl.layers.FullSoftmax(5, name="head")
    model = kl.Model(inputs, head(keras.ops.stop_gradient(found["a"] + found["b"])))
    model.compile(kl.optimizers.SGD(0.0), head.loss)
    x, y = {name: np.zeros([2, 2], "int32") for name in "ab"}, np.zeros(2, "int32")

    def values():
        read = {name: table.numpy() for name, table in embedding.get_embedding_tables().items()}
        return {**read, "head": head.kernel.numpy()}

    for chosen, decayed in ((["b"], "b"), (None, "ab"), (["head", "a"], ["head", "a"])):
        before = values()
        decay = kl.callbacks.DecayTables(RATE, 1, chosen)
        model.fit(x, y, batch_size=2, verbose=0, callbacks=[decay])
        for name, value in values().items():
            factor = 1 - RATE if name in decayed else 1
            np.testing.assert_allclose(value, before[name] * factor, rtol=1e-6, err_msg=name)
    with pytest.raises(ValueError, match=r"`tables` must be some of .*'a', 'b', 'head'.*tables=\('c',\)"):
        model.fit(x, y, verbose=0, callbacks=[kl.callbacks.DecayTables(RATE, 1, ["c"])])


def test_what_is_refused():
    for arguments, words in [
        ((1.0,), r"`rate` must be a float in \(0, 1\)"),
        ((0.1, 0), r"`every` must be a positive integer"),
        ((0.1, 1, "table"), r"`tables` must be None or a list"),
    ]:
        with pytest.raises(ValueError, match=words):
            kl.callbacks.DecayTables(*arguments)
    model = made()
    model.compile(kl.optimizers.SGD(0.1, use_ema=True), "mse")
    with pytest.raises(ValueError, match=r"`use_ema` .* must be False with DecayTables"):
        fit(model, 1, callbacks=[kl.callbacks.DecayTables(RATE)])
    plain = keras.Sequential([keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"`tables` must be some of the tables of the model, \[\]"):
        plain.fit(tf.zeros([2, 2]), tf.zeros([2]), verbose=0, callbacks=[kl.callbacks.DecayTables(RATE)])
