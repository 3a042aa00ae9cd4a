"""Models for the tests of `parallelize`, and what one device makes of them."""

import functools

import keras
import numpy as np

import keras_largeout as kl
import keras_largeout.optimizers as klo
from keras_largeout.layers import HierarchicalSoftmax, ShardedEmbedding

DEVICES = ["CPU:1", "CPU:2", "CPU:3", "CPU:4"]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6, 5)).astype("float32")
Y = X.sum(axis=(1, 2))[:, None]
IDS = RNG.integers(0, 50, (40, 6))
WORDS = RNG.integers(0, 50, 40)

OPTIMIZERS = {
    "keras.Adam": functools.partial(keras.optimizers.Adam, 0.01),
    "SGD": functools.partial(klo.SGD, 0.05, momentum=0.9, nesterov=True),
    "Adagrad": functools.partial(klo.Adagrad, 0.05, weight_decay=0.01),
    "RowWiseAdagrad": functools.partial(klo.RowWiseAdagrad, 0.05),
    "LazyAdam": functools.partial(klo.LazyAdam, 0.01, global_clipnorm=1.0),
    "Ftrl": functools.partial(klo.Ftrl, 0.1, l1_regularization_strength=0.001),
}


def dense_model():
    """A layer that is called twice, an output that skips layers, penalties, a loss that a layer adds."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6, 5), name="x")
    twice = keras.layers.Dense(5, "tanh", kernel_regularizer="l2", name="twice")
    x = keras.layers.Dense(8, "tanh", activity_regularizer="l2", kernel_regularizer="l1", name="wide")(
        twice(inputs)
    )
    skip = x
    x = twice(keras.layers.Dense(5, name="narrow")(keras.layers.LayerNormalization(name="norm")(x)))
    x = keras.layers.GRU(8, name="gru")(x)
    x = keras.layers.Add(name="add")([x, skip[:, 0]])
    return kl.Model(inputs, keras.layers.Dense(1, name="out")(x))


def word_model():
    """Tables, a head, masks, a pair of kernels, a kernel by itself, branches, seeds; inputs by names."""
    keras.utils.set_random_seed(2)
    numbers = keras.Input((5,), name="numbers")
    ids = keras.Input((6,), dtype="int32", name="ids")
    x = keras.layers.Dense(17, kernel_regularizer="l2", name="up")(numbers)
    x = keras.layers.Dense(9, "tanh", bias_regularizer="l1", name="down")(keras.layers.ReLU(name="relu")(x))
    e = ShardedEmbedding(50, 8, placement="modulo", mask_zero=True, name="items")(ids)
    e = keras.layers.GRU(7, name="gru")(e)
    f = keras.layers.Embedding(50, 10, name="plain")(ids)
    f = keras.layers.Dropout(0.3, name="dropout")(keras.layers.Flatten(name="flat")(f))
    x = keras.layers.Concatenate(name="joined")([x, e, f])
    x = keras.layers.Dense(16, "softmax", name="hidden")(x)
    head = HierarchicalSoftmax(50, name="words")
    return kl.Model({"numbers": numbers, "ids": ids}, head(x))


WORD_DATA = ({"numbers": X[:, 0], "ids": IDS}, WORDS)


def loss_of(model):
    heads = [layer for layer in model.layers if hasattr(layer, "token_losses")]
    return heads[0].loss if heads else "mse"


def trained(model, optimizer, data, epochs=5, **compiling):
    """The losses of 50 steps."""
    model.compile(optimizer, loss_of(model), **compiling)
    x, y = data
    history = model.fit(x, y, batch_size=4, epochs=epochs, shuffle=False, verbose=0).history
    return history["loss"]


def values(model):
    """The weights of a model, by layer, as files hold them."""
    found = {}
    for layer in model.layers:
        store = {}
        layer.save_own_variables(store)
        store.pop("digests", None)
        found.update({f"{layer.name}/{key}": np.asarray(value) for key, value in store.items()})
    return found
