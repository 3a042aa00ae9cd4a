"""The gradient of a lookup and the step on its table in one pass: when, and the same bits as in two."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from conformance._optimizers import OPTIMIZERS, make
from tensorflow.python.eager import context

import keras_largeout as kl
from keras_largeout.ops.embedding.wrapper import embedding_lookup
from keras_largeout.tables.shard import ShardVariable

ROWS, DIM = 50, 6
# What leaves out an op that nobody needs is TensorFlow's rewriting of graphs.
pytestmark = pytest.mark.usefixtures("rewritten_graphs")


def batch(rng, kind):
    """The arguments of a `ShardedEmbedding`, of its call, and a target."""
    ids = rng.integers(-3, ROWS + 3, (8, 5))
    if kind == "ids":
        return {}, (tf.constant(ids),), rng.normal(size=(8, 5, DIM))
    if kind == "ragged":
        ids = tf.RaggedTensor.from_row_lengths(tf.constant(ids.reshape(-1)), [0, 9, 1, 0, 22, 8, 0, 0])
        return {"combiner": "mean"}, (ids,), rng.normal(size=(8, DIM))
    weights = tf.constant(rng.uniform(0.2, 1.0, ids.shape), tf.float32)
    return {"combiner": "sqrtn"}, (tf.constant(ids), weights), rng.normal(size=(8, DIM))


@contextlib.contextmanager
def ops_that_run():
    """Yields a set that has, at the end, the ops on tables that TensorFlow ran in graphs."""
    found = set()
    context.enable_run_metadata()
    context.export_run_metadata()  # what others have left
    yield found
    graphs = context.export_run_metadata().partition_graphs
    context.disable_run_metadata()
    names = {node.op for graph in graphs for node in graph.node}
    found |= {name.partition(">")[2] for name in names if name.startswith(("Largeout>Emb", "Largeout>Row"))}


class Step:
    """A training step of one table: `run()` takes it; `ops` are those of this package that it ran."""

    def __init__(self, rng, name, option="plain", kind="bags", **arguments):
        options, self.inputs, target = batch(rng, kind)
        options |= {"out_of_range": "zero", **arguments}
        normal = keras.initializers.RandomNormal(seed=1)
        self.layer = kl.layers.ShardedEmbedding(ROWS, DIM, embeddings_initializer=normal, **options)
        self.layer.build(None)
        self.target = tf.constant(target, tf.float32)
        self.optimizer = make(name, option)
        self.optimizer.build(self.layer.trainable_variables)
        self.step = tf.function(self.loss_and_step)

    def loss(self):
        return tf.reduce_mean(tf.square(tf.cast(self.layer(*self.inputs), tf.float32) - self.target))

    def loss_and_step(self):
        with tf.GradientTape() as tape:
            loss = self.loss()
        weights = self.layer.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)

    def run(self, times=3):
        with ops_that_run() as self.ops:
            for _ in range(times):
                self.step()
        (table,) = self.layer.trainable_variables
        return [np.asarray(v.numpy()).tobytes() for v in (table, *self.optimizer.slots_of(table))]


@pytest.mark.parametrize("kind", ["ids", "bags", "ragged"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_bits_of_two_passes(monkeypatch, name, kind, dtype):
    for option in ["plain", "weight_decay"] if kind == "bags" else ["plain"]:
        one = Step(np.random.default_rng(3), name, option, kind, dtype=dtype)
        got = one.run()
        # Nobody uses the gradient itself, and it is not made.
        assert one.ops == {"EmbeddingLookup", "EmbeddingUpdate"}
        with monkeypatch.context() as patch:
            patch.setattr(ShardVariable, "fuses_updates", False)
            two = Step(np.random.default_rng(3), name, option, kind, dtype=dtype)
            want = two.run()
        assert two.ops == {"EmbeddingLookup", "EmbeddingGrad", "RowUpdate"}
        assert got == want


@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm", "clipvalue", "accumulation", "loss_scale"])
def test_two_passes_where_rows_are_looked_at(rng, option):
    step = Step(rng, "adagrad", option)
    step.run()
    assert "RowUpdate" in step.ops and "EmbeddingUpdate" not in step.ops


def test_two_passes_with_a_constraint(rng):
    step = Step(rng, "sgd", embeddings_constraint="non_neg")
    step.run()
    assert "RowUpdate" in step.ops and "EmbeddingUpdate" not in step.ops


def test_two_passes_where_a_table_is_looked_up_twice(rng):
    class Twice(Step):
        def loss(self):
            return super().loss() + super().loss()

    step = Twice(rng, "sgd")
    step.run()
    assert "RowUpdate" in step.ops and "EmbeddingUpdate" not in step.ops


@pytest.mark.parametrize("storage", ["host", "file"])
def test_rows_in_other_memory(rng, tmp_path, storage):
    step = Step(rng, "lazy_adam", storage="host" if storage == "host" else f"file:{tmp_path}")
    before = step.layer.table.numpy()
    step.step()
    touched = np.unique(step.inputs[0])
    touched = touched[(touched >= 0) & (touched < ROWS)]
    changed = np.flatnonzero((step.layer.table.numpy() != before).any(axis=1))
    np.testing.assert_array_equal(changed, touched)


def test_a_gradient_that_somebody_reads_is_made_too(rng):
    class Reading(Step):
        def loss_and_step(self):
            with tf.GradientTape() as tape:
                loss = self.loss()
            weights = self.layer.trainable_variables
            gradients = tape.gradient(loss, weights)
            self.optimizer.apply(gradients, weights)
            return tf.reduce_sum(gradients[0].values)

    step = Reading(rng, "sgd")
    step.run()
    assert step.ops == {"EmbeddingLookup", "EmbeddingGrad", "EmbeddingUpdate"}


def test_ordinary_variables(rng):
    """A variable of the user's own that `embedding_lookup` looks up."""
    table = keras.Variable(rng.normal(size=(ROWS, DIM)).astype("float32"))
    ids, optimizer = tf.constant([[1, 2], [1, 5]]), make("momentum")
    before = table.numpy()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(embedding_lookup(table, ids))
        optimizer.apply(tape.gradient(loss, [table.value]), [table])

    step()
    types = {op.type for op in step.get_concrete_function().graph.get_operations()}
    assert "Largeout>EmbeddingUpdate" in types and "Largeout>RowUpdate" not in types
    want = np.zeros((ROWS, DIM))
    want[[1, 2, 5]] = [[0.2], [0.1], [0.1]]
    np.testing.assert_allclose(before - table.numpy(), want, atol=1e-6)


def test_a_bad_batch_changes_nothing(rng, on_cpu):
    step = Step(rng, "sgd", out_of_range="error")
    before = step.layer.embeddings.numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match="`ids` must lie in"):
        step.step()
    np.testing.assert_array_equal(step.layer.embeddings.numpy(), before)


def test_fit(rng):
    """The training step of Keras, with a gradient that is cast: mixed precision."""
    for policy in ["float32", "mixed_bfloat16"]:
        model = keras.Sequential(
            [
                kl.layers.ShardedEmbedding(ROWS, DIM, combiner="sum", dtype=policy),
                keras.layers.Dense(1, dtype=policy),
            ]
        )
        model.compile(kl.optimizers.Adagrad(0.5), "mse")
        with ops_that_run() as found:
            data = rng.integers(0, ROWS, (64, 3)), rng.normal(size=(64, 1))
            history = model.fit(*data, epochs=8, verbose=0)
        assert history.history["loss"][-1] < 0.9 * history.history["loss"][0]
        assert found == {"EmbeddingLookup", "EmbeddingUpdate"}
