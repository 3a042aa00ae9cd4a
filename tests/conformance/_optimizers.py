"""The optimizers that pass the same tests. A new one joins by one line of `OPTIMIZERS`."""

import keras
import numpy as np
import tensorflow as tf
from _tables import one_shard

import keras_largeout.optimizers as klo

# The only table of optimizers: name -> (ours, the optimizer whose dense path is the truth, arguments, the
# learning rate of a short training).
OPTIMIZERS = {
    "sgd": (klo.SGD, keras.optimizers.SGD, {}, 0.5),
    "momentum": (klo.SGD, keras.optimizers.SGD, {"momentum": 0.9}, 0.2),
    "nesterov": (klo.SGD, keras.optimizers.SGD, {"momentum": 0.9, "nesterov": True}, 0.2),
    "adagrad": (klo.Adagrad, keras.optimizers.Adagrad, {}, 0.1),
    "row_wise_adagrad": (klo.RowWiseAdagrad, klo.RowWiseAdagrad, {}, 0.1),
    "lazy_adam": (klo.LazyAdam, keras.optimizers.Adam, {}, 0.01),
    "ftrl": (
        klo.Ftrl,
        keras.optimizers.Ftrl,
        {"l1_regularization_strength": 0.01, "l2_shrinkage_regularization_strength": 0.01, "beta": 0.1},
        0.1,
    ),
}
OPTIONS = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.5},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.3},
    "weight_decay": {"weight_decay": 0.1},
    # The mean gradient of the table is clipped, that of the others is not: their sums would be.
    "accumulation": {"gradient_accumulation_steps": 3, "clipnorm": 5.0},
    "loss_scale": {"loss_scale_factor": 1024.0},
    "schedule": {"learning_rate": keras.optimizers.schedules.PolynomialDecay(0.1, 5, 0.01)},
}
# What stands around an optimizer: of this package, and the one whose dense path is the truth.
WRAPPERS = {
    "bare": (lambda optimizer: optimizer,) * 2,
    "loss scaled": tuple(
        lambda optimizer, kind=kind: kind(optimizer, initial_scale=64.0)
        for kind in (klo.LossScaleOptimizer, keras.optimizers.LossScaleOptimizer)
    ),
}
ROWS, DIM = 23, 7


def make(name, option="plain", truth=False, **arguments):
    ours, keras_one, own, _ = OPTIMIZERS[name]
    return (keras_one if truth else ours)(**{"learning_rate": 0.1, **own, **OPTIONS[option], **arguments})


def weights(rng_seed=1, table=keras.Variable):
    """Two tables, of rows and of numbers, and two dense weights."""
    rng = np.random.default_rng(rng_seed)
    values = [rng.normal(size=shape).astype("float32") for shape in [(ROWS, DIM), (ROWS,), (DIM, 3), ()]]
    first = [keras.Variable(v) if table is keras.Variable else _shard(v) for v in values[:2]]
    return first + [keras.Variable(v) for v in values[2:]]


def _shard(values):
    shard = one_shard(values.shape, "zeros", name="table")
    shard.assign(values)
    return shard


def gradients(rng, touched=None, dtype="float32"):
    """Gradients of `weights()`, as slices with duplicates for the first two, and the same ones dense."""

    def draw(shape):
        return tf.cast(rng.normal(size=shape).astype("float32"), dtype)

    # Every row at least once, unless told otherwise, so that lazy and dense updates are the same thing.
    touched = np.concatenate([np.arange(ROWS), rng.integers(0, ROWS, 30)]) if touched is None else touched
    indices = rng.permutation(touched)
    sparse, dense = [], []
    for shape in [(ROWS, DIM), (ROWS,)]:
        values = draw((len(indices),) + shape[1:])
        total = np.zeros(shape, "float32")
        np.add.at(total, indices, tf.cast(values, tf.float32).numpy())
        sparse.append(tf.IndexedSlices(values, tf.constant(indices), tf.constant(shape, tf.int64)))
        dense.append(tf.constant(total))
    others = [draw(shape) for shape in [(DIM, 3), ()]]
    return sparse + others, dense + [tf.cast(g, tf.float32) for g in others]


def scaled(grads, factor):
    """Gradients times `factor`, as those of a scaled loss."""

    def times(grad):
        if isinstance(grad, tf.IndexedSlices):
            return tf.IndexedSlices(grad.values * factor, grad.indices, grad.dense_shape)
        return grad * factor

    return [times(grad) for grad in grads]


def assert_close(ours, truth, tolerance=2e-6, message=""):
    for a, b in zip(ours, truth):
        a, b = keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=message)
