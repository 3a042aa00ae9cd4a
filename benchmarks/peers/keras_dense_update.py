"""An optimizer of Keras or of keras_largeout applies one dense gradient, in a tf.function, as `fit` would."""

import keras
import tensorflow as tf

from benchmarks._data import load
from benchmarks._step import Step


def _optimizer(module, adam, name):
    if name == "Adagrad":
        return module.Adagrad(1e-3)
    return adam(1e-3) if name == "Adam" else module.SGD(1e-3, momentum=0.9 if name == "momentum" else 0.0)


def _apply(optimizer, config, data, jit_compile=None):
    weight, grad = keras.Variable(tf.zeros(config["shape"])), tf.constant(load(data, "grad"))
    optimizer.build([weight])

    @tf.function(jit_compile=jit_compile)
    def step():
        optimizer.apply([grad], [weight])
        return weight.value[0, 0]  # in the graph: a slice of an eager tensor takes as long as a small step

    return Step(lambda i: step().numpy())


def ours(config, data):
    from keras_largeout import optimizers

    return _apply(_optimizer(optimizers, optimizers.LazyAdam, config["optimizer"]), config, data)


def step(config, data, jit_compile=None):
    make = keras.optimizers
    return _apply(_optimizer(make, make.Adam, config["optimizer"]), config, data, jit_compile)


def jit_step(config, data):
    return step(config, data, jit_compile=True)
