"""Keras's own tests of `keras.layers.Embedding`, run on `ShardedEmbedding`: all but LoRA and quantisation."""

import unittest.mock

import pytest

from keras_largeout.layers.sharded_embedding import ShardedEmbedding

keras_tests = pytest.importorskip(
    "keras.src.layers.core.embedding_test", reason="this Keras ships without its tests"
)


class _Layers:
    """The `layers` module of Keras's test file, with our Embedding in the place of its own."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        return ShardedEmbedding if name == "Embedding" else getattr(self._module, name)


class TestKerasEmbedding(keras_tests.EmbeddingTest):
    def setUp(self):
        super().setUp()
        patch = unittest.mock.patch.object(keras_tests, "layers", _Layers(keras_tests.layers))
        patch.start()
        self.addCleanup(patch.stop)


for name in dir(TestKerasEmbedding):
    if name.startswith("test_") and any(word in name for word in ("lora", "quant", "int4", "legacy")):
        setattr(TestKerasEmbedding, name, None)
