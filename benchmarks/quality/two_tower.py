"""Two towers of TensorFlow Recommenders: our layers and LazyAdam beside Keras's `Embedding` and Adam."""

import _common
import two_tower as example

# isort: split
import keras

import keras_largeout as kl

ROWS = ("ShardedEmbedding, LazyAdam", "keras.layers.Embedding, Adam")
COURSE = ("seconds of training", "Recall@20 in validation, %")


def run(row, argv):
    args = example.arguments(argv)
    keras.utils.set_random_seed(args.seed)
    data = _common.interactions(args.data, args.share)
    users, items = len(data.users), len(data.counts)
    if row == ROWS[0]:
        model, optimizer = example.build(args, users, items), kl.optimizers.LazyAdam
    else:
        table, optimizer = keras.layers.Embedding, keras.optimizers.Adam
        model = example.build(args, users, items, table, Bag(table(items, args.dim)))
    model.compile(optimizer(args.learning_rate))
    found, clock = example.fit(args, model, data)
    scores = {name: 100 * value for name, value in example.evaluate(args, model, data, last=1).items()}
    own = {"ms/step": 1000 * clock.seconds / clock.steps, "GB": _common.peak_memory()}
    return {**scores, **own, "course": [(s, 100 * r) for s, r in zip(found["seconds"], found["Recall@20"])]}


class Bag(keras.layers.Layer):
    """The mean of the rows of a bag of ids, filled up with -1, by Keras's own means."""

    def __init__(self, rows, **kwargs):
        super().__init__(**kwargs)
        self.rows = rows

    def call(self, ids):
        there = keras.ops.cast(ids >= 0, "float32")[..., None]
        rows = self.rows(keras.ops.maximum(ids, 0)) * there
        return keras.ops.sum(rows, axis=-2) / keras.ops.maximum(keras.ops.sum(there, axis=-2), 1.0)
