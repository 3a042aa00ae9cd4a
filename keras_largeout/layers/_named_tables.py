"""The tables of a layer by the names that `kl.warm_start` and `kl.callbacks.DecayTables` use."""

import keras

from keras_largeout.layers.distributed_embedding.layer import DistributedEmbedding
from keras_largeout.layers.heads._table_head import TableHead
from keras_largeout.layers.sharded_embedding import ShardedEmbedding
from keras_largeout.layers.sparse_dense import SparseDense
from keras_largeout.tables.row_range import RowRange


def named_tables(layer):
    """Return functions that make `(RowRange, vocabulary or None)` of the tables of a layer, by name.

    A table has the name of its layer, or its own in a `DistributedEmbedding`. The biases of a head add
    "/bias". A layer without such tables gives none.
    """
    if isinstance(layer, ShardedEmbedding):
        return {layer.name: lambda: (RowRange(layer.table.array), layer.vocabulary)}
    if isinstance(layer, SparseDense):
        return {layer.name: lambda: (RowRange(layer.table.array), None)}
    if isinstance(layer, DistributedEmbedding):
        configs = {feature.table.name: feature.table for feature in keras.tree.flatten(layer.feature_configs)}
        return {
            name: lambda name=name: (layer.get_embedding_tables()[name], configs[name].vocabulary)
            for name in configs
        }
    if isinstance(layer, TableHead):
        changes = layer.class_vocabulary.changes
        vocabulary = layer.vocabulary if changes else getattr(layer.tied_to(), "vocabulary", None)
        kernel = {layer.name: lambda: (RowRange(layer.kernel.array), vocabulary)}
        own = kernel if layer.tied_to() is None else {}
        biases = {f"{layer.name}/bias": lambda: (RowRange(layer.bias.array), vocabulary)}
        return own | (biases if layer.use_bias else {})
    return {}
