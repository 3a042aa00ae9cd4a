"""The layers: one public layer per file."""

from keras_largeout.layers.category_hashing import CategoryHashing
from keras_largeout.layers.distributed_embedding.config import FeatureConfig, TableConfig
from keras_largeout.layers.distributed_embedding.layer import DistributedEmbedding
from keras_largeout.layers.dynamic_vocabulary import DynamicVocabulary
from keras_largeout.layers.group_by import GroupBy
from keras_largeout.layers.heads.full_softmax import FullSoftmax
from keras_largeout.layers.heads.head import Head
from keras_largeout.layers.heads.hierarchical_softmax import HierarchicalSoftmax
from keras_largeout.layers.heads.retrieval.layer import Retrieval
from keras_largeout.layers.heads.sampled_softmax import SampledSoftmax
from keras_largeout.layers.heads.sparse_output import SparseOutput
from keras_largeout.layers.heads.top_k import TopK
from keras_largeout.layers.positions import Positions
from keras_largeout.layers.sharded_embedding import ShardedEmbedding
from keras_largeout.layers.sparse_dense import SparseDense

__all__ = [
    "CategoryHashing",
    "DistributedEmbedding",
    "DynamicVocabulary",
    "FeatureConfig",
    "FullSoftmax",
    "GroupBy",
    "Head",
    "HierarchicalSoftmax",
    "Positions",
    "Retrieval",
    "SampledSoftmax",
    "ShardedEmbedding",
    "SparseDense",
    "SparseOutput",
    "TableConfig",
    "TopK",
]
