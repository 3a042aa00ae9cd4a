"""keras_largeout: what 8 devices do, counted by `LoadBalance` while a model is trained."""

import time

import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl
from benchmarks import _data
from benchmarks._step import Step
from benchmarks.balance import CONTIGUOUS, OTHER, PLANNED, REBALANCED, SAME, TREE, ZIPF
from keras_largeout.planning.tree_estimator import count_pairs, node_owners

ZIPF_EXPONENT = 1.1


def counted(config, data):
    """Train on every problem, and note what was counted. It is not timed as a step."""
    strategy = kl.distribute.strategy(config["devices"])
    bench = (_Output if config["what"] == TREE else _Embedding)(config)
    with strategy.scope():
        model = bench.model()
        model.compile(kl.optimizers.SGD(0.01), loss=bench.loss)
    start = bench.placed.placement
    lines = []
    for problem in (ZIPF, SAME, OTHER):
        lines.append(_line(config, bench, model, problem, config["placement"]))
        if config["placement"] == CONTIGUOUS and problem != ZIPF:
            kl.distribute.rebalance(model, bench.balance.plan())
            lines.append(_line(config, bench, model, problem, REBALANCED, seed=2))
            kl.distribute.rebalance(model, {bench.name: start})
    return Step(lambda i: 0.0, {"lines": lines})


def _line(config, bench, model, problem, placement, seed=1):
    ids = bench.ids(problem, config["steps"], seed)
    bench.balance, clock = kl.callbacks.LoadBalance(warn_above=None), _Clock()
    model.fit(bench.batches(ids), verbose=0, shuffle=False, callbacks=[bench.balance, clock])
    load = bench.balance.loads[bench.name]
    assert load.steps == config["steps"]
    bench.check(load, ids)
    return {
        "what": config["what"],
        "problem": problem,
        "placement": placement,
        "work": (load.work / load.steps).tolist(),
        "imbalance": load.imbalance,
        "bytes": load.bytes_per_step,
        "bound": float(np.mean([bench.bound(batch) for batch in ids])),
        "seconds": float(np.median(clock.times[1:])),
    }


class _Clock(keras.callbacks.Callback):
    """The time of each step; the first one is traced."""

    def __init__(self):
        super().__init__()
        self.times = []

    def on_train_batch_begin(self, batch, logs=None):
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.times.append(time.perf_counter() - self.start)


class _Bench:
    """What is trained: a model, its batches, and what must travel for one of them."""

    def __init__(self, config):
        self.config, self.devices, self.dim = config, config["devices"], config["dim"]

    def ids(self, problem, steps, seed):
        """Return int64 `[steps, batch]`: by Zipf's law, or all over what one device has when contiguous."""
        shape = (steps, self.devices * self.each)
        if problem == ZIPF:
            return _data.zipf_ranks(self.size, ZIPF_EXPONENT, shape, seed)
        draw = np.random.default_rng(seed).random(shape)
        ids = np.empty(shape, np.int64)
        for step in range(steps):
            mine = self.contiguous[step % self.devices if problem == OTHER else 0]
            ids[step] = mine[(draw[step] * len(mine)).astype(np.int64)]
        return ids

    def batches(self, ids):
        return tf.data.Dataset.from_tensor_slices((self.inputs(ids), ids.reshape(-1))).batch(ids.shape[1])


class _Output(_Bench):
    """Hidden vectors, one dense layer, a two-level softmax."""

    name = "words"

    def __init__(self, config):
        super().__init__(config)
        self.each, self.size = config["tokens"], config["classes"] ** 2
        self.counts = _data.zipf_counts(self.size, ZIPF_EXPONENT)
        self.tree = kl.trees.two_level(self.size, groups=config["classes"])
        place = self._place("range")
        owner = place.locate(self.tree.class_row)[0]
        self.contiguous = [np.flatnonzero(owner == device) for device in range(self.devices)]

    def _place(self, how):
        return kl.distribute.place_tree(
            self.tree, self.devices, self.counts, how, self.dim, self.devices * self.each
        )

    def model(self):
        how = {CONTIGUOUS: "range"}.get(self.config["placement"], self.config["placement"])
        self.head = kl.layers.HierarchicalSoftmax(
            self.size, self.counts, self.tree, placement=self._place(how), name=self.name
        )
        hidden = keras.Input((self.dim,))
        return keras.Model(hidden, self.head(keras.layers.Dense(self.dim)(hidden)))

    @property
    def loss(self):
        return self.head.loss

    @property
    def placed(self):
        return self.head.kernel_table

    def inputs(self, ids):
        return np.random.default_rng(0).normal(size=(ids.size, self.dim)).astype("float32")

    def check(self, load, ids):
        """Check that the counted pairs are those of the arithmetic."""
        owned, replicated = count_pairs(self.tree, self.placed.placement, ids)
        assert load.owned.tolist() == owned.tolist() and load.replicated == replicated

    def bound(self, batch):
        """Return bytes of the hidden vectors that leave their device, of the rows of the top, and of
        gradients.
        """
        owner = node_owners(self.tree, self.placed.placement)
        replicas = batch.reshape(self.devices, -1)
        vectors, touched, here = 0, np.zeros(self.tree.num_nodes, bool), 0
        for replica, targets in enumerate(replicas):
            nodes = np.searchsorted(self.tree.node_start, self.tree.class_row[targets], side="right") - 1
            vectors += np.count_nonzero((owner[nodes] >= 0) & (owner[nodes] != replica))
            top = np.unique(np.append(nodes[owner[nodes] < 0], 0))
            touched[top] = True
            here += self.tree.node_sizes[top].sum() if replica else 0
        row = 4 * (self.dim + 1)
        rows = here + (self.devices - 1) * self.tree.node_sizes[touched].sum()
        return 2 * 4 * self.dim * vectors + row * rows


class _Embedding(_Bench):
    """One lookup, and a dense layer."""

    name, loss = "table", "mse"

    def __init__(self, config):
        super().__init__(config)
        self.each, self.size = config["ids"], config["rows"]
        self.contiguous = np.array_split(np.arange(self.size), self.devices)

    def model(self):
        batch, name = self.devices * self.each, self.config["placement"]
        if name == PLANNED:
            spec = kl.distribute.TableSpec(
                self.name, self.size, self.dim, counts=_data.zipf_counts(self.size, ZIPF_EXPONENT)
            )
            place = kl.distribute.plan(spec, self.devices, batch_size=batch)
        else:
            place = {CONTIGUOUS: "range"}.get(name, name)
        self.layer = kl.layers.ShardedEmbedding(self.size, self.dim, placement=place, name=self.name)
        ids = keras.Input((), dtype="int64")
        return keras.Model(ids, keras.layers.Dense(1)(self.layer(ids)))

    @property
    def placed(self):
        return self.layer.table

    def inputs(self, ids):
        return ids.reshape(-1)

    def check(self, load, ids):
        """Check that the counted rows are the unique ones."""
        assert load.owned.sum() + load.replicated == sum(
            len(np.unique(part)) for batch in ids for part in batch.reshape(self.devices, -1)
        )

    def bound(self, batch):
        """Return bytes of the unique rows that come from other devices, and of their gradients."""
        placement, rows = self.placed.placement, 0
        hot, here = [], 0
        for replica, ids in enumerate(batch.reshape(self.devices, -1)):
            unique = np.unique(ids)
            owner, _ = placement.locate(unique)
            rows += 2 * np.count_nonzero((owner >= 0) & (owner != replica))
            hot.append(unique[owner < 0])
            here += len(hot[-1]) if replica else 0
        rows += here + (self.devices - 1) * len(np.unique(np.concatenate(hot)))
        return 4 * self.dim * rows
