"""What is found in private parts of Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from keras_largeout import _keras


def test_compiled_metrics():
    model = keras.Sequential([keras.layers.Dense(1)])
    assert _keras.compiled_metrics(model) == []
    model.compile("sgd", "mse", metrics=["mae"])
    assert _keras.compiled_metrics(model) == [["mae"], None]


class Inner(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.one = keras.layers.Dense(1)
        self.several = [keras.layers.Dense(1), {"a": (keras.layers.Dense(1), None)}]

    def call(self, x):
        return self.several[1]["a"][0](self.several[0](self.one(x)))


class Outer(kl.Model):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.again = self.inner
        self.flat = keras.Sequential([keras.layers.Dense(1), Inner()])

    def call(self, x):
        return self.flat(self.inner(x))


def test_all_layers():
    x = keras.Input((1,))
    shared, inner = keras.layers.Dense(1), Inner()
    steps = keras.layers.Reshape((1, 1))(inner(shared(shared(x))))
    functional = keras.Model(x, keras.layers.Bidirectional(keras.layers.LSTM(1))(steps))
    outer = Outer()
    outer(np.ones((1, 1)))
    for model in (functional, outer, outer.flat, inner, shared):
        found = _keras.all_layers(model)
        assert found[0] is model and len({id(layer) for layer in found}) == len(found)
        assert {id(layer) for layer in model._flatten_layers()} <= {id(layer) for layer in found}
    assert len(_keras.all_layers(inner)) == 4
    round_about = Inner()
    round_about.several.append(round_about.several)  # a list that holds itself
    assert len(_keras.all_layers(round_about)) == 4


@pytest.mark.parametrize("steps", [None, 3])
def test_step_counter(steps):
    optimizer = keras.optimizers.Adam(gradient_accumulation_steps=steps)
    variable = keras.Variable([0.0])
    for _ in range(4):
        optimizer.apply([tf.ones([1])], [variable])
    assert int(_keras.step_counter(optimizer).value) == 4
    assert int(optimizer.iterations) == (4 if steps is None else 1)
    broken = type("Optimizer", (), {"variables": [variable]})()
    with pytest.raises(ImportError, match="counter of steps as the first of an optimizer's variables"):
        _keras.step_counter(broken)


def test_mask_of():
    masked = keras.layers.Masking()(tf.zeros([2, 3, 1]))
    np.testing.assert_array_equal(_keras.mask_of(masked), np.zeros((2, 3), bool))
    assert _keras.mask_of(tf.zeros([2])) is None


def test_with_mask():
    values, mask = tf.zeros([2]), tf.constant([True, False])
    assert _keras.mask_of(_keras.with_mask(values, None)) is None
    assert _keras.mask_of(_keras.with_mask(values, mask)) is mask


def test_is_symbolic():
    assert not _keras.is_symbolic()
    with keras.SymbolicScope():
        assert _keras.is_symbolic()
