"""Save, load, continue: bit for bit as if nothing had happened; also inside the wrappers that Keras has."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _training import needs_multi_optimizer

import keras_largeout as kl
import keras_largeout.optimizers as klo
from keras_largeout.tables import chunks
from keras_largeout.tables.table import ShardedTable

VOCAB, DIM = 40, 4


@keras.saving.register_keras_serializable(package="largeout_tests")
class Lookup(keras.layers.Layer):
    """The smallest layer on a `ShardedTable`."""

    def build(self, input_shape):
        self.table = ShardedTable((VOCAB, DIM), keras.initializers.RandomUniform(seed=1), name="lookup")
        self.shards = self.table.shards

    def call(self, ids):
        return tf.gather(self.shards[0].value, ids)

    def compute_output_shape(self, input_shape):
        return (*input_shape, DIM)

    def save_own_variables(self, store):
        self.table.save(store)

    def load_own_variables(self, store):
        self.table.load(store)


def lookup():
    return Lookup(dtype="float32")


def embedding():
    return keras.layers.Embedding(VOCAB, DIM)


OPTIMIZERS = {
    "sgd": lambda **k: klo.SGD(0.1, momentum=0.9, **k),
    "adagrad": lambda **k: klo.Adagrad(0.1, **k),
    "row_wise_adagrad": lambda **k: klo.RowWiseAdagrad(0.1, **k),
    "lazy_adam": lambda **k: klo.LazyAdam(keras.optimizers.schedules.PolynomialDecay(0.1, 20), **k),
    "ftrl": lambda **k: klo.Ftrl(0.1, **k),
    "accumulating": lambda **k: klo.LazyAdam(0.1, gradient_accumulation_steps=4, **k),
}
WRAPPERS = {
    "plain": lambda optimizer: optimizer,
    "loss_scale": lambda optimizer: keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=256.0),
    "multi": lambda optimizer: keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1), {".*lookup.*": optimizer})
    ),
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4 * DIM * 11)


def make_model(layer, optimizer):
    keras.utils.set_random_seed(1)
    ids = keras.Input((3,), dtype="int32")
    x = keras.layers.Flatten()(layer()(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(x))
    model.compile(optimizer, "mse")
    return model


def data():
    rng = np.random.default_rng(0)
    x = rng.integers(0, VOCAB, (28, 3)).astype("int32")
    return x, np.sin(x.sum(axis=1, keepdims=True)).astype("float32")


def train(model, part):
    x, y = data()
    for batch in range(part * 3, part * 3 + 3):  # three batches: in the middle of an accumulation
        model.train_on_batch(x[batch * 4 : batch * 4 + 4], y[batch * 4 : batch * 4 + 4])


def values(model):
    return [w.numpy() for w in model.weights]


def state(model):
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    optimizers = [*getattr(inner, "optimizers", []), inner]
    out = values(model) + [v.numpy() for v in model.optimizer.variables]
    for optimizer in optimizers:
        slots = getattr(optimizer, "_row_slots", None)
        if slots is not None:
            out += [slot.numpy() for slot in slots.slots.values()]
            out += [v.numpy() for a in slots.accumulators.values() for v in (a.indices, a.values)]
    return out


def assert_same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b):
        np.testing.assert_array_equal(x, y)


CASES = [(name, "plain") for name in OPTIMIZERS]
MULTI = pytest.param("multi", marks=needs_multi_optimizer)
CASES += [
    pytest.param(name, *getattr(wrapper, "values", [wrapper]), marks=getattr(wrapper, "marks", ()))
    for name in ("lazy_adam", "accumulating")
    for wrapper in ("loss_scale", MULTI)
]


@pytest.mark.parametrize("layer", [lookup, embedding])
@pytest.mark.parametrize("name, wrapper", CASES)
def test_load_model_continues_bit_for_bit(tmp_path, name, layer, wrapper):
    model = make_model(layer, WRAPPERS[wrapper](OPTIMIZERS[name]()))
    train(model, 0)
    path = tmp_path / "model.keras"
    model.save(path)
    again = keras.models.load_model(path)
    assert_same(state(again), state(model))
    train(model, 1)
    train(again, 1)
    assert_same(state(again), state(model))


@pytest.mark.parametrize("name", ["row_wise_adagrad", "lazy_adam", "accumulating"])
def test_weights_file_continues_bit_for_bit(tmp_path, name):
    model = make_model(lookup, OPTIMIZERS[name]())
    train(model, 0)
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    again = make_model(lookup, OPTIMIZERS[name]())
    again.optimizer.build(again.trainable_variables)
    train(again, 1)  # what is loaded replaces this
    again.load_weights(path)
    train(model, 1)
    train(again, 1)
    assert_same(state(again), state(model))


def test_a_file_of_another_optimizer_changes_nothing(tmp_path):
    model = make_model(lookup, klo.Adagrad(0.1))
    train(model, 0)
    model.save_weights(tmp_path / "a.weights.h5")
    other = make_model(lookup, klo.LazyAdam(0.1))
    train(other, 0)
    before = state(other)[len(other.weights) :]
    with pytest.warns(UserWarning, match="Skipping variable loading for optimizer"):
        other.load_weights(tmp_path / "a.weights.h5")
    assert_same(state(other)[len(other.weights) :], before)


def test_an_optimizer_that_is_not_built_takes_neither_slots_nor_the_step(tmp_path):
    """A model whose only weights are tables: Keras's own variables alone would fit."""
    model = keras.Sequential([keras.Input((2,), dtype="int32"), kl.layers.ShardedEmbedding(5, 2)])
    model.compile(klo.Adagrad(0.1), "mse")
    model.train_on_batch(np.int32([[1, 2]]), np.ones((1, 2, 2)))
    model.save_weights(tmp_path / "a.weights.h5")
    again = keras.models.clone_model(model)
    again.compile(klo.Adagrad(0.1), "mse")
    with pytest.warns(UserWarning, match="this one has no slots of tables"):
        again.load_weights(tmp_path / "a.weights.h5")
    assert again.optimizer.iterations == 0
    np.testing.assert_array_equal(again.layers[0].table.numpy(), model.layers[0].table.numpy())


def test_a_model_that_was_never_trained_is_loaded(tmp_path):
    """Its optimizer is saved before it is built, and built where it is loaded."""
    model = keras.Sequential([keras.Input((2,), dtype="int32"), kl.layers.ShardedEmbedding(5, 2)])
    model.compile(klo.LazyAdam(0.1), "mse")
    model.save(tmp_path / "m.keras")
    with pytest.warns(UserWarning, match="the saved one has no slots of tables"):
        loaded = keras.models.load_model(tmp_path / "m.keras")
    data = np.int32([[1, 2]]), np.ones((1, 2, 2))
    for each in (model, loaded):
        each.train_on_batch(*data)
    np.testing.assert_array_equal(loaded.layers[0].table.numpy(), model.layers[0].table.numpy())


@pytest.mark.parametrize("wrapper", ["loss_scale", MULTI])
@pytest.mark.parametrize("layer", [lookup, embedding])
def test_wrapped_is_as_unwrapped(layer, wrapper):
    plain = make_model(layer, klo.LazyAdam(0.1))
    inner = klo.LazyAdam(0.1)
    if wrapper == "multi":
        wrapped = keras.optimizers.MultiOptimizer(lambda variable: inner)
    else:
        wrapped = keras.optimizers.LossScaleOptimizer(inner, initial_scale=256.0)
    model = make_model(layer, wrapped)
    for part in range(2):
        train(plain, part)
        train(model, part)
    for a, b in zip(values(plain), values(model)):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_loss_scale_skips_a_step_with_nan():
    model = make_model(lookup, keras.optimizers.LossScaleOptimizer(klo.SGD(0.1), initial_scale=4.0))
    train(model, 0)
    before = values(model)
    x, y = data()
    model.train_on_batch(x[:4], y[:4] * np.nan)
    assert_same(values(model), before)
    assert float(model.optimizer.dynamic_scale) == 2.0
