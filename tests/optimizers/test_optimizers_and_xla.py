"""Keras's choice of XLA where there is a GPU, which is made up here."""

import types

import keras
import pytest
import tensorflow as tf

import keras_largeout as kl

OURS, KERAS = (lambda: kl.optimizers.SGD(0.1)), (lambda: keras.optimizers.SGD(0.1))


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch):
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind=None: [types.SimpleNamespace(device_type="GPU")]
    )


def _compiled(optimizer, *layers, cls=kl.Sequential, **options):
    model = cls([*layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **options)
    return model


def _of_several():
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        pytest.skip("this Keras has none")
    choice = keras.optimizers.OptimizerMap(KERAS(), {"embedding": OURS()})
    return keras.optimizers.MultiOptimizer(choice)


@pytest.mark.parametrize("make", [OURS, lambda: kl.optimizers.LossScaleOptimizer(OURS()), _of_several])
def test_not_for_embeddings(make):
    nested = keras.Sequential([keras.layers.Embedding(9, 2), keras.layers.Flatten()])
    assert not _compiled(make(), nested).jit_compile


def test_as_keras_chooses_elsewhere():
    assert _compiled(OURS()).jit_compile  # dense weights alone
    assert _compiled(KERAS(), keras.layers.Embedding(9, 2), keras.layers.Flatten()).jit_compile
    assert not _compiled(KERAS(), kl.layers.ShardedEmbedding(9, 2), keras.layers.Flatten()).jit_compile


def test_a_model_that_is_not_compiled():
    assert kl.Sequential([keras.layers.Embedding(9, 2)]).jit_compile


@pytest.mark.parametrize(
    "options", [{"jit_compile": True}, {"cls": keras.Sequential}], ids=["asked_for", "plain_model"]
)
def test_rows_are_refused_under_xla(options):
    model = _compiled(OURS(), keras.layers.Embedding(9, 2), keras.layers.Flatten(), **options)
    assert model.jit_compile
    with pytest.raises(ValueError, match="`jit_compile` must be False"):
        model.fit(tf.zeros([4, 3], tf.int32), tf.zeros([4, 1]), verbose=0)
