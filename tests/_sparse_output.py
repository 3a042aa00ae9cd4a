"""A small `SparseOutput`, a model that ends in it, and labels."""

import keras
import tensorflow as tf

from keras_largeout.layers import SparseOutput

CLASSES, DIM, ROWS, FAN_IN = 29, 17, 12, 5
BIASES = keras.initializers.RandomNormal(seed=1)
LOSSES = ["squared_hinge", "binary_crossentropy", "softmax"]


def head_of(dim=DIM, **kwargs):
    head = SparseOutput(CLASSES, **{"fan_in": FAN_IN, "seed": 3, "bias_initializer": BIASES, **kwargs})
    head.build((None, dim))
    return head


def labels_of(rng, rows=ROWS):
    """Label lists; one is empty, one has a label twice."""
    labels = [rng.choice(CLASSES, n, replace=False).tolist() for n in rng.integers(1, 6, rows)]
    labels[1], labels[2] = [], [4, 4, 9]
    return labels


def padded(labels):
    return tf.ragged.constant(labels, dtype=tf.int64).to_tensor(-1)


def model_of(head, seed=0, dim=DIM, frozen=False):
    keras.utils.set_random_seed(seed)
    x = keras.Input((6,))
    hidden = keras.layers.Dense(dim, activation="relu", name="wide", trainable=not frozen)(x)
    return keras.Model(x, head(hidden))


def data_of(rng, rows=64):
    x = rng.normal(size=(rows, 6)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, padded(labels_of(rng, rows)))).batch(16)


def small(own="adam", policy=None, **kwargs):
    keras.utils.set_random_seed(2)
    x = keras.Input((8,))
    hidden = keras.layers.Dense(DIM, activation="relu", dtype=policy)(x)
    head = SparseOutput(CLASSES, FAN_IN, optimizer=own, seed=3, name="head", **kwargs)
    return keras.Model(x, head(hidden)), head


def batch_of(rng, rows=ROWS):
    return rng.normal(size=(rows, 8)).astype("float32"), padded(labels_of(rng, rows)).numpy()
