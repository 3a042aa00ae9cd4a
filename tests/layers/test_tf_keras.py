"""Our layers in models of tf_keras (Keras 2): they train there, or one error says what to do instead."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from keras_largeout import _keras

LAYERS = {
    "embedding": lambda: kl.layers.ShardedEmbedding(10, 4),
    "bags": lambda: kl.layers.ShardedEmbedding(10, 4, combiner="sum"),
    "trains itself": lambda: kl.layers.ShardedEmbedding(10, 4, optimizer="sgd"),
    "tree": lambda: kl.layers.HierarchicalSoftmax(10, counts=np.ones(10)),
    "full": lambda: kl.layers.FullSoftmax(10),
    "sampled": lambda: kl.layers.SampledSoftmax(10, 3),
    "sparse": lambda: kl.layers.SparseOutput(10, fan_in=2),
    "best": lambda: kl.layers.TopK(built(kl.layers.FullSoftmax(10)), k=3),
}
HEADS = ("tree", "full", "sampled", "sparse", "best")
IDS = np.arange(8)[:, None]


@pytest.fixture
def tf_keras():
    return pytest.importorskip("tf_keras", reason="tf_keras is not installed")


def built(head):
    head.build((None, 6))
    return head


def distributed(**kwargs):
    table = kl.layers.TableConfig("table", 10, 4, **kwargs)
    return kl.layers.DistributedEmbedding({"a": kl.layers.FeatureConfig("a", table, (None, 1), (None, 4))})


@pytest.mark.parametrize("name", LAYERS)
def test_symbolic_tensors_of_tf_keras(name, tf_keras):
    inputs = tf_keras.Input((6,)) if name in HEADS else tf_keras.Input((1,), dtype="int32")
    layer = LAYERS[name]()
    with pytest.raises(
        ValueError, match=r"`inputs` of the .* must come from Keras 3.*compute_loss"
    ) as raised:
        layer(inputs)
    assert f"{type(layer).__name__} {layer.name!r}" in str(raised.value)
    assert "Received: inputs=<KerasTensor: shape=(None, " in str(raised.value)


def test_symbolic_tensors_of_tf_keras_for_many_tables(tf_keras):
    with pytest.raises(ValueError, match=r"`inputs` of the DistributedEmbedding .* must come from Keras 3"):
        distributed()({"a": tf_keras.Input((1,), dtype="int32")})


def test_a_model_of_keras_3_on_symbolic_tensors_of_tf_keras(tf_keras):
    ids = keras.Input((1,), dtype="int32")
    model = keras.Model(ids, kl.layers.ShardedEmbedding(10, 4)(ids))
    with pytest.raises(ValueError, match=r"`inputs` of the ShardedEmbedding .* must come from Keras 3"):
        model(tf_keras.Input((1,), dtype="int32"))


def test_a_call_for_training_by_a_layer_that_does_not_know_ours(tf_keras):
    layer = kl.layers.ShardedEmbedding(10, 4)
    model = tf_keras.Sequential([tf_keras.layers.Lambda(lambda x: layer(x)[:, 0], name="hidden")])
    assert model(IDS).shape == (8, 4)  # to read it is fine
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"call for training by the tf_keras layer 'hidden'"):
        model.fit(IDS, np.ones((8, 4)), verbose=0)
    layer.trainable = False
    model.fit(IDS, np.ones((8, 4)), verbose=0)


def model_of(tf_keras, layer):
    """A subclassed model of tf_keras; both `call` and a `train_step` of one's own, as tfrs.Model's."""

    class Model(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.ours, self.dense = layer, tf_keras.layers.Dense(1)

        def call(self, inputs):
            return self.dense(self.ours(inputs)[:, 0])

    class OwnStep(Model):
        def train_step(self, data):
            inputs, labels = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.dense(self.ours(inputs)[:, 0]) - labels) ** 2)
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return {"loss": loss}

    return Model(), OwnStep()


@pytest.mark.parametrize("which", [0, 1], ids=["call", "train_step"])
def test_optimizers_of_tf_keras_train_no_table(which, tf_keras):
    model = model_of(tf_keras, kl.layers.ShardedEmbedding(10, 4))[which]
    model.compile("sgd", "mse")
    with pytest.raises(AttributeError, match=r"`optimizer` must be one of Keras 3 to train '.*embeddings'"):
        model.fit(IDS, np.ones((8, 1)), verbose=0)


@pytest.mark.parametrize("which", [0, 1], ids=["call", "train_step"])
def test_layers_that_train_themselves_do_so_in_tf_keras(which, tf_keras):
    """As much as in a model of Keras 3, step by step."""
    start = np.random.default_rng(0).normal(size=(10, 4)).astype("float32")

    def made():
        return kl.layers.ShardedEmbedding(10, 4, weights=start, optimizer=keras.optimizers.Adagrad(0.1))

    labels = np.ones((8, 1), "float32")
    model = model_of(tf_keras, made())[which]
    model.compile(tf_keras.optimizers.Adam(0.1), "mse")
    kernel = np.full((4, 1), 0.5, "float32")
    model(IDS)
    model.dense.set_weights([kernel, np.zeros(1)])
    before = model.evaluate(IDS, labels, verbose=0)
    model.fit(IDS, labels, batch_size=4, epochs=3, shuffle=False, verbose=0)

    ids = keras.Input((1,), dtype="int32")
    table, dense = made(), keras.layers.Dense(1)
    same = keras.Model(ids, dense(keras.layers.Flatten()(table(ids))))
    dense.set_weights([kernel, np.zeros(1)])
    same.compile(keras.optimizers.Adam(0.1), "mse")
    same.fit(IDS, labels, batch_size=4, epochs=3, shuffle=False, verbose=0)

    np.testing.assert_allclose(model.ours.table.numpy(), table.table.numpy(), atol=1e-5)
    assert int(model.ours.optimizer.iterations) == 6
    assert model.evaluate(IDS, labels, verbose=0) < before
    np.testing.assert_array_equal(model.ours.table.numpy()[8:], start[8:])


def test_tables_that_train_themselves_do_so_in_tf_keras(tf_keras):
    table = distributed(optimizer="sgd")

    class Model(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.table, self.dense = table, tf_keras.layers.Dense(1)

        def call(self, inputs):
            return self.dense(self.table({"a": inputs})["a"])

    model = Model()
    model.compile("adam", "mse")
    model(IDS)
    before = table.get_embedding_tables()["table"].numpy()
    model.fit(IDS, np.ones((8, 1)), verbose=0)
    moved = np.abs(table.get_embedding_tables()["table"].numpy() - before).max(axis=1)
    assert (moved[:8] > 0).all() and (moved[8:] == 0).all()


def test_nobody_imports_tf_keras(monkeypatch):
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    monkeypatch.setitem(sys.modules, "tf_keras.src.engine.base_layer_utils", None)
    assert not _keras.is_symbolic_in_tf_keras(keras.Input((1,)))
    assert _keras.training_layer_of_tf_keras() is None
    assert kl.layers.ShardedEmbedding(10, 4)(IDS).shape == (8, 1, 4)
