"""The layers: one public layer a file."""

from keras_largeout.layers.sharded_embedding import ShardedEmbedding

__all__ = ["ShardedEmbedding"]
