"""Tables over several devices: the numbers of one device."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of
from _training import arrays_of, assert_same, fit, in_the_suite

import keras_largeout as kl
from keras_largeout.planning.placement import Placement

VOCAB, DIM, BATCH, LENGTH = 97, 8, 24, 5
STEPS = 10

PLACEMENTS = {
    "replicated": lambda n: "replicated",
    "range": lambda n: "range",
    "modulo": lambda n: "modulo",
    "permutation": lambda n: "permutation",
    "columns": lambda n: "columns",
    "table": lambda n: Placement.on_device(VOCAB, n, n - 1),
    "hot": lambda n: Placement.by_modulo(VOCAB, n).with_hot_rows([0, 1, 2, 50]),
    "explicit": lambda n: Placement.explicit(np.random.default_rng(3).integers(-1, n, VOCAB), n),
}


def data():
    rng = np.random.default_rng(1)
    ids = np.minimum(rng.zipf(1.3, (STEPS * BATCH, LENGTH)) - 1, VOCAB - 1).astype("int32")
    return tf.data.Dataset.from_tensor_slices((ids, rng.integers(0, 3, STEPS * BATCH))).batch(BATCH)


@functools.cache
def train(devices, kind, combiner):
    """The losses of all steps, and the arrays after them."""
    keras.utils.set_random_seed(7)
    with strategy_of(devices).scope():
        tokens = keras.Input((LENGTH,), dtype="int32")
        place = PLACEMENTS[kind](devices) if devices > 1 else "auto"
        x = kl.layers.ShardedEmbedding(VOCAB, DIM, combiner=combiner, placement=place)(tokens)
        x = keras.layers.Flatten()(x)
        model = keras.Model(tokens, keras.layers.Dense(3)(x))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(kl.optimizers.LazyAdam(0.01), loss)
    losses = fit(model, data())
    dense = {f"dense{i}": w for i, w in enumerate(model.layers[-1].weights)}
    return losses, arrays_of(model.layers[1].table, **dense)


# A replica combines rows after the exchange has brought them, so that it does not see where they are. Columns
# are apart until then, and rows that each device has are not exchanged: these two, and "explicit", which has
# rows of both kinds, are tried with every combiner.
@pytest.mark.parametrize(
    ("kind", "combiner"),
    [(kind, None) for kind in PLACEMENTS]
    + [("columns", "sum"), ("replicated", "mean"), ("explicit", "mean")]
    + in_the_suite([("columns", "mean"), ("replicated", "sum"), ("explicit", "sum")]),
)
def test_every_placement(kind, combiner):
    want_losses, want = train(1, None, combiner)
    losses, got = train(4, kind, combiner)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-5)
    assert_same(got, want, 2e-5, 2e-6)
