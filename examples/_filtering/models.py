"""A neural model and a matrix factorisation, the memory of their tables, and their optimizers."""

import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl

NAMES = {"neural": "neural model", "factorisation": "matrix factorisation"}
STORAGES = ("device", "host", "cached", "file")
#: For each of `--optimizer` the class and the learning rate.
OPTIMIZERS = {
    "lazy_adam": (kl.optimizers.LazyAdam, 5e-3),
    "adagrad": (kl.optimizers.Adagrad, 5e-2),
    "rowwise_adagrad": (kl.optimizers.RowWiseAdagrad, 5e-2),
    "sgd": (kl.optimizers.SGD, 1.0),
    "ftrl": (kl.optimizers.Ftrl, 5e-2),
}


def place(storage, folder, cache_rows):
    """Return what a `ShardedEmbedding` is told of where its rows are.

    Args:
        storage: one of `STORAGES`.
        folder: of "file".
        cache_rows: int, of "cached".
    """
    cut = {"placement": "permutation"}  # over several devices, however small they are
    if storage == "cached":
        return {**cut, "storage": "host", "cache_rows": cache_rows}
    return {**cut, "storage": f"file:{folder}" if storage == "file" else storage}


def build(kind, rows, dim, places, first=None):
    """Return a model from `{"user", "item"}` to a score: the log odds that the user has the item.

    Args:
        kind: one of `NAMES`.
        rows: `(users, items)`.
        dim: int, the length of a row.
        places: `(dict, dict)`, what `place` returned for either table; None: tables are Keras's own layers.
        first: None, or int, a seed: of first rows that are the same for every storage.
    """
    ids = {name: keras.Input((), dtype="int32", name=name) for name in ("user", "item")}
    layer = kl.layers.ShardedEmbedding if places else keras.layers.Embedding
    vectors = [
        layer(
            count,
            dim,
            weights=None if first is None else first_rows(count, dim, [first, number]),
            name=f"{name}s",
            **where,
        )(ids[name])
        for number, (name, count, where) in enumerate(zip(ids, rows, places or ({}, {})))
    ]
    return kl.Model(ids, score(kind, dim)(vectors), name=kind)


def first_rows(rows, dim, seed, scale=0.1):
    return scale * np.random.default_rng(seed).standard_normal((rows, dim), np.float32)


def score(kind, dim):
    """Return what stands above the two tables: a `keras.Model` from the vectors of a user and an item to a
    score.
    """
    vectors = [keras.Input((dim,)), keras.Input((dim,))]
    if kind == "factorisation":
        return keras.Model(vectors, keras.layers.Dot(axes=-1)(vectors), name="score")
    x = keras.layers.Concatenate()(vectors)
    x = keras.layers.Dense(dim, "relu", name="hidden1")(x)
    x = keras.layers.Dense(max(1, dim // 2), "relu", name="hidden2")(x)
    return keras.Model(vectors, keras.layers.Dense(1, name="last")(x), name="score")


def hidden_layers(score):
    """Return its dense layers, the last one too: a factorisation has none."""
    return [layer for layer in score.layers if isinstance(layer, keras.layers.Dense)]


@tf.function(reduce_retracing=True)
def all_scores(score, users, items):
    """Return `[users, items]`: the scores of every item for every user, of their vectors.

    Args:
        score: what `score` returned.
        users, items: `[users, dim]`, `[items, dim]`.
    """
    hidden = hidden_layers(score)
    if not hidden:
        return tf.matmul(users, items, transpose_b=True)
    # The first layer takes a user and an item joined: that is the sum of what it takes of either.
    first, *others = hidden
    of_user, of_item = tf.split(first.kernel, 2)
    x = (users @ of_user)[:, None] + (items @ of_item + first.bias)[None]
    x = tf.reshape(first.activation(x), [-1, first.units])
    for layer in others:
        x = layer(x)
    return tf.reshape(x, [tf.shape(users)[0], tf.shape(items)[0]])


def optimizer(name, learning_rate=None, two=False, kind="neural"):
    """Return the optimizer of a model: one for everything, or Adagrad for tables and Adam for the rest.

    Args:
        name: one of `OPTIMIZERS`; learning_rate: float or None, its own.
        two: bool. A factorisation has nothing but tables.
        kind: one of `NAMES`.
    """
    if not two:
        made, rate = OPTIMIZERS[name]
        return made(learning_rate or rate)
    adagrad, rate = OPTIMIZERS["adagrad"]
    of_tables = adagrad(learning_rate or rate)
    if kind == "factorisation":
        return of_tables
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        raise ValueError(f"--two-optimizers needs a Keras with MultiOptimizer. Received: {keras.__version__}")
    parts = keras.optimizers.OptimizerMap(keras.optimizers.Adam(5e-3), {".*embeddings.*": of_tables})
    return keras.optimizers.MultiOptimizer(parts)


def compiled(model, optimizer):
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    return model
