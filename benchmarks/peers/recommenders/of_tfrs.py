"""TensorFlow Recommenders' Retrieval on tf_keras (Keras 2), and the ranking model of tf_keras alone.

Both need TF_USE_LEGACY_KERAS=1 in the environment.
"""

import numpy as np
import tensorflow as tf
import tf_keras

from benchmarks._data import load
from benchmarks._step import Step

OPTIMIZERS = {
    "adagrad": lambda lr: tf_keras.optimizers.Adagrad(lr, initial_accumulator_value=0.1, epsilon=1e-7),
    "adam": lambda lr: tf_keras.optimizers.Adam(lr, epsilon=1e-7),
}
BOTTOM, TOP = (64, 16), (128, 64, 1)


def two_tower(config, data):
    import tensorflow_recommenders as tfrs

    class TwoTower(tfrs.Model):
        def __init__(self):
            super().__init__()
            self.user = tf_keras.layers.Embedding(config["rows"], config["dim"])
            self.item = tf_keras.layers.Embedding(config["rows"], config["dim"])
            mean = tf_keras.losses.CategoricalCrossentropy(from_logits=True)
            self.task = tfrs.tasks.Retrieval(loss=mean)

        def compute_loss(self, ids, training=False):
            return self.task(self.user(ids["user"]), self.item(ids["item"]), compute_metrics=False)

    model = TwoTower()
    model.compile(OPTIMIZERS[config["optimizer"]](config["lr"]))
    batches = {side: load(data, side) for side in ("user", "item")}
    dataset = tf.data.Dataset.from_tensor_slices(batches).repeat()
    steps = config.get("steps_of_fit")
    if steps:
        dataset = dataset.take(steps).prefetch(2)
        return Step(lambda i: model.fit(dataset, epochs=1, verbose=0).history["loss"][0])
    iterator, train = iter(dataset.prefetch(2)), model.make_train_function()
    return Step(lambda i: float(train(iterator)["loss"]))


def ranking(config, data):
    names = [f"c{i}" for i in range(len(config["rows"]))]
    dense = tf_keras.Input((13,), name="numbers")
    inputs = {name: tf_keras.Input((), dtype="int64", name=name) for name in names}
    tables = [tf_keras.layers.Embedding(rows, config["dim"]) for rows in config["rows"]]
    below = dense
    for width in BOTTOM:
        below = tf_keras.layers.Dense(width, "relu")(below)
    vectors = [below, *(table(ids) for table, ids in zip(tables, inputs.values()))]
    i, j = np.tril_indices(len(vectors), -1)
    dots = tf_keras.layers.Lambda(lambda given: _dots(given, i * len(given) + j))(vectors)
    x = tf_keras.layers.Concatenate()([below, dots])
    for width in TOP:
        x = tf_keras.layers.Dense(width, "relu" if width > 1 else "sigmoid")(x)
    model = tf_keras.Model({"numbers": dense, **inputs}, x)
    model.compile(OPTIMIZERS[config["optimizer"]](config["lr"]), "binary_crossentropy")
    ids = load(data, "ids")
    batches = {"numbers": load(data, "numbers"), **{name: ids[..., k] for k, name in enumerate(names)}}
    dataset = tf.data.Dataset.from_tensor_slices((batches, load(data, "labels"))).repeat().prefetch(2)
    iterator, train = iter(dataset), model.make_train_function()

    def run(i):
        model.reset_metrics()
        return float(train(iterator)["loss"])

    return Step(run)


def _dots(vectors, pairs):
    stacked = tf.stack(vectors, axis=1)
    dots = tf.reshape(tf.matmul(stacked, stacked, transpose_b=True), [-1, len(vectors) ** 2])
    return tf.gather(dots, pairs, axis=1)
