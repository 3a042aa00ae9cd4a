"""`use_ema`: averages of all rows, though a step touches its rows alone, equal those of every step."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of
from _training import needs_multi_optimizer

import keras_largeout as kl
from keras_largeout.planning.placement import Placement

ROWS, DIM, BATCH, MOMENTUM = 30, 4, 8, 0.8


def data(steps=12):
    """Some rows are in many batches, some are idle for long, one is in no batch."""
    rng = np.random.default_rng(0)
    ids = np.minimum(rng.zipf(1.3, (steps * BATCH, 3)), ROWS - 2)
    return ids, rng.normal(size=steps * BATCH).astype("float32")


def made(optimizer, embedding=kl.layers.ShardedEmbedding, devices=1, **options):
    first = keras.initializers.RandomNormal(seed=4)
    with strategy_of(devices).scope():
        inputs = keras.Input((3,), dtype="int32")
        x = keras.layers.Flatten()(embedding(ROWS, DIM, first, name="table", **options)(inputs))
        dense = keras.layers.Dense(
            1, name="dense", kernel_initializer=keras.initializers.RandomNormal(seed=5)
        )
        model = kl.Model(inputs, dense(x))
        model.compile(optimizer() if callable(optimizer) else optimizer, "mse")
    return model


def values(model):
    table = model.get_layer("table")
    rows = table.table.numpy() if hasattr(table, "table") else table.embeddings.numpy()
    return rows, model.get_layer("dense").kernel.numpy()


def averages_of(history, first=1):
    """Keras's formula in float64, of all rows in every step."""
    average = None
    for step, value in enumerate(history, 1):
        value = value.astype("float64")
        average = value if step <= first else MOMENTUM * average + (1 - MOMENTUM) * value
    return average


class History(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(values(self.model))


EMA = {"use_ema": True, "ema_momentum": MOMENTUM}
CASES = {
    "SGD": (lambda: kl.optimizers.SGD(0.3, **EMA), {}),
    "Adam": (lambda: kl.optimizers.LazyAdam(0.05, weight_decay=0.1, **EMA), {}),
    "row-wise": (lambda: kl.optimizers.RowWiseAdagrad(0.3, clipnorm=0.1, **EMA), {}),
    "accumulated": (lambda: kl.optimizers.LazyAdam(0.05, gradient_accumulation_steps=3, **EMA), {}),
    "constrained": (lambda: kl.optimizers.SGD(0.3, **EMA), {"embeddings_constraint": "non_neg"}),
    "host": (lambda: kl.optimizers.LazyAdam(0.05, **EMA), {"storage": "host", "cache_rows": 5}),
    "two devices": (
        lambda: kl.optimizers.LazyAdam(0.05, **EMA),
        {"devices": 2, "placement": Placement.by_modulo(ROWS, 2).with_hot_rows([1, 7])},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_averages_are_those_of_every_step(case):
    optimizer, options = CASES[case]
    model, history = made(optimizer, **options), History()
    model.fit(*data(), batch_size=BATCH, shuffle=False, verbose=0, callbacks=[history])
    first = model.optimizer.gradient_accumulation_steps or 1
    for found, seen in zip(values(model), zip(*history.seen)):
        np.testing.assert_allclose(found, averages_of(seen, first), rtol=1e-5, atol=1e-6)
    assert not np.allclose(values(model)[0], history.seen[-1][0], atol=1e-3)


def test_a_loop_of_ones_own():
    model, (x, y), seen = made(CASES["SGD"][0]), data(6), []

    @tf.function
    def step(ids, targets):
        with tf.GradientTape() as tape:
            outputs = model(ids) + model(ids[::-1])  # two gradients of a row
            loss = tf.reduce_mean((outputs[:, 0] - targets) ** 2)
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    for start in range(0, len(y), BATCH):
        step(tf.constant(x[start : start + BATCH]), tf.constant(y[start : start + BATCH]))
        seen.append(values(model))
    model.optimizer.finalize_variable_values(model.trainable_variables)
    for found, per_step in zip(values(model), zip(*seen)):
        np.testing.assert_allclose(found, averages_of(per_step), rtol=1e-5, atol=1e-6)


def test_fit_ends_with_the_averages_of_keras():
    ours = made(kl.optimizers.SGD(0.3, **EMA))
    theirs = made(keras.optimizers.SGD(0.3, **EMA), keras.layers.Embedding)
    for _ in range(2):  # the second fit goes on from averages
        for model in (ours, theirs):
            model.fit(*data(), batch_size=BATCH, shuffle=False, epochs=2, verbose=0)
        for found, want in zip(values(ours), values(theirs)):
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


class Evaluated(keras.callbacks.Callback):
    """Keeps the weights of an evaluation, and those of training before and after it."""

    def on_test_begin(self, logs=None):
        self.during = values(self.model)

    def on_epoch_end(self, epoch, logs=None):
        self.after = values(self.model)


def test_evaluations_see_averages():
    model, history, seen = made(CASES["Adam"][0]), History(), Evaluated()
    model.fit(
        *data(),
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
        validation_data=data(1),
        callbacks=[history, kl.callbacks.SwapEMAWeights(), seen],
    )
    for found, per_step in zip(seen.during, zip(*history.seen)):
        np.testing.assert_allclose(found, averages_of(per_step), rtol=1e-5, atol=1e-6)
    for found, last in zip(seen.after, history.seen[-1]):
        np.testing.assert_array_equal(found, last)
    before = values(model)
    model.train_on_batch(*data(1))
    trained = values(model)
    model.predict(data(1)[0], verbose=0, callbacks=[kl.callbacks.SwapEMAWeights()])
    for found, want, other in zip(values(model), trained, before):
        np.testing.assert_array_equal(found, want)
        assert not np.array_equal(found, other)


def test_averages_until_the_next_epoch(tmp_path):
    """What a checkpoint behind the callback saves; the training itself is not changed."""
    model, plain, seen = made(CASES["Adam"][0]), made(CASES["Adam"][0]), Evaluated()
    fit = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    model.fit(*data(), epochs=2, callbacks=[kl.callbacks.SwapEMAWeights(swap_on_epoch=True), seen], **fit)
    plain.fit(*data(), epochs=2, **fit)
    for found, kept, want in zip(values(model), seen.after, values(plain)):
        np.testing.assert_allclose(kept, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_a_file_has_the_averages(tmp_path):
    (x, y), path = data(), str(tmp_path / "model.keras")
    fit = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    whole = made(CASES["Adam"][0])
    for batch in range(6):
        whole.train_on_batch(x[batch * BATCH : (batch + 1) * BATCH], y[batch * BATCH : (batch + 1) * BATCH])
    whole.save(path)
    loaded = keras.models.load_model(path)
    for model in (whole, loaded):
        model.fit(x[6 * BATCH :], y[6 * BATCH :], **fit)
    for found, want in zip(values(loaded), values(whole)):
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-7)


@needs_multi_optimizer
def test_heads_and_several_optimizers():
    """Tables of one axis too: the biases of a head. The other optimizer has no averages."""
    inputs = keras.Input((4,))
    head = kl.layers.FullSoftmax(9, name="head")
    model = kl.Model(inputs, head(keras.layers.Dense(4, name="dense")(inputs)))
    tables = kl.optimizers.LazyAdam(0.05, **EMA)
    names = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1), {"head.*": tables})
    model.compile(keras.optimizers.MultiOptimizer(names), head.loss)
    rng, seen = np.random.default_rng(1), []
    x, y = rng.normal(size=(32, 4)).astype("float32"), rng.integers(0, 9, 32)

    class Seen(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append([part.numpy() for part in head.trainable_variables])

    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[Seen()])
    for found, per_step in zip(head.trainable_variables, zip(*seen)):
        np.testing.assert_allclose(found.numpy(), averages_of(per_step), rtol=1e-5, atol=1e-6)


def test_what_is_refused(tmp_path):
    ids, y = data(1)
    for options, ema, words in [
        ({"storage": f"file:{tmp_path}"}, {}, r"must be in memory: not in files.*Received: use_ema=True"),
        ({"dtype": "bfloat16"}, {}, r"must be float32"),
        ({}, {"ema_overwrite_frequency": 3}, r"`ema_overwrite_frequency` must be None"),
    ]:
        model = made(kl.optimizers.SGD(0.1, **EMA, **ema), **options)
        with pytest.raises(ValueError, match=words):
            model.fit(ids, y, verbose=0)
        kl.close_files(model)
    columns = made(kl.optimizers.SGD(0.1, **EMA), devices=2, placement="columns")
    with pytest.raises(ValueError, match=r"must be in whole rows"):
        columns.fit(ids, y, verbose=0)
    with pytest.raises(ValueError, match=r"`use_ema` of `optimizer` must be False where it is fused"):
        kl.layers.ShardedEmbedding(3, 2, optimizer=kl.optimizers.SGD(0.1, use_ema=True))
    model = made(kl.optimizers.SGD(0.1, **EMA))
    with pytest.raises(ValueError, match=r"must be swapped by kl.callbacks.SwapEMAWeights"):
        model.fit(ids, y, verbose=0, validation_data=(ids, y), callbacks=[keras.callbacks.SwapEMAWeights()])
