"""What synchronous hosts train, and one device for comparison; run as a script it is one of the hosts.

`python _models.py FOLDER DEVICES CASE ...` writes what came out of each case to `FOLDER/CASE_HOST.npz`.
"""

import os
import sys

import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl

ROWS, CLASSES, DIM, BATCH, STEPS, EPOCHS = 300, 200, 8, 8, 9, 6


def _hot(devices):
    placement = kl.distribute.Placement.by_modulo(ROWS, devices)
    return placement.with_hot_rows([0, 1, 5, 7]) if devices > 1 else placement


# Embeddings: the placement and the optimizer.
EMBEDDINGS = {
    "permutation_adagrad": (lambda n: "permutation", lambda: kl.optimizers.Adagrad(0.1)),
    "replicated_adam_clipnorm": (
        lambda n: "replicated",
        lambda: kl.optimizers.LazyAdam(0.01, clipnorm=0.05),
    ),
    "hot_nesterov_global_clipnorm": (
        _hot,
        lambda: kl.optimizers.SGD(0.5, momentum=0.9, nesterov=True, global_clipnorm=0.1),
    ),
    "columns_ftrl": (lambda n: "columns", lambda: kl.optimizers.Ftrl(0.1)),
    "range_row_wise_decay": (lambda n: "range", lambda: kl.optimizers.RowWiseAdagrad(0.1, weight_decay=0.01)),
    "hot_adam_accumulation": (
        _hot,
        lambda: kl.optimizers.LazyAdam(0.01, gradient_accumulation_steps=2, global_clipnorm=0.1),
    ),
    "range_scaled_adam": (
        lambda n: "range",
        lambda: kl.optimizers.LossScaleOptimizer(kl.optimizers.LazyAdam(0.01), initial_scale=64.0),
    ),
    "table_sgd_clipvalue": (
        lambda n: kl.distribute.Placement.on_device(ROWS, n, device=n - 1),
        lambda: kl.optimizers.SGD(0.5, clipvalue=0.01),
    ),
    "permutation_max": (lambda n: "permutation", lambda: kl.optimizers.Adagrad(0.1)),
    "range_decayed": (lambda n: "range", lambda: kl.optimizers.LazyAdam(0.01)),
}
# Heads, each with the optimizer of the model.
_COUNTS = 1e5 / np.arange(1.0, CLASSES + 1)
HEADS = {
    "tree_adagrad": lambda: kl.layers.HierarchicalSoftmax(CLASSES, counts=_COUNTS),
    "tree_fused": lambda: kl.layers.HierarchicalSoftmax(
        CLASSES, counts=_COUNTS, optimizer=kl.optimizers.LazyAdam(0.01)
    ),
    "full": lambda: kl.layers.FullSoftmax(CLASSES),
    "cosine": lambda: kl.layers.FullSoftmax(
        CLASSES, normalize=True, temperature=0.2, margin=("arcface", 0.3), class_weight=_COUNTS / 1e5
    ),
    "sampled": lambda: kl.layers.SampledSoftmax(CLASSES, num_sampled=16, seed=3),
    "in_batch": lambda: kl.layers.SampledSoftmax(CLASSES, num_sampled=None, distribution="in_batch"),
    "retrieval": lambda: kl.layers.Retrieval(CLASSES, temperature=0.5, counts=_COUNTS, cache=500),
    "sparse_softmax": lambda: kl.layers.SparseOutput(CLASSES, fan_in=4, loss="softmax"),
    "sparse_fused": lambda: kl.layers.SparseOutput(
        CLASSES, fan_in=4, loss="softmax", optimizer=kl.optimizers.Adagrad(0.1)
    ),
    "sparse_hinge": lambda: kl.layers.SparseOutput(CLASSES, fan_in=4, loss="squared_hinge"),
    "sparse_rewired": lambda: kl.layers.SparseOutput(CLASSES, fan_in=4, loss="binary_crossentropy"),
}
CASES = (*EMBEDDINGS, "stacked", *HEADS)
# Those whose other functions differ too.
PREDICTED = ("columns_ftrl", "tree_adagrad", "full", "cosine", "sampled", "sparse_softmax", "sparse_hinge")
BEST_CLASSES = ("tree_adagrad", "full", "cosine", "sparse_softmax")


def _stacked(ids):
    """The sum of two bags, of tables that are stacked, beside one with its own optimizer."""
    one, two = (kl.layers.TableConfig(name, ROWS, DIM, combiner="sum") for name in ("one", "two"))
    own = kl.layers.TableConfig("own", ROWS, DIM, combiner="sum", optimizer=kl.optimizers.Adagrad(0.1))
    tables = {"one": one, "two": two, "own": own}
    features = {name: kl.layers.FeatureConfig(name, table) for name, table in tables.items()}
    layer = kl.layers.DistributedEmbedding(features, placement="permutation", name="words")
    bags = {"one": ids[:, :2], "two": ids[:, 2:], "own": ids}
    return keras.layers.Add()(list(layer(bags).values()))


def data(ragged_end):
    """Ids, and targets. The last batch of an epoch is shorter where `ragged_end`."""
    rng = np.random.default_rng(0)
    n = BATCH * STEPS - 3 * ragged_end
    return rng.integers(0, ROWS, (n, 5)), rng.integers(0, CLASSES, n)


def model_of(case, devices):
    """The compiled model of a case, in the current strategy, which has so many devices."""
    keras.utils.set_random_seed(5)
    ids = keras.Input((5,), dtype="int64")
    if case in EMBEDDINGS:
        place, optimizer = EMBEDDINGS[case]
        placement = place(devices) if devices > 1 else "auto"
    else:
        placement, optimizer = "permutation", lambda: kl.optimizers.Adagrad(0.1)
    if case == "stacked":
        rows = _stacked(ids)
    else:
        combiner = "max" if case.endswith("max") else "mean"
        words = kl.layers.ShardedEmbedding(ROWS, DIM, placement=placement, combiner=combiner, name="words")
        rows = words(ids)
    hidden = keras.layers.Dense(DIM, activation="tanh")(rows)
    if case in HEADS:
        head = HEADS[case]()
        items = [keras.layers.Dense(DIM)(rows)] if case == "retrieval" else []
        model = kl.Model(ids, head(hidden, *items))
        loss = head.loss
    else:
        # Every example counts, also where a batch does not divide.
        logits = keras.layers.Dense(CLASSES)(hidden)
        model, loss = kl.Model(ids, logits), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    per_call = 3 if case == "full" else 1
    model.compile(optimizer(), loss=loss, steps_per_execution=per_call)
    return model


def trained(case, strategy, devices):
    """What `case` gives under a strategy: a dict of arrays."""
    with strategy.scope():
        model = model_of(case, devices)
    x, y = data(ragged_end=case in HEADS)
    callbacks = [kl.callbacks.DecayTables(0.01, every=7)] if case.endswith("decayed") else []
    if case == "sparse_rewired":
        rewire, head = kl.callbacks.Rewire, model.layers[-1]
        callbacks = [
            rewire(head, fraction=0.25, every=9, grow="gradient"),
            rewire(head, fraction=0.1, every=14, prune="global_magnitude"),
        ]
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
    found = {"losses": history.history["loss"]}
    if case == "sparse_rewired":
        found["in_degrees"] = head.in_degrees()
    if case in PREDICTED:
        found["evaluated"] = model.evaluate(x, y, batch_size=BATCH, verbose=0)
        found["predicted"] = model.predict(x, batch_size=BATCH, verbose=0)
    if case in BEST_CLASSES:
        with strategy.scope():
            predictor = model.layers[-1].predictor(model, k=3)
        found["best"] = predictor.predict(x, batch_size=BATCH, verbose=0)["scores"]
    arrays = {
        shard.array.name: shard.array for layer in model.layers for shard in getattr(layer, "shards", ())
    }
    for name, array in arrays.items():
        for one in array.arrays():
            found[f"{name} {one.name}"] = one.numpy()
    return {name: np.asarray(value, "float32") for name, value in found.items()}


def main(folder, devices, *cases):
    devices = int(devices)
    # As in the suite: it takes longer than the few runs that a graph has here.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    strategy = kl.distribute.strategy(devices)
    for case in cases:
        found = trained(case, strategy, strategy.num_replicas_in_sync)
        index = strategy.cluster_resolver.task_id
        np.savez(os.path.join(folder, f"{case}_{index}.npz"), **found)
        print("done", case, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
