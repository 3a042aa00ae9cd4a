"""The layers: one public layer per file."""

from keras_largeout.layers.distributed_embedding.config import FeatureConfig, TableConfig
from keras_largeout.layers.distributed_embedding.layer import DistributedEmbedding
from keras_largeout.layers.full_softmax import FullSoftmax
from keras_largeout.layers.head import Head
from keras_largeout.layers.hierarchical_softmax import HierarchicalSoftmax
from keras_largeout.layers.sampled_softmax import SampledSoftmax
from keras_largeout.layers.sharded_embedding import ShardedEmbedding
from keras_largeout.layers.sparse_output import SparseOutput
from keras_largeout.layers.top_k import TopK

__all__ = [
    "DistributedEmbedding",
    "FeatureConfig",
    "FullSoftmax",
    "Head",
    "HierarchicalSoftmax",
    "SampledSoftmax",
    "ShardedEmbedding",
    "SparseOutput",
    "TableConfig",
    "TopK",
]
