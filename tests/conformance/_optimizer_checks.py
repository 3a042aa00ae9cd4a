"""A short training of a table over all that holds it, by any optimizer."""

import functools

import keras
import numpy as np
import tensorflow as tf
from _training import arrays_of
from conformance._optimizers import OPTIMIZERS, WRAPPERS, make

import keras_largeout as kl
from keras_largeout.planning.placement import Placement
from keras_largeout.replicas.devices import table_devices

# Few epochs: over several devices, a new iterator takes longer than 25 steps.
VOCAB, WIDTH, BATCH, LENGTH, STEPS, EPOCHS = 97, 8, 24, 5, 25, 2


def data():
    rng = np.random.default_rng(1)
    ids = np.minimum(rng.zipf(1.3, (STEPS * BATCH, LENGTH)) - 1, VOCAB - 1).astype("int32")
    return tf.data.Dataset.from_tensor_slices((ids, rng.integers(0, 3, STEPS * BATCH))).batch(BATCH)


def placement():
    """Every row where chance puts it: on one of the devices, or on all of them."""
    devices = len(table_devices())
    owners = np.random.default_rng(3).integers(-1, devices, VOCAB)
    return Placement.explicit(owners, devices) if devices > 1 else "auto"


@functools.cache
def run(name, wrapper, strategy, folder=None):
    """The losses of the epochs, rows, slots and dense weights after all steps."""
    keras.utils.set_random_seed(7)
    with strategy.scope():
        tokens = keras.Input((LENGTH,), dtype="int32")
        table = kl.layers.ShardedEmbedding(VOCAB, WIDTH, placement=placement(), name="words")
        model = kl.Model(tokens, keras.layers.Dense(3)(keras.layers.Flatten()(table(tokens))))
        optimizer = WRAPPERS[wrapper][0](make(name, learning_rate=OPTIMIZERS[name][3]))
        model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(data(), epochs=EPOCHS, verbose=0, shuffle=False).history["loss"]
    found = arrays_of(table.table) | {f"dense{i}": w.numpy() for i, w in enumerate(model.layers[-1].weights)}
    found["iterations"] = getattr(optimizer, "inner_optimizer", optimizer).iterations.numpy()
    return {"losses": losses, **{key: np.float64(value).tolist() for key, value in found.items()}}
