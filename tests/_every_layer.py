"""A small model with every layer that has weights of its own, and all that a file of it holds."""

import keras
import numpy as np

import keras_largeout as kl

ROWS, CLASSES = 30, 24


def every_layer(cls=kl.Model, seed=0, fan_in=4, rows=ROWS, dim=4, classes=CLASSES, optimizer=None, steps=3):
    """A model that was trained for some steps; `seed` makes its numbers."""
    keras.utils.set_random_seed(seed)
    ids = keras.Input((2,), dtype="int32", name="ids")
    table = kl.layers.TableConfig("words", rows, dim)
    one = kl.layers.ShardedEmbedding(rows, dim)(ids)
    many = kl.layers.DistributedEmbedding({"a": kl.layers.FeatureConfig("a", table, (None, 2), (None, dim))})
    x = keras.layers.Concatenate()([keras.layers.Flatten()(one), many({"a": ids})["a"]])
    x = keras.layers.Dense(6)(x)
    tree = kl.layers.HierarchicalSoftmax(classes, counts=np.arange(classes, 0, -1), name="tree")
    fused = kl.optimizers.Adagrad(0.1)
    sparse = kl.layers.SparseOutput(
        classes, fan_in, optimizer=fused, label_weights=np.ones(classes), name="sparse", seed=1
    )
    model = cls(ids, [tree(x), sparse(x)])
    model.compile(
        optimizer or kl.optimizers.LazyAdam(0.1, gradient_accumulation_steps=2), [tree.loss, sparse.loss]
    )
    ids, y = np.random.default_rng(seed).integers(0, min(rows, classes), (2, 8, 2)).astype("int32")
    model.optimizer.build(model.trainable_variables)
    for _ in range(steps):
        model.train_on_batch(ids, [y[:, 0], y[:, :1]])
    return model


def layers_state(model):
    """Arrays of the layers of this package, and of the slots of their tables."""
    arrays = []
    for layer in model.layers:
        arrays += [layer.get_weights()] if isinstance(layer, kl.layers.Head) else []
        for shard in getattr(layer, "shards", ()):
            arrays += [[array.numpy() for array in shard.array.arrays()]]
    for accumulator in model.optimizer._row_slots.accumulators.values():
        if accumulator.weight.is_table:
            arrays += [[accumulator.indices.numpy(), accumulator.values.numpy()]]
    return [np.asarray(array) for group in arrays for array in group]


def whole_state(model):
    """These, and all that Keras keeps."""
    optimizers = [
        model.optimizer,
        *(head.optimizer for head in model.layers if getattr(head, "optimizer", None)),
    ]
    variables = [*model.weights, *(v for optimizer in optimizers for v in optimizer.variables)]
    return layers_state(model) + [v.numpy() for v in variables]


def same(left, right):
    return len(left) == len(right) and all(np.array_equal(a, b) for a, b in zip(left, right))
