"""Keras's own tests of `keras.layers.Embedding`, run on `ShardedEmbedding`: all but LoRA and quantisation."""

import unittest

import pytest

from keras_largeout.layers.sharded_embedding import ShardedEmbedding

keras_tests = pytest.importorskip(
    "keras.src.layers.core.embedding_test", reason="this Keras ships without its tests"
)
OTHER_THINGS = ("lora", "quant", "int4", "legacy")
AT_LEAST = 10  # Keras 3.15 has 11


class _Layers:
    """The `layers` module of Keras's test file, with our Embedding in the place of its own."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        return ShardedEmbedding if name == "Embedding" else getattr(self._module, name)


def test_keras_embedding(monkeypatch):
    monkeypatch.setattr(keras_tests, "layers", _Layers(keras_tests.layers))
    names = unittest.TestLoader().getTestCaseNames(keras_tests.EmbeddingTest)
    ours = [name for name in names if not any(word in name for word in OTHER_THINGS)]
    result = unittest.TestResult()
    unittest.TestSuite(map(keras_tests.EmbeddingTest, ours)).run(result)
    assert result.wasSuccessful(), "\n".join(text for _, text in result.errors + result.failures)
    # Not one of them away: neither skipped, nor never there.
    assert result.testsRun - len(result.skipped) >= AT_LEAST, result.skipped
