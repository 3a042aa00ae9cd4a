"""keras_largeout: the ops alone, and the Keras layer with its optimizer. Both rows show what Keras adds."""

import keras
import tensorflow as tf

from benchmarks._data import load
from benchmarks.peers import keras_embedding, tf_common


def ops_step(config, data):
    """embedding_lookup, its gradient and row_update in a tf.function: no layer, no optimizer object."""
    from keras_largeout.ops.embedding import embedding_lookup
    from keras_largeout.ops.row_update import row_update

    raise NotImplementedError


def keras_step(config, data):
    """ShardedEmbedding(combiner="sum") and an optimizer of ours, in the same step function as Keras's own."""
    import keras_largeout as kl

    optimizers = {
        "sgd": lambda lr: kl.optimizers.SGD(lr),
        "adagrad": lambda lr: kl.optimizers.Adagrad(lr, initial_accumulator_value=0.1, epsilon=1e-7),
        "rowwise_adagrad": lambda lr: kl.optimizers.RowWiseAdagrad(
            lr, initial_accumulator_value=0.1, epsilon=1e-7
        ),
        "adam": lambda lr: kl.optimizers.LazyAdam(lr, epsilon=1e-7),
    }
    layer = kl.layers.ShardedEmbedding(
        config["rows"],
        config["dim"],
        combiner="sum",
        embeddings_initializer=keras.initializers.Constant(config["init"]),
    )
    return keras_embedding.train_step(
        layer, optimizers[config["optimizer"]](config["lr"]), data, lambda rows: rows
    )
