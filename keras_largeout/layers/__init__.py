"""The layers: one public layer a file."""

from keras_largeout.layers.hierarchical_softmax import HierarchicalSoftmax
from keras_largeout.layers.sharded_embedding import ShardedEmbedding

__all__ = ["HierarchicalSoftmax", "ShardedEmbedding"]
