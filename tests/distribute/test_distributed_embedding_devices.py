"""`DistributedEmbedding`: the numbers of separate layers, on one device and on several, in one exchange."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of
from _training import fit, in_the_suite

import keras_largeout as kl
from keras_largeout.planning.placement import Placement
from keras_largeout.tables import stacked

BATCH, STEPS = 24, 6
ROWS = {"t1": 40, "t2": 600, "t3": 31, "t4": 50}
DIMS = {"t1": 8, "t2": 8, "t3": 8, "t4": 4}
# name: (table, combiner, ids of an example, kind, weighted)
FEATURES = {
    "one": ("t1", "mean", None, "dense", False),
    "bag": ("t1", "sum", 3, "dense", True),
    "ragged": ("t2", "mean", 4, "ragged", False),
    "sparse": ("t3", "sqrtn", 4, "sparse", True),
    "rows": ("t4", None, 2, "dense", False),
}


def as_kind(ids, kind, empty=0):
    """Dense ids, their places of `empty` left out where the kind is ragged or sparse."""
    if kind == "dense":
        return ids
    ragged = tf.RaggedTensor.from_tensor(ids, padding=tf.cast(empty, ids.dtype))
    return ragged if kind == "ragged" else ragged.to_sparse()


def data():
    rng = np.random.default_rng(1)
    arrays = {}
    for name, (table, _, size, _, weighted) in FEATURES.items():
        shape = (STEPS * BATCH,) if size is None else (STEPS * BATCH, size)
        ids = np.minimum(rng.zipf(1.3, shape), ROWS[table] - 1)
        if FEATURES[name][3] != "dense":  # bags of different lengths: 0 ends one
            ids *= np.arange(size) < rng.integers(0, size + 1, (len(ids), 1))
        arrays[name] = ids.astype("int32")
        if weighted:
            arrays[f"{name}_weights"] = (rng.uniform(0.5, 2, shape) * (ids != 0)).astype("float32")
    y = rng.normal(size=(STEPS * BATCH, 1)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((arrays, y)).batch(BATCH, drop_remainder=True)


def initializer(table):
    return keras.initializers.RandomNormal(0.0, 0.1, seed=sorted(ROWS).index(table) + 1)


def configs(**options):
    tables = {
        name: kl.layers.TableConfig(
            name, rows, DIMS[name], initializer(name), **{k: v(name) for k, v in options.items()}
        )
        for name, rows in ROWS.items()
    }
    return {
        name: kl.layers.FeatureConfig(name, tables[table], combiner=combiner)
        for name, (table, combiner, *_) in FEATURES.items()
    }


class Towers(keras.Model):
    """Embeds all features, and adds a dense layer."""

    def __init__(self, fused, **options):
        super().__init__()
        self.fused = fused
        if fused:
            own = {k: options.pop(k) for k in ("optimizer", "placement_of") if k in options}
            own = {k.removesuffix("_of"): v for k, v in own.items()}
            self.embedding = kl.layers.DistributedEmbedding(configs(**own), **options)
        else:
            self.separate = {
                (table, combiner): kl.layers.ShardedEmbedding(
                    ROWS[table], DIMS[table], initializer(table), combiner=combiner
                )
                for table, combiner, *_ in FEATURES.values()
            }
            # One table of several combiners: the layers share it.
            first = self.separate["t1", "mean"]
            first.build()
            shared = self.separate["t1", "sum"]
            shared.table, shared.shards, shared.built = first.table, first.shards, True
        self.dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=5))

    def call(self, arrays):
        ids, weights = {}, {}
        for name, (_, _, size, kind, weighted) in FEATURES.items():
            ids[name] = as_kind(arrays[name], kind)
            if size is None and not self.fused:
                ids[name] = ids[name][:, None]
            weights[name] = as_kind(arrays[f"{name}_weights"], kind, 0.0) if weighted else None
        if self.fused:
            outputs = self.embedding(ids, weights=weights)
        else:
            outputs = {
                name: self.separate[table, combiner](ids[name], weights=weights[name])
                for name, (table, combiner, *_) in FEATURES.items()
            }
        flat = [tf.reshape(outputs[n], [tf.shape(outputs[n])[0], -1]) for n in FEATURES]
        return self.dense(tf.concat(flat, 1))

    def tables(self):
        if self.fused:
            return {name: rows.numpy() for name, rows in self.embedding.get_embedding_tables().items()}
        return {table: layer.table.numpy() for (table, _), layer in self.separate.items()}


def train(devices, fused, epochs=1, compiled=None, **options):
    with strategy_of(devices).scope():
        model = Towers(fused, **options)
        model.dense.build((None, 8 * 4 + 4 * 2))
        if fused:
            model.embedding.build()
            model.built = True
        model.compile(compiled() if compiled else kl.optimizers.LazyAdam(0.01), loss="mse")
    return model, fit(model, data(), epochs=epochs)


@functools.cache
def wanted():
    model, losses = train(1, fused=False)
    return model.tables(), losses


PLACEMENTS = {
    "auto": {},
    "modulo": {"placement": "modulo"},
    "columns": {"placement": "columns"},
    "replicated": {"placement": "replicated"},
    "range": {"placement": "range", "table_stacking": None},
    "own": {"placement_of": lambda name: Placement.by_modulo(ROWS[name], 2).with_hot_rows([0, 3])},
}


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch):
    """What "auto" replicates: all tables but t2."""
    monkeypatch.setattr(stacked, "REPLICATED_BYTES", 4096)


@pytest.mark.parametrize(
    ("devices", "kind"),
    [
        *((1, "auto"), (3, "auto"), (4, "modulo"), (2, "columns"), (2, "own")),
        *in_the_suite([(2, "replicated"), (2, "range")]),
    ],
)
def test_numbers_of_separate_layers(devices, kind):
    tables, losses = wanted()
    model, got = train(devices, fused=True, **PLACEMENTS[kind])
    np.testing.assert_allclose(got, losses, rtol=1e-5)
    for name, rows in model.tables().items():
        np.testing.assert_allclose(rows, tables[name], rtol=2e-5, atol=2e-6, err_msg=name)


def partitions(devices, **options):
    """How many exchanges a replica takes part in for one batch."""
    with strategy_of(devices).scope():
        layer = kl.layers.DistributedEmbedding(configs(), **options)
        layer.build()
    arrays, _ = next(iter(data()))
    ids = {name: as_kind(arrays[name], FEATURES[name][3]) for name in FEATURES}
    step = tf.function(lambda: strategy_of(devices).run(lambda: layer(ids)))
    graph = step.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return sum(node.op == "Largeout>PartitionIds" for node in nodes) / devices


def test_one_exchange_a_width():
    assert partitions(2) == 1  # tables of 8 columns; t4 is replicated
    assert partitions(2, placement="modulo") == 2
    assert partitions(2, placement="columns", table_stacking=None) == 4
    assert partitions(2, placement="replicated") == 0
    assert partitions(1) == 0


def test_plan():
    layer = kl.layers.DistributedEmbedding(configs(), name="towers")
    assert list(layer.fused_tables) == ["towers/stack_8", "towers/t4"]
    counts = {name: 1 / np.arange(1, rows + 1) for name, rows in ROWS.items() if name != "t4"}
    plan = kl.distribute.plan(layer.table_specs(counts), 2, batch_size=BATCH, small=4096)
    assert plan.placements["towers/t4"].kind == "replicated"
    tables, losses = wanted()
    model, got = train(2, fused=True, placement=plan, name="towers")
    assert model.embedding.tables[0].placement == plan.placements["towers/stack_8"]
    np.testing.assert_allclose(got, losses, rtol=1e-5)
    for name, rows in model.tables().items():
        np.testing.assert_allclose(rows, tables[name], rtol=2e-5, atol=2e-6, err_msg=name)
    with pytest.raises(ValueError, match=r"`counts` must have those of all tables .* none of \['t3'\]"):
        layer.table_specs({name: counts[name] for name in ("t1", "t2")})


def test_initial_values_are_those_of_the_tables_alone():
    for devices, options in [(1, {}), (4, {}), (4, {"placement": "modulo", "table_stacking": ["t3", "t1"]})]:
        with strategy_of(devices).scope():
            layer = kl.layers.DistributedEmbedding(configs(), **options)
            layer.build()
        for name, rows in layer.get_embedding_tables().items():
            np.testing.assert_array_equal(rows, initializer(name)((ROWS[name], DIMS[name])), err_msg=name)


@pytest.mark.parametrize("accumulate", [None, 4])
def test_files_fit_any_devices_and_any_stacks(tmp_path, accumulate):
    """Saved, loaded elsewhere and trained on: what comes of it without the detour."""
    optimizer = functools.partial(kl.optimizers.LazyAdam, 0.01, gradient_accumulation_steps=accumulate)
    want, _ = train(1, fused=True, compiled=optimizer)
    before = want
    for devices, options in [(2, {"table_stacking": None, "placement": "modulo"}), (3, {})]:
        path = str(tmp_path / f"{devices}.weights.h5")
        before.save_weights(path)
        after, _ = train(devices, fused=True, epochs=0, compiled=optimizer, **options)
        with strategy_of(devices).scope():
            after.optimizer.build(after.trainable_variables)
        after.load_weights(path)
        before = after
    for model in (want, after):
        fit(model, data())
    for name, rows in after.tables().items():
        np.testing.assert_allclose(rows, want.tables()[name], rtol=2e-5, atol=2e-6, err_msg=name)
