"""Heads with their own optimizer: their step is a part of the backward pass."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.ops.tree_softmax import wrapper
from keras_largeout.ops.tree_softmax.update import tree_softmax_update

CLASSES, DIM = 60, 8
HEADS = {
    "tree": lambda **options: kl.layers.HierarchicalSoftmax(
        CLASSES, counts=1000 // np.arange(1, CLASSES + 1), name="head", **options
    ),
    "full": lambda **options: kl.layers.FullSoftmax(CLASSES, name="head", **options),
    "sampled": lambda **options: kl.layers.SampledSoftmax(CLASSES, 9, seed=3, name="head", **options),
    "in_batch": lambda **options: kl.layers.SampledSoftmax(
        CLASSES, 0, "in_batch", seed=3, name="head", **options
    ),
}


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(96, 5)).astype("float32"), rng.integers(0, CLASSES, 96)


def compiled(head, own, rate=0.05):
    """A model trained by one rule, the head by its own optimizer or by the model's."""
    keras.utils.set_random_seed(1)
    x = keras.Input((5,))
    hidden = keras.layers.Dense(DIM, name="small")(x)
    head = HEADS[head](optimizer=kl.optimizers.Adagrad(rate) if own else None)
    model = kl.Model(x, head(hidden))
    model.compile(kl.optimizers.Adagrad(rate), loss=head.loss)
    return model, head


def weights(model):
    found = {}
    for name in ("small", "head"):
        store = {}
        model.get_layer(name).save_own_variables(store)
        found |= {f"{name}/{key}": np.asarray(value) for key, value in store.items() if key != "digests"}
    return found


def trained(head, own, devices=1, steps=3):
    x, y = data()
    with strategy_of(devices).scope():
        model, _ = compiled(head, own)
    losses = model.fit(x, y, batch_size=96 // steps, shuffle=False, verbose=0).history["loss"]
    return model, losses


@pytest.mark.full
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("devices", [1, 2])
def test_it_learns_what_the_model_would_teach_it(head, devices):
    own, losses = trained(head, True, devices)
    models, want = trained(head, False, devices)
    assert losses == pytest.approx(want, rel=1e-5)
    got, want = weights(own), weights(models)
    assert got.keys() == want.keys()
    for name, values in want.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-4, atol=1e-6, err_msg=name)
    assert own.get_layer("head").optimizer.iterations.numpy() == 3


@pytest.mark.parametrize(
    ("options", "devices", "eager", "passes"),
    [
        ({}, 1, False, 1),
        ({}, 1, True, 3),
        ({"use_bias": False}, 1, False, 1),
        ({"kernel_constraint": keras.constraints.NonNeg()}, 1, False, 0),  # it looks at the rows
        ({}, 2, False, 0),
    ],
    ids=["graph", "eager", "no bias", "constraint", "two devices"],
)
def test_a_tree_takes_the_step_of_its_table_in_one_pass(monkeypatch, options, devices, eager, passes):
    made = []

    def update(*args, **kwargs):
        made.append(args)
        return tree_softmax_update(*args, **kwargs)

    monkeypatch.setattr(wrapper, "tree_softmax_update", update)
    x, y = data()
    with strategy_of(devices).scope():
        keras.utils.set_random_seed(1)
        head = HEADS["tree"](optimizer=kl.optimizers.Adagrad(0.05), **options)
        model = kl.Sequential([keras.Input((5,)), keras.layers.Dense(DIM), head])
        model.compile("sgd", loss=head.loss, run_eagerly=eager)
    model.fit(x, y, batch_size=32, verbose=0)
    assert len(made) == passes
    assert head.optimizer.iterations.numpy() == 3


@pytest.mark.parametrize("head", ["tree", "full"])
def test_nothing_moves_without_a_gradient(head):
    x, y = data()
    model, layer = compiled(head, True)
    before = weights(model)
    model.evaluate(x, y, verbose=0)
    layer.trainable = False
    model.compile(kl.optimizers.Adagrad(0.05), loss=layer.loss)
    model.train_on_batch(x, y)
    after = weights(model)
    assert all(np.array_equal(after[key], before[key]) for key in before if key.startswith("head/"))
    assert layer.optimizer.iterations.numpy() == 0
    assert not np.array_equal(after["small/0"], before["small/0"])


@pytest.mark.parametrize("head", HEADS)
def test_gradients_of_scores_take_no_step(head):
    x, y = tf.constant(np.ones((4, DIM), "float32")), tf.range(4)
    head = HEADS[head](optimizer=kl.optimizers.SGD(1.0))
    head.build(x.shape)
    before = [weight.numpy() for weight in head.weights]
    for scores in (head.log_prob, lambda hidden, _: head.top_k(hidden, 3)[0]):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = scores(head(x, training=True), y)
        assert np.abs(tape.gradient(found, x)).max() > 0
    for weight, old in zip(head.weights, before, strict=True):
        np.testing.assert_array_equal(weight, old)


@pytest.mark.full
@pytest.mark.parametrize("head", ["tree", "full", "sampled"])
def test_a_loaded_model_trains_on(head, tmp_path):
    x, y = data()
    model, _ = trained(head, True)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    model.reset_metrics()  # old versions of Keras go on with what they had
    assert loaded.train_on_batch(x, y) == model.train_on_batch(x, y)
    want, got = weights(model), weights(loaded)
    for name, values in want.items():
        np.testing.assert_array_equal(got[name], values, err_msg=name)


def test_what_is_refused():
    words = kl.layers.ShardedEmbedding(CLASSES, DIM)
    with pytest.raises(ValueError, match="`optimizer` must be None where the kernel is a table of another"):
        kl.layers.FullSoftmax(CLASSES, kernel=words, optimizer="sgd")
    with pytest.raises(ValueError, match=r"`optimizer` must be one of .*RMSprop"):
        kl.layers.SampledSoftmax(CLASSES, 5, optimizer="rmsprop")
    with pytest.raises(ValueError, match="`clipnorm` of an `optimizer` that is fused"):
        kl.layers.SparseOutput(CLASSES, 3, optimizer=keras.optimizers.SGD(0.1, clipnorm=1.0))
    with pytest.raises(ValueError, match="`optimizer` must be None under mixed_float16"):
        kl.layers.FullSoftmax(CLASSES, optimizer="sgd", dtype="mixed_float16")


def test_what_the_caller_gave_is_copied():
    given = keras.optimizers.serialize(keras.optimizers.Adagrad(0.1))
    as_given = copy.deepcopy(given)
    counts, weights = np.arange(CLASSES, 0, -1.0), np.ones(CLASSES, "float32")
    full = kl.layers.FullSoftmax(CLASSES, counts=counts, optimizer=given)
    sparse = kl.layers.SparseOutput(CLASSES, 3, label_weights=weights, optimizer=given)
    kl.layers.ShardedEmbedding(9, 3, optimizer=given)
    kl.layers.TableConfig("t", 9, 3, optimizer=given)
    assert given == as_given
    counts[:], weights[:] = 1, 7
    full.build((None, 4))
    sparse.build((None, 8))
    assert np.ptp(full.bias.numpy()) > 0
    assert not any((weight.numpy() == 7).all() for weight in sparse.weights if weight.shape == (CLASSES,))
