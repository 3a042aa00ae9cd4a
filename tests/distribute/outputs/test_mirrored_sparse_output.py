"""`SparseOutput` over several devices: the numbers of one device.

Two devices where not the number is tried but something else: their parts of the 101 classes differ in size.
"""

import _training
import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of
from _training import arrays_of, in_the_suite

import keras_largeout as kl

CLASSES, DIM, FAN_IN, BATCH = 101, 24, 5, 16


def data(steps=8, classes=CLASSES):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(steps * BATCH, 6)).astype("float32")
    y = rng.integers(-1, classes, (steps * BATCH, 3))
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def make(devices, loss="binary_crossentropy", own=None, classes=CLASSES, options=None, **compile_args):
    keras.utils.set_random_seed(7)
    options = {"loss": loss, "optimizer": own, "seed": 3, "name": "labels", **(options or {})}
    with strategy_of(devices).scope():
        x = keras.Input((6,))
        head = kl.layers.SparseOutput(classes, FAN_IN, **options)
        model = keras.Model(x, head(keras.layers.Dense(DIM, activation="relu")(x)))
        # A head that trains itself is nothing to the model's optimizer: it may be Keras's own.
        adam = kl.optimizers.LazyAdam if own is None else keras.optimizers.Adam
        model.compile(adam(0.01), loss=head.loss, **compile_args)
    return model, head


def fit(model, **kwargs):
    return _training.fit(model, data(classes=model.layers[-1].num_classes), **kwargs)


def state(model):
    head = model.layers[-1]
    return arrays_of(head.kernel, head.bias, dense=model.layers[1].kernel)


def assert_same(several, one, **tolerances):
    _training.assert_same(state(several), state(one), **tolerances)
    connections = [model.layers[-1].connections.numpy() for model in (several, one)]
    assert [c.dtype for c in connections] == [np.uint16] * 2
    np.testing.assert_array_equal(*connections)


OWN = {
    "models": lambda: None,
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "adam": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)),
    "lazy_adam": lambda: kl.optimizers.LazyAdam(0.02),
}


@pytest.mark.parametrize(
    ("own", "loss", "devices"),
    [
        ("models", "binary_crossentropy", 2),
        ("models", "softmax", 4),
        ("sgd", "squared_hinge", 4),
        ("adam", "softmax", 2),
        ("adam", "binary_crossentropy", 4),
        ("lazy_adam", "softmax", 2),
    ],
)
def test_same_numbers(own, loss, devices):
    (one, _), (several, head) = make(1, loss, OWN[own]()), make(devices, loss, OWN[own]())
    want, got = fit(one), fit(several)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    assert got[-1] != got[0]
    assert_same(several, one)
    assert len(head.kernel.shards) == devices
    if own != "models":
        assert int(head.optimizer.iterations.numpy()) == 8


@pytest.mark.parametrize("own", ["models", "adam"])
def test_a_frozen_head_stays_and_passes_gradients_on(own):
    models = [make(devices, "softmax", OWN[own]()) for devices in (1, 2)]
    for model, head in models:
        head.trainable = False
        with model.distribute_strategy.scope():
            model.compile(keras.optimizers.Adam(0.01), loss=head.loss)
        before, dense = head.kernel.numpy(), model.layers[1].kernel.numpy()
        fit(model)
        np.testing.assert_array_equal(head.kernel.numpy(), before)
        assert np.any(model.layers[1].kernel.numpy() != dense)
    want, got = (model.layers[1].kernel.numpy() for model, _ in models)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("own", [None, "adam"])
def test_more_devices_than_classes(own):
    (one, _), (several, head) = make(1, own=own, classes=3), make(4, own=own, classes=3)
    np.testing.assert_allclose(fit(several), fit(one), rtol=1e-4)
    assert_same(several, one)
    assert len(head.kernel.shards) == 3
    hidden = np.random.default_rng(0).normal(size=(3, DIM)).astype("float32")
    np.testing.assert_array_equal(head.top_k(hidden, 3)[1], one.layers[-1].top_k(hidden, 3)[1])


@pytest.mark.parametrize("loss", ["squared_hinge", "softmax"])
def test_predictions_and_evaluation(loss):
    (one, theirs), (several, ours) = make(1, loss, "adam"), make(2, loss, "adam")
    for model in (one, several):
        fit(model)
    np.testing.assert_allclose(*(m.evaluate(data(), verbose=0) for m in (several, one)), rtol=1e-4)
    hidden = np.random.default_rng(0).normal(size=(7, DIM)).astype("float32")
    for k in (3, CLASSES):
        (scores, ids), (want, want_ids) = ours.top_k(hidden, k), theirs.top_k(hidden, k)
        np.testing.assert_allclose(scores, want, rtol=1e-3, atol=1e-4)
        assert k > 3 or np.array_equal(ids, want_ids)
    y = np.random.default_rng(0).integers(0, CLASSES, (7, 2))
    np.testing.assert_allclose(
        ours.make_loss(reduction=None)(y, hidden), theirs.make_loss(reduction=None)(y, hidden), rtol=1e-4
    )
    if loss != "squared_hinge":
        np.testing.assert_allclose(
            ours.log_prob(hidden, y[:, 0]), theirs.log_prob(hidden, y[:, 0]), rtol=1e-3, atol=1e-4
        )
    found = ours.predictor(several, k=3).predict(data(), verbose=0)
    np.testing.assert_array_equal(found["ids"], theirs.predictor(one, k=3).predict(data(), verbose=0)["ids"])


@pytest.mark.parametrize(
    ("own", "prune", "grow"),
    [(None, "magnitude", "random"), ("adam", "global_magnitude", "gradient")],
)
def test_rewiring(own, prune, grow):
    models = [make(devices, "softmax", own) for devices in (1, 2)]
    for model, head in models:
        rewire = kl.callbacks.Rewire(head, fraction=0.4, every=3, prune=prune, grow=grow)
        fit(model, callbacks=[rewire], epochs=2)
        assert len(rewire.history) == 5
    assert_same(models[1][0], models[0][0])
    np.testing.assert_array_equal(*(head.in_degrees() for _, head in models))


@pytest.mark.parametrize(("before", "after", "own"), [(2, 1, "adam"), (1, 2, "adam"), (2, 4, None)])
def test_saved_on_some_loaded_on_others(tmp_path, before, after, own):
    model, head = make(before, own=own)
    fit(model, callbacks=[kl.callbacks.Rewire(head, every=3)])
    model.save(tmp_path / "m.keras")
    with strategy_of(after).scope():
        loaded = keras.models.load_model(tmp_path / "m.keras")
    assert_same(loaded, model, rtol=0, atol=0)
    np.testing.assert_allclose(fit(loaded), fit(model), rtol=1e-4)
    assert_same(loaded, model)


def test_several_steps_an_execution():
    (one, _), (several, _) = (make(n, own="adam", steps_per_execution=4) for n in (1, 2))
    for model in (one, several):
        fit(model)
    assert_same(several, one)


@pytest.mark.parametrize("own", [None, "adam"])
def test_weights_of_labels_and_a_smaller_last_batch(own):
    """The last batch is smaller than the others, and no multiple of the devices."""
    rng = np.random.default_rng(1)
    x, y = (
        rng.normal(size=(3 * BATCH + 7, 6)).astype("float32"),
        rng.integers(-1, CLASSES, (3 * BATCH + 7, 3)),
    )
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    weights = rng.uniform(0.5, 3, CLASSES).astype("float32")
    models, losses = [], []
    for devices in (1, 2):
        model, _ = make(devices, own=own, options={"label_weights": weights})
        losses.append(model.fit(batches, epochs=2, verbose=0, shuffle=False).history["loss"])
        models.append(model)
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert_same(models[1], models[0])


def test_bfloat16_weights_are_rounded_alike():
    """The random bits of a class do not depend on where it is."""
    (one, _), (several, _) = (make(n, own="sgd", options={"dtype": "bfloat16"}) for n in (1, 2))
    np.testing.assert_allclose(fit(several), fit(one), rtol=5e-3)
    kernels = [np.asarray(m.layers[-1].kernel.numpy(), "float32") for m in (one, several)]
    # Gradients of the layer below are summed in another order: now and then a value falls to the other side.
    assert np.mean(kernels[0] != kernels[1]) < 0.2
    np.testing.assert_allclose(*kernels, rtol=2e-2, atol=2e-3)


def _ragged(rng, rows, below):
    lists = [rng.choice(below, n, replace=False).tolist() for n in rng.integers(0, 5, rows)]
    return tf.ragged.constant(lists, dtype=tf.int64)


@pytest.mark.parametrize("form", in_the_suite(["ragged", "sparse", "padded"], "ragged", "padded"))
def test_ragged_inputs_and_targets_in_fit(form):
    """Keras's own `fit` takes no such batches over several devices, nor a first one that does not divide."""
    rng = np.random.default_rng(1)
    ids, y = _ragged(rng, 3 * BATCH + 7, 50), _ragged(rng, 3 * BATCH + 7, CLASSES)
    inputs = {"ids": ids, "values": ids.with_values(tf.cast(ids.values, tf.float32) / 10)}
    inputs = {key: part.to_tensor() for key, part in inputs.items()} if form == "padded" else inputs
    y = {"ragged": y, "sparse": y.to_sparse(), "padded": y.to_tensor(-1)}[form]
    batches, models, numbers = tf.data.Dataset.from_tensor_slices((inputs, y)).batch(BATCH - 1), [], []
    for devices in (1, 3):
        keras.utils.set_random_seed(7)
        with strategy_of(devices).scope():
            ids = keras.Input((None,), dtype="int64", ragged=form != "padded", name="ids")
            values = keras.Input((None,), ragged=form != "padded", name="values")
            bag = kl.layers.ShardedEmbedding(50, DIM, combiner="sum")(ids, values)
            head = kl.layers.SparseOutput(CLASSES, FAN_IN, optimizer=keras.optimizers.Adam(0.01), seed=3)
            model = kl.Model({"ids": ids, "values": values}, head(bag))
            model.compile(kl.optimizers.LazyAdam(0.01), loss=head.loss)
        losses = model.fit(batches, epochs=2, verbose=0, validation_data=batches).history
        numbers.append([*losses["loss"], *losses["val_loss"], model.evaluate(batches, verbose=0)])
        models.append(head.predictor(model, k=3).predict(batches.map(lambda x, _: x), verbose=0)["ids"])
    assert numbers[0][1] < numbers[0][0]
    np.testing.assert_allclose(numbers[1], numbers[0], rtol=1e-4)
    np.testing.assert_array_equal(*models)
