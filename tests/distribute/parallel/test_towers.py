"""`parallelize(model, "towers")`: committees, and mixtures of experts."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from _training import assert_same
from distribute.parallel._models import DEVICES, X, Y, trained, values

import keras_largeout as kl
import keras_largeout.optimizers as klo
from keras_largeout.distribute import parallelize

X, CLASSES = X[:, 0], (X[:, 0] > 0).sum(axis=1) // 2


def small(outputs=1, activation=None):
    keras.utils.set_random_seed(4)
    layers = [
        keras.layers.Dense(8, "tanh", kernel_regularizer="l2", name="first"),
        keras.layers.Dense(outputs, activation, name="last"),
    ]
    return kl.Sequential([keras.Input((5,), name="x"), *layers])


@pytest.mark.parametrize("mix", ["mean", "gated"])
def test_one_tower_is_the_model(mix):
    plain, one = small(), parallelize(small(), "towers", DEVICES[:1], mix=mix)
    want = trained(plain, klo.LazyAdam(0.01), (X, Y))
    np.testing.assert_allclose(trained(one, klo.LazyAdam(0.01), (X, Y)), want, rtol=1e-6)
    assert_same(values(one), values(plain))


def test_each_learns_as_it_would_alone():
    model = parallelize(small(), "towers", DEVICES[:3])
    towers = [layer for layer in model.layers if layer.name.startswith("tower_")]
    alone = [keras.models.clone_model(tower) for tower in towers]
    for tower, one in zip(towers, alone):
        one.set_weights(tower.get_weights())
    assert all(
        not np.array_equal(a.get_weights()[0], b.get_weights()[0]) for a, b in itertools.pairwise(towers)
    )
    losses = trained(model, klo.SGD(0.05), (X, Y), epochs=2)
    each = [trained(one, klo.SGD(0.05), (X, Y), epochs=2) for one in alone]
    np.testing.assert_allclose(losses, np.mean(each, axis=0), rtol=1e-5)
    for tower, one, device in zip(towers, alone, DEVICES):
        for a, b in zip(tower.weights, one.weights):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)
            assert a.value.device.endswith(device)
    want = np.mean([one.predict(X, verbose=0) for one in alone], axis=0)
    np.testing.assert_allclose(model.predict(X, verbose=0), want, rtol=1e-4, atol=1e-6)


def test_seeds_are_those_of_the_tower():
    keras.utils.set_random_seed(4)
    seeded = keras.initializers.GlorotUniform(seed=7)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, kernel_initializer=seeded)])
    first, second = parallelize(model, "towers", DEVICES[:2]).layers[1:3]
    np.testing.assert_array_equal(first.get_weights()[0], model.get_weights()[0])
    assert not np.array_equal(first.get_weights()[0], second.get_weights()[0])


def mixture(model, x):
    """The towers' outputs and the gates, in NumPy."""
    towers = [layer for layer in model.layers if layer.name.startswith("tower_")]
    outputs = np.stack([np.asarray(tower(x)) for tower in towers], axis=1)
    kernel, bias = model.get_layer("gate").get_weights()
    gates = np.asarray(tf.nn.softmax(x @ kernel + bias))
    return outputs.astype(np.float64), gates.astype(np.float64)


@pytest.mark.parametrize("loss", ["mse", "sparse_categorical_crossentropy"])
def test_a_mixture_of_experts(loss):
    """Its loss is -log of the likelihood, written out here."""
    gaussian = loss == "mse"
    model = parallelize(small(*([1] if gaussian else [4, "softmax"])), "towers", DEVICES[:3], mix="gated")
    y = Y if gaussian else CLASSES
    model.compile(klo.LazyAdam(0.02), loss)
    first = model.fit(X, y, batch_size=10, epochs=20, verbose=0).history["loss"]
    assert first[-1] < first[0]
    outputs, gates = mixture(model, X)
    if gaussian:
        deviations = np.exp(model.get_layer("mixed").log_deviation.numpy())[None]
        assert not np.allclose(deviations, 1)
        likelihoods = np.exp(-0.5 * ((y[:, None] - outputs) / deviations) ** 2) / deviations
        likelihoods = likelihoods[..., 0] / np.sqrt(2 * np.pi)
    else:
        likelihoods = np.take_along_axis(outputs, y[:, None, None].astype(int), axis=2)[..., 0]
    want = -np.log((gates * likelihoods).sum(axis=1)).mean() + float(sum(model.losses))
    np.testing.assert_allclose(model.evaluate(X, y, batch_size=10, verbose=0), want, rtol=1e-4)
    mixed = (gates[..., None] * outputs).sum(axis=1)
    np.testing.assert_allclose(model.predict(X, verbose=0), mixed, rtol=1e-4, atol=1e-6)


def test_heavy_ops_are_on_the_devices_of_the_towers():
    model = parallelize(small(), "towers", DEVICES[:2], mix="gated")
    model.compile(keras.optimizers.Adam(0.01), "mse")
    step = tf.function(lambda x, y: model.train_step((x, y)))
    graph = step.get_concrete_function(tf.constant(X[:8]), tf.constant(Y[:8])).graph
    squares = [op for op in graph.get_operations() if op.type in ("Square", "MatMul")]
    on_towers = [op for op in squares if op.device.endswith(tuple(DEVICES[:2]))]
    assert len(on_towers) >= 10  # products forward and back, and the losses
    for tower, device in zip(model.layers[2:4], DEVICES):
        for weight in tower.trainable_weights:
            assert weight.value.device.endswith(device)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"`mix` must be 'mean' or 'gated'. Received: mix='sum'"):
        parallelize(small(), "towers", DEVICES[:2], mix="sum")
    words = keras.Sequential([keras.Input((3,), dtype="int32"), keras.layers.Embedding(5, 2)])
    with pytest.raises(ValueError, match="`gate` must be a layer from the model's inputs"):
        parallelize(words, "towers", DEVICES[:2], mix="gated")
    head = kl.layers.FullSoftmax(9, name="words")
    with pytest.raises(ValueError, match=r"must not be 'towers' for a model with a head.*'words'"):
        parallelize(kl.Sequential([keras.Input((3,)), head]), "towers", DEVICES[:2])
    model = parallelize(small(), "towers", DEVICES[:2], mix="gated")
    model.compile("adam", "mae")
    with pytest.raises(ValueError, match=r"must be -log of a likelihood. Received: loss='mae'"):
        model.fit(X, Y, verbose=0)
