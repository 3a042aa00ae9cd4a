"""Two towers and a ranking model of Keras 3, whatever layers have the tables: also used for ours."""

import gc
import itertools

import keras
import numpy as np
import tensorflow as tf

from benchmarks._data import load
from benchmarks._step import Step

OPTIMIZERS = {
    "adagrad": lambda lr: keras.optimizers.Adagrad(lr, initial_accumulator_value=0.1, epsilon=1e-7),
    "adam": lambda lr: keras.optimizers.Adam(lr, epsilon=1e-7),
}
SIDES = ("user", "item")
BOTTOM, TOP = (64, 16), (128, 64, 1)


class InBatch(keras.Model):
    """Each query is to find its own item among those of the batch.

    Args:
        vectors: from `{"user": [n], "item": [n]}` to a dict of vectors `[n, dim]`.
    """

    def __init__(self, vectors):
        super().__init__()
        self.vectors = vectors

    def call(self, ids):
        return self.vectors(ids)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        scores = tf.matmul(y_pred["user"], y_pred["item"], transpose_b=True)
        own = tf.range(tf.shape(scores)[0])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(own, scores))


def of_each(make):
    """Return lookups by one layer per input, `make(name)`."""

    def layers(inputs):
        return {name: make(name)(ids) for name, ids in inputs.items()}

    return layers


def two_tower(config, data, lookups=None, optimizers=OPTIMIZERS):
    """Return the step of two towers of one table each.

    Args:
        lookups: from a dict of inputs to a dict of vectors, symbolically. None: `keras.layers.Embedding`.
        optimizers: dict from names to functions of a learning rate.
    """
    if lookups is None:
        lookups = of_each(
            lambda name: keras.layers.Embedding(config["rows"], config["dim"], name=f"{name}_table")
        )
    inputs = {side: keras.Input((), dtype="int64", name=side) for side in SIDES}
    model = InBatch(keras.Model(inputs, lookups(inputs)))
    model.compile(optimizers[config["optimizer"]](config["lr"]))
    batches = {side: load(data, side) for side in SIDES}
    return trained(model, tf.data.Dataset.from_tensor_slices(batches), config)


def ranking_model(config, lookups=None, optimizers=OPTIMIZERS):
    """Return DLRM: dot products of all pairs of features. The arguments are those of `two_tower`."""
    if lookups is None:
        rows = dict(zip(names(config), config["rows"]))
        lookups = of_each(
            lambda name: keras.layers.Embedding(rows[name], config["dim"], name=f"{name}_table")
        )
    dense = keras.Input((13,), name="numbers")
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in names(config)}
    vectors = list(lookups(inputs).values())
    below = dense
    for width in BOTTOM:
        below = keras.layers.Dense(width, "relu")(below)
    vectors = keras.ops.stack([below, *vectors], axis=1)
    count = vectors.shape[1]
    dots = keras.ops.matmul(vectors, keras.ops.transpose(vectors, (0, 2, 1)))
    i, j = np.tril_indices(count, -1)
    dots = keras.ops.take(keras.ops.reshape(dots, (-1, count * count)), i * count + j, axis=1)
    x = keras.layers.Concatenate()([below, dots])
    for width in TOP:
        x = keras.layers.Dense(width, "relu" if width > 1 else "sigmoid")(x)
    model = keras.Model({"numbers": dense, **inputs}, x)
    model.compile(optimizers[config["optimizer"]](config["lr"]), "binary_crossentropy")
    return model


def ranking(config, data, lookups=None, optimizers=OPTIMIZERS):
    """Return its step, on `config["devices"]` logical devices where there are such."""
    devices = config.get("devices", 1)
    if devices == 1:
        return trained(ranking_model(config, lookups, optimizers), ranking_data(config, data), config)
    logical = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(devices)], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        model = ranking_model(config, lookups, optimizers)
    return trained(model, ranking_data(config, data), config, strategy)


def names(config):
    return [f"c{i}" for i in range(len(config["rows"]))]


def ranking_data(config, data):
    """Return a dataset of `(inputs, labels)`, a batch in each row."""
    ids = load(data, "ids")
    inputs = {"numbers": load(data, "numbers"), **{n: ids[..., i] for i, n in enumerate(names(config))}}
    return tf.data.Dataset.from_tensor_slices((inputs, load(data, "labels")))


def trained(model, dataset, config, strategy=None):
    """Return the Step of a compiled model: what `fit` calls in each step, or a whole `fit`.

    Args:
        dataset: of the batches of a rotation.
        config: "steps_of_fit": so many steps, by `fit`, are one.
        strategy: None, or by which the batches are distributed.
    """
    steps = config.get("steps_of_fit")
    if steps:
        dataset = dataset.repeat().take(steps).prefetch(2)
        return Step(lambda i: model.fit(dataset, epochs=1, verbose=0, shuffle=False).history["loss"][0])
    dataset = dataset.repeat().prefetch(2)
    if strategy is not None:
        dataset = strategy.experimental_distribute_dataset(dataset)
    iterator = iter(dataset)
    built(model, dataset)
    model.make_train_function()
    return Step(of_mean(lambda: float(model.train_function(iterator)["loss"])))


def built(model, dataset):
    """Build a model and its optimizer, as Keras does before `fit` traces a step."""
    if not model.built or not model.optimizer.built:
        model.fit(dataset, epochs=1, steps_per_epoch=1, verbose=0)
        model.reset_metrics()


def of_mean(mean):
    """Return `run(i)` that returns the loss of each step, where `mean()` does a step and returns the mean
    so far.
    """
    total, count = [0.0], itertools.count(1)

    def run(i):
        sum_now = mean() * next(count)
        loss, total[0] = sum_now - total[0], sum_now
        return loss

    return run


def build(config, data, lookups=None, optimizers=OPTIMIZERS):
    """Return the step is to build the ranking model, with all its tables."""

    def run(i):
        gc.collect()  # the last one
        ranking_model(config, lookups() if lookups else None, optimizers)
        return 0.0

    return Step(run)
