"""A small model of three tables, whose rows are in one memory or another: for the tests of all of them."""

import keras
import numpy as np
from _tables import strategy_of
from _training import arrays_of, fit, in_the_suite

import keras_largeout as kl
import keras_largeout.optimizers as klo
from keras_largeout.layers import DistributedEmbedding, FeatureConfig, ShardedEmbedding, TableConfig

ROWS, DIM, BATCH = 300, 3, 12
IDS = np.random.default_rng(0).integers(0, 60, (2 * BATCH, 4)) * 5
DATA = (IDS, IDS[:, 1:] % 7), np.sin(IDS.sum(axis=1, keepdims=True)).astype("float32")
OPTIMIZERS = {
    "sgd": lambda: klo.SGD(0.1),
    "momentum": lambda: klo.SGD(0.1, momentum=0.9),
    "adagrad": lambda: klo.Adagrad(0.1, clipnorm=0.1),
    "rowwise_adagrad": lambda: klo.RowWiseAdagrad(0.1),
    "lazy_adam": lambda: klo.LazyAdam(0.01, weight_decay=0.1),
    "ftrl": lambda: klo.Ftrl(0.1),
    "accumulating": lambda: klo.Adagrad(0.1, gradient_accumulation_steps=2),
}


# Rules differ in their slots: none, one value per row, two rows, and what is kept between updates. The others
# have their turn behind `soak`.
ON_ONE_DEVICE = in_the_suite(
    [(name, 1) for name in OPTIMIZERS],
    *((name, 1) for name in ("sgd", "rowwise_adagrad", "lazy_adam", "accumulating")),
)


def model_of(
    storage,
    optimizer=OPTIMIZERS["adagrad"],
    devices=1,
    placement="permutation",
    own=None,
    seed=3,
    small="modulo",
    beside_host=False,
    **kwargs,
):
    """A compiled model; `small` is the placement of its smallest table, `own` the optimizer of two.

    `kwargs`: for all tables.
    """
    keras.utils.set_random_seed(seed)
    with strategy_of(devices, beside_host).scope():
        ids = [keras.Input((4,), dtype="int64"), keras.Input((3,), dtype="int64")]
        place = placement if devices > 1 else "auto"
        words = ShardedEmbedding(ROWS, DIM, storage=storage, name="words", placement=place, **kwargs)
        first = keras.initializers.RandomNormal(seed=1), keras.initializers.RandomUniform(seed=2)
        tables = [
            TableConfig(name, rows, 2, initializer, storage=storage, optimizer=own, placement=where, **kwargs)
            for name, rows, initializer, where in zip("ab", (ROWS, 7), first, ("modulo", small))
        ]
        features = DistributedEmbedding([FeatureConfig(t.name, t) for t in tables], name="features")
        vectors = [keras.layers.Flatten()(words(ids[0])), *features(ids)]
        model = kl.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()(vectors)))
        model.compile(optimizer(), "mse")
    return model


def tables_of(model):
    return [model.get_layer("words").table, *model.get_layer("features").tables]


def trained(model, epochs=1, **kwargs):
    """The losses, and the rows of all tables and slots by name."""
    return fit(model, DATA, batch=BATCH, epochs=epochs, **kwargs), arrays_of(*tables_of(model))


def assert_same_bits(got, want):
    """Of two results of `trained`."""
    np.testing.assert_array_equal(got[0], want[0])
    assert got[1].keys() == want[1].keys()
    for name, rows in want[1].items():
        np.testing.assert_array_equal(got[1][name], rows, err_msg=name)
