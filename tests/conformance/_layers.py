"""The layers that pass the same tests. A new layer joins by one line of `LAYERS`."""

import dataclasses
import functools
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from _mirrored import cut_below_the_root

import keras_largeout as kl

CLASSES, DIM, LENGTH, BATCH, STEPS = 40, 8, 4, 12, 2
COUNTS = 1000 / np.arange(1, CLASSES + 1)
TREE = kl.trees.head_tail(COUNTS, head=8, clusters=4, arity=4)


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer in a small model.

    Attributes:
        model: makes the model, not compiled, in the scope of a strategy; of the class `cls`, a `kl.Model` by
            default. Its layer is named "large".
        data: makes `(x, y)`, NumPy arrays.
        loss: the loss of a model.
        serving: the model to export, of a model.
        metrics: makes the metrics that it is compiled with.
        refused: check -> the words of the error by which this layer refuses it.
    """

    model: Callable
    data: Callable
    loss: Callable = lambda model: "mse"
    serving: Callable = lambda model: model
    metrics: Callable = list
    refused: dict = dataclasses.field(default_factory=dict)


def first(layer, call=lambda layer, ids: layer(ids), **options):
    """The layer looks ids up; a dense layer follows."""

    def model(cls=kl.Model):
        ids = keras.Input((LENGTH,), dtype="int32", name="ids")
        outputs = keras.tree.flatten(call(layer(), ids))
        x = keras.layers.Concatenate()(outputs) if len(outputs) > 1 else outputs[0]
        return cls(ids, keras.layers.Dense(1, name="small")(x))

    def data():
        ids = np.random.default_rng(0).integers(0, CLASSES, (STEPS * BATCH, LENGTH)).astype("int32")
        return ids, np.sin(ids.sum(axis=1, keepdims=True)).astype("float32")

    return Case(model, data, **options)


def last(layer, has_log_probs=True, **options):
    """The layer is an output over classes, above a dense layer."""

    def model(cls=kl.Model):
        x = keras.Input((6,), name="x")
        hidden = keras.layers.Dense(DIM, activation="tanh", name="small")(x)
        return cls(x, layer()(hidden))

    def data():
        rng = np.random.default_rng(0)
        return rng.normal(size=(STEPS * BATCH, 6)).astype("float32"), rng.integers(0, CLASSES, STEPS * BATCH)

    def loss(model):
        return model.get_layer("large").loss

    def serving(model):
        return model.get_layer("large").predictor(model, k=5)

    def metrics():
        found = [kl.metrics.TopKAccuracy(3), kl.metrics.MRR(3)]
        return [kl.metrics.Perplexity(), *found] if has_log_probs else found

    return Case(model, data, loss, serving, metrics, **options)


def items(**options):
    """The layer looks up the items of a `Retrieval`; a dense layer makes the vectors of users."""

    def model(cls=kl.Model):
        x = keras.Input((7,), name="x")
        item = keras.ops.cast(x[:, 6], "int32")
        table = kl.layers.ShardedEmbedding(CLASSES, DIM, placement="modulo", name="large")
        users = keras.layers.Dense(DIM, activation="tanh", name="small")(x[:, :6])
        head = kl.layers.Retrieval(CLASSES, counts=COUNTS, cache=7, name="head", **options)
        return cls(x, head(users, table(item)))

    def data():
        rng = np.random.default_rng(0)
        item = rng.integers(0, CLASSES, STEPS * BATCH)
        return np.column_stack([rng.normal(size=(STEPS * BATCH, 6)), item]).astype("float32"), item

    return Case(model, data, lambda model: model.get_layer("head").loss)


def means(combiner="mean", **options):
    return kl.layers.ShardedEmbedding(
        CLASSES, DIM, combiner=combiner, placement="permutation", name="large", **options
    )


def of_vocabulary():
    """Fewer rows than ids: some share a row, some lose theirs, which begin again with seeded values."""
    items = kl.layers.DynamicVocabulary(16, admit_after=2)
    first = keras.initializers.RandomUniform(seed=5)
    return kl.layers.ShardedEmbedding(
        items.vocabulary_size(),
        DIM,
        first,
        combiner="mean",
        placement="modulo",
        vocabulary=items,
        name="large",
    )


def head_of_vocabulary():
    """Fewer classes than ids: those of some ids are given to others, and begin again with seeded values."""
    ids = kl.layers.DynamicVocabulary(16, num_oov_indices=0)
    ids(tf.range(CLASSES, dtype=tf.int64), training=True)  # frozen, a head knows some
    first = keras.initializers.RandomUniform(seed=5)
    return kl.layers.FullSoftmax(
        ids.vocabulary_size(), kernel_initializer=first, vocabulary=ids, name="large"
    )


def sparse_dense(**options):
    return kl.layers.SparseDense(DIM, CLASSES, activation="tanh", placement="modulo", name="large", **options)


def hashed():
    """Two hashes of each id, whose rows are summed."""
    hashing = kl.layers.CategoryHashing(11, num_hashes=2)
    table = kl.layers.ShardedEmbedding(
        hashing.total_bins, DIM, combiner="sum", placement="permutation", name="large"
    )
    return lambda ids: keras.layers.Flatten()(table(hashing(ids)))


def positioned(layer, ids):
    return keras.layers.Flatten()(layer(keras.layers.Embedding(CLASSES, DIM, name="words")(ids)))


def grouped(layer, ids):
    """The rows of a batch whose first id is the same are a group."""
    return kl.layers.GroupBy()(layer(ids), ids[:, 0])


def towers(**own):
    """Two tables of one width, which are stacked where they have no optimizers of their `own`, by name."""
    tables = {
        name: kl.layers.TableConfig(name, CLASSES + i, DIM, optimizer=own.get(name))
        for i, name in enumerate("ab")
    }
    features = {name: kl.layers.FeatureConfig(name, table) for name, table in tables.items()}
    return kl.layers.DistributedEmbedding(features, placement="modulo", name="large")


def tree_head(**options):
    """Everything below the root is on one device or another; by itself so small a tree is replicated."""
    head = kl.layers.HierarchicalSoftmax(CLASSES, counts=COUNTS, tree=TREE, name="large", **options)
    cut_below_the_root(head)
    return head


def sparse_output(**options):
    return kl.layers.SparseOutput(CLASSES, 5, loss="softmax", seed=3, name="large", **options)


# A layer with its own optimizer, and what it refuses.
ADAM = functools.partial(keras.optimizers.Adam, 0.01)
FUSED = {"mixed_float16": r"`optimizer` must be None under mixed_float16.* dtype=mixed_float16"}
COSINE = {"normalize": True, "temperature": 0.2}

# The only table of layers: name -> how to try it, and what it refuses.
LAYERS = {
    "ShardedEmbedding": first(means),
    "DistributedEmbedding": first(towers, lambda layer, ids: layer({"a": ids, "b": ids})),
    "HierarchicalSoftmax": last(tree_head),
    "FullSoftmax": last(lambda: kl.layers.FullSoftmax(CLASSES, label_smoothing=0.1, name="large")),
    "SampledSoftmax": last(lambda: kl.layers.SampledSoftmax(CLASSES, 7, seed=3, name="large")),
    "FullSoftmax, vocabulary": last(head_of_vocabulary),
    "FullSoftmax, cosine": last(
        lambda: kl.layers.FullSoftmax(CLASSES, margin=("arcface", 0.3), name="large", **COSINE)
    ),
    "SampledSoftmax, cosine": last(
        lambda: kl.layers.SampledSoftmax(CLASSES, 7, seed=3, margin=("cosface", 0.1), name="large", **COSINE)
    ),
    "SampledSoftmax, contrastive": last(
        lambda: kl.layers.SampledSoftmax(
            CLASSES, 7, seed=3, loss="cosine_contrastive", negative_weight=3.0, normalize=True, name="large"
        ),
        has_log_probs=False,
    ),
    "Retrieval": items(temperature=0.5),
    "SparseOutput": last(sparse_output),
    "SparseOutput, fused": last(lambda: sparse_output(optimizer=ADAM()), refused=FUSED),
    "HierarchicalSoftmax, fused": last(lambda: tree_head(optimizer=ADAM()), refused=FUSED),
    "ShardedEmbedding, fused": first(lambda: means(optimizer=ADAM()), refused=FUSED),
    "SparseDense": first(sparse_dense),
    "SparseDense, fused": first(lambda: sparse_dense(optimizer=ADAM()), refused=FUSED),
    "CategoryHashing": first(hashed),
    "Positions": first(lambda: kl.layers.Positions(LENGTH, name="large"), positioned),
    "GroupBy": first(means, grouped),
    "ShardedEmbedding, max": first(lambda: means("max")),
    "ShardedEmbedding, host": first(lambda: means(storage="host")),
    "ShardedEmbedding, vocabulary": first(of_vocabulary),
    "DistributedEmbedding, fused": first(
        lambda: towers(a="adagrad"), lambda layer, ids: layer({"a": ids, "b": ids}), refused=FUSED
    ),
}
