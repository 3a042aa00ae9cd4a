"""The model of the next-item example, in the manner of SASRec, and the heads that are compared."""

import keras
import numpy as np

import keras_largeout as kl


@keras.saving.register_keras_serializable(package="next_item")
class Positions(keras.layers.Layer):
    """Scales its input by sqrt(dim) and adds a learned vector for each position.

    `[batch, time, dim] -> [batch, time, dim]`, time at most `length`.

    Args:
        length: int, the longest sequence.
        **kwargs: those of `keras.layers.Layer`.
    """

    def __init__(self, length, **kwargs):
        super().__init__(**kwargs)
        self.length, self.supports_masking = length, True

    def build(self, input_shape):
        self.vectors = self.add_weight(
            shape=(self.length, input_shape[-1]), initializer="uniform", name="vectors"
        )

    def call(self, inputs):
        return inputs * self.vectors.shape[-1] ** 0.5 + self.vectors[: keras.ops.shape(inputs)[1]]

    def get_config(self):
        return {**super().get_config(), "length": self.length}


def build(head, num_items, length, dim, blocks=2, attention_heads=2, dropout=0.2, seed=0):
    """Return a model from items, int `[batch, time]` padded with -1, to the hidden vectors that `head`
    scores.

    Args:
        head: a head of `keras_largeout`.
        num_items: int; items are 0 .. num_items - 1.
        length: int, the longest sequence.
        dim: int, width of all vectors.
        blocks: int, blocks of self-attention and two dense layers.
        attention_heads: int; `dim` is a multiple of it.
        dropout: float, share of values left out, of embeddings and in the blocks.
        seed: int, of the dropout.

    Returns:
        A `kl.Model` with the input `{"items": ...}`.

    Source: [Kang and McAuley, 2018](https://arxiv.org/abs/1808.09781). Other than there the items to predict
    have weights of their own, in the head, and normalisation comes before all of attention's inputs.
    """
    items = keras.Input((None,), dtype="int32", name="items")
    rows = kl.layers.ShardedEmbedding(num_items + 1, dim, mask_zero=True, name="embedding")
    x = rows(items + 1)  # row 0 is padding
    x = Positions(length, name="positions")(x)
    x = keras.layers.Dropout(dropout, seed=seed)(x)
    for _ in range(blocks):
        y = keras.layers.LayerNormalization()(x)
        attention = keras.layers.MultiHeadAttention(
            attention_heads, dim // attention_heads, dropout=dropout, seed=seed
        )
        y = attention(y, y, use_causal_mask=True)
        x = keras.layers.Add()([x, keras.layers.Dropout(dropout, seed=seed)(y)])  # `x + y` has no mask
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.Dense(dim, activation="relu")(y)
        y = keras.layers.Dense(dim)(keras.layers.Dropout(dropout, seed=seed)(y))
        x = keras.layers.Add()([x, keras.layers.Dropout(dropout, seed=seed)(y)])
    x = keras.layers.LayerNormalization()(x)
    return kl.Model({"items": items}, head(x))


#: What each head is called in tables and pictures.
NAMES = {
    "tree": "tree",
    "huffman": "Huffman tree",
    "full": "full softmax",
    "sampled": "sampled, log-uniform",
    "in_batch": "sampled, in-batch",
    "mixed": "sampled, mixed",
    "bpr": "BPR",
    "bce": "binary cross-entropy",
}


def make_head(kind, counts, samples):
    """Return the head of that kind.

    Args:
        kind: one of `NAMES`.
        counts: int `[items]`, how often each occurs; falling, as log-uniform samples want them.
        samples: int, how many negatives a step draws.
    """
    counts = np.maximum(counts, 1)  # an item that occurs in the test only must have a place, too
    n, layers = len(counts), kl.layers
    make = {
        "tree": lambda: layers.HierarchicalSoftmax(n, counts, name="head"),
        "huffman": lambda: layers.HierarchicalSoftmax(n, counts, tree=kl.trees.huffman, name="head"),
        "full": lambda: layers.FullSoftmax(n, name="head"),
        "sampled": lambda: layers.SampledSoftmax(n, samples, name="head"),
        "in_batch": lambda: layers.SampledSoftmax(n, 0, "in_batch", counts, name="head"),
        "mixed": lambda: layers.SampledSoftmax(n, samples, "mixed", counts, name="head"),
        "bpr": lambda: layers.SampledSoftmax(n, samples, "uniform", loss="bpr", name="head"),
        "bce": lambda: layers.SampledSoftmax(n, samples, "uniform", loss="binary_crossentropy", name="head"),
    }
    return make[kind]()


def begin_with(head, counts):
    """Lets an untrained head predict the frequencies, as a tree does by itself: it learns faster from there.

    The losses of BPR and of binary cross-entropy are least where a score is log p(item) and a constant, if
    the negatives are uniform. For the second this is log(items / samples), but for the calibration.
    """
    if isinstance(head, kl.layers.HierarchicalSoftmax):
        return
    counts = np.maximum(counts, 1)
    constant = 0.0 if head.has_log_probs else np.log(len(counts) / head.num_sampled)
    head.bias.assign(np.log(counts / counts.sum()) + constant)
