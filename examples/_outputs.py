"""The output layers that the extreme classification example compares."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

import keras_largeout as kl

#: What --output may be, and what the tables call it.
NAMES = {
    "sparse": "SparseOutput",
    "dense": "Dense",
    "bottleneck": "Dense behind a bottleneck",
    "direct": "SparseOutput without the wide layer",
    "full": "FullSoftmax",
    "sampled": "SampledSoftmax",
    "tree": "HierarchicalSoftmax",
}

#: Heads of one right class. Of a row's labels they are shown one in every epoch (`one_label`).
SOFTMAX = ("full", "sampled", "tree")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What an output is trained with. Found by trying, on the tags of citeulike-t."""

    learning_rate: float
    #: Of the vectors of the features, and the standard deviation that they begin with.
    feature_rate: float
    feature_scale: float
    dropout: float


#: With large first vectors (1.0) a dense output reads random projections of the features from the first step:
#: it learns faster (P@1 40% after one epoch, not 18%), and ends lower. A SparseOutput has its features learn
#: faster than the rest, and leaves out more.
SETTINGS = {
    "sparse": Settings(1e-3, 5e-3, 0.03, 0.5),
    "dense": Settings(2e-3, 2e-3, 0.03, 0.3),
    "bottleneck": Settings(2e-3, 5e-3, 0.03, 0.3),
    "direct": Settings(2e-3, 5e-3, 0.03, 0.3),
    "full": Settings(2e-3, 5e-3, 0.03, 0.3),
    "sampled": Settings(2e-3, 5e-3, 0.03, 0.3),
    "tree": Settings(2e-3, 5e-3, 0.03, 0.3),
}


def make_output(kind, args, counts):
    """Return `(layers, head)`: what stands between the hidden vectors and the head, and the head.

    `counts`: int `[num_labels]`, how often each label occurs in training.
    """
    num_labels, once = len(counts), np.maximum(counts, 1)
    if kind == "full":
        return [], kl.layers.FullSoftmax(num_labels, counts=once)
    if kind == "sampled":
        return [], kl.layers.SampledSoftmax(num_labels, min(args.samples, num_labels // 2), counts=once)
    if kind == "tree":
        return [], kl.layers.HierarchicalSoftmax(num_labels, once)
    adam = keras.optimizers.Adam(args.learning_rate)
    if kind == "bottleneck":
        narrow = keras.layers.Dense(args.bottleneck, name="narrow")  # linear: a relu here loses 20 points
        return [narrow], DenseLabels(num_labels, args.loss)
    if kind == "dense":
        return [], DenseLabels(num_labels, args.loss)
    head = kl.layers.SparseOutput(num_labels, args.fan_in, loss=args.loss, optimizer=adam)
    wide = keras.layers.Dense(args.wide, activation="relu", kernel_initializer="he_normal", name="wide")
    return ([wide] if kind == "sparse" else []), head


def begin_with(head, counts, rows):
    """Lets an untrained head predict how often each label occurs: it learns faster from there."""
    if isinstance(head, (kl.layers.FullSoftmax, kl.layers.SampledSoftmax, kl.layers.HierarchicalSoftmax)):
        return  # its `counts` say so
    share = (counts + 0.1) / (rows + 1)
    if head.loss_kind == "squared_hinge":
        head.bias.assign(np.full(len(share), -1.0))
    else:
        head.bias.assign(np.log(share / (1 - share)))


def one_label(labels):
    """Return one of each row's labels at random, and how many there are: a target and its weight.

    The mean over epochs is then the sum of the cross-entropies of all labels of a row: the reduction
    "pick all labels" of Menon et al., 2019, "Multilabel reductions: what is my loss optimising?", section 3.

    Args:
        labels: int `RaggedTensor` `[batch, n]`.

    Returns:
        `(targets, weights)`: int `[batch]`, -1 where there is none, and float32 `[batch]`.
    """
    lengths = labels.row_lengths()
    drawn = tf.random.uniform(tf.shape(lengths), dtype=tf.float64) * tf.cast(lengths, tf.float64)
    columns = tf.minimum(tf.cast(drawn, tf.int64), tf.maximum(lengths - 1, 0))
    padded = tf.concat([labels.to_tensor(-1), tf.fill([labels.nrows(), 1], tf.constant(-1, labels.dtype))], 1)
    return tf.gather(padded, columns, batch_dims=1), tf.cast(lengths, tf.float32)


def memory(head, between=()):
    """Return bytes of the weights of a head and of the layers below it, and of what training them needs
    besides.

    That is Adam's two moments, and the gradient where there is an array of it.
    """
    total = training = 0
    for layer in (head, *between):
        weights = [w for w in layer.weights if w.name != "trigger"]
        trained = sum(_bytes(w) for w in weights if w.name in ("kernel", "bias"))
        total += sum(map(_bytes, weights))
        training += trained * (2 if isinstance(layer, _ROW_BY_ROW) else 3)
    return total, training


#: These have no array of the gradient of all labels.
_ROW_BY_ROW = (kl.layers.SparseOutput, kl.layers.SampledSoftmax, kl.layers.HierarchicalSoftmax)


def _bytes(variable):
    return tf.TensorShape(variable.shape).num_elements() * tf.as_dtype(variable.dtype).size


@keras.saving.register_keras_serializable(package="extreme_classification")
class DenseLabels(keras.layers.Dense):
    """`keras.layers.Dense(num_labels)`, whose outputs are logits, with the losses of `SparseOutput`.

    It is spoken to like a head of keras_largeout.
    """

    def __init__(self, units, loss="binary_crossentropy", **kwargs):
        super().__init__(units, **kwargs)
        self.loss_kind = loss

    @property
    def loss(self):
        return {"binary_crossentropy": binary_crossentropy, "squared_hinge": squared_hinge}[self.loss_kind]

    def get_config(self):
        return {**super().get_config(), "loss": self.loss_kind}

    def predictor(self, model, k=10):
        scores, ids = keras.ops.top_k(model.outputs[0], k)
        return keras.Model(model.inputs, {"ids": ids, "scores": scores})


@keras.saving.register_keras_serializable(package="extreme_classification")
def binary_crossentropy(y_true, logits):
    """Sums over all labels, for label ids `[batch, n]` padded with -1 (Keras makes floats of them)."""
    return tf.reduce_sum(tf.nn.softplus(logits), -1) - _sum_of_labels(y_true, logits, lambda z: z)


@keras.saving.register_keras_serializable(package="extreme_classification")
def squared_hinge(y_true, logits):
    """Return likewise."""
    negative = tf.reduce_sum(tf.square(tf.nn.relu(1 + logits)), -1)
    return negative + _sum_of_labels(
        y_true, logits, lambda z: tf.square(tf.nn.relu(1 - z)) - tf.square(tf.nn.relu(1 + z))
    )


def _sum_of_labels(y_true, logits, term):
    ids = tf.cast(y_true, tf.int32)
    terms = term(tf.gather(logits, tf.maximum(ids, 0), batch_dims=1))
    return tf.reduce_sum(tf.where(ids >= 0, terms, 0.0), -1)
