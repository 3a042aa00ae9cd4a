"""Several labels per row: `SparseOutput` beside Keras's `Dense`, a bottleneck, softmaxes, and neighbours."""

import time

import _common
import extreme_classification as example
import keras
import numpy as np
import scipy.sparse
import tensorflow as tf

import keras_largeout as kl

ROWS = ("SparseOutput", "SparseOutput alone", "Dense", "bottleneck", "full", "sampled", "tree", "neighbours")
COURSE = ("seconds of training", "P@1 in the test")
#: Found by trying, on citeulike-t. The first two rows have the defaults of the example but for "alone".
SETTINGS = ["--learning-rate", "2e-3", "--dropout", "0.3"]
BOTTLENECK, SAMPLES, NEIGHBOURS = 64, 4096, 50


def run(row, argv):
    args = example.arguments([*(SETTINGS if row != "SparseOutput" else []), *argv])
    keras.utils.set_random_seed(args.seed)
    if row == "Dense":
        args.feature_rate = min(args.feature_rate, 2e-3)
    train, test, _ = example.read(args)
    if row == "neighbours":
        began, predictor = time.perf_counter(), neighbours(train, NEIGHBOURS)
        scores = in_percent(example.measure(args, predictor, train, test))
        return {"GB": _common.peak_memory(), "test, s": time.perf_counter() - began, **scores}
    counts = train.label_counts()
    between, head, data = [], None, None
    if row.startswith("SparseOutput"):
        adam = keras.optimizers.Adam(args.learning_rate)
        head = kl.layers.SparseOutput(train.num_labels, args.fan_in, loss=args.loss, optimizer=adam)
        if row == "SparseOutput":
            between = [keras.layers.Dense(args.wide, activation="relu", kernel_initializer="he_normal")]
    elif row in ("Dense", "bottleneck"):
        head = Dense(train.num_labels)
        if row == "bottleneck":
            between = [keras.layers.Dense(BOTTLENECK)]  # linear: a relu here loses 20 points
    else:
        head = softmax(row, np.maximum(counts, 1))
        data = example.batches(args, train, shuffle=True).map(lambda x, labels: (x, *one_label(labels)))
    model = example.build(args, train, between, head)
    if hasattr(head, "bias") and data is None:
        share = (counts + 0.1) / (len(train) + 1)
        head.bias.assign(np.log(share / (1 - share)))
    model.compile(example.optimizer(args), loss=head.loss)
    callbacks = []
    if row.startswith("SparseOutput") and args.rewire:
        callbacks = [kl.callbacks.Rewire(head, args.rewire, args.rewire_every, until=0.66, grow=args.grow)]
    predictor = head.predictor(model, k=5)
    found = example.fit(args, model, predictor, train, test, data, callbacks)
    seconds = np.diff([0, *found["seconds"]])
    weights = sum(w.numpy().nbytes for layer in (head, *between) for w in layer.weights)
    scores = in_percent({name: values[-1] for name, values in found.items()})
    course = [(s, 100 * p) for s, p in zip(found["seconds"], found["P@1"])]
    own = {"MB": weights / 2**20, "GB": _common.peak_memory(), "s/epoch": float(np.median(seconds))}
    return {**own, **scores, "course": course}


def in_percent(scores):
    return {name: 100 * scores[name] for name in ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5")}


def neighbours(train, count):
    """Return a predictor: the labels of the `count` rows of training that are nearest by their cosine.

    A label's score is the sum of the cosines of the rows that have it.
    """

    def matrix(splits, ids, values, width):
        return scipy.sparse.csr_matrix((values, ids, splits), (len(splits) - 1, width))

    def features(splits, ids, values):
        rows = matrix(splits, ids, values, train.num_features)
        norms = np.sqrt(rows.multiply(rows).sum(1).A1)
        return scipy.sparse.diags(1 / np.maximum(norms, 1e-12)) @ rows

    known = features(train.feature_splits, train.features, train.values).T.tocsr()
    labels = matrix(train.label_splits, train.labels, np.ones(len(train.labels)), train.num_labels)

    def predict(inputs, training=False):
        ids = inputs["ids"]
        cosines = (features(ids.row_splits, ids.flat_values, inputs["values"].flat_values) @ known).toarray()
        least = -np.partition(-cosines, count - 1, axis=1)[:, [count - 1]]
        votes = (scipy.sparse.csr_matrix(np.where(cosines >= least, cosines, 0)) @ labels).toarray()
        best = np.argsort(-votes, axis=1, kind="stable")[:, :5]
        return {"ids": best, "scores": np.take_along_axis(votes, best, axis=1)}

    return predict


def softmax(row, counts):
    if row == "full":
        return kl.layers.FullSoftmax(len(counts), counts)
    if row == "tree":
        return kl.layers.HierarchicalSoftmax(len(counts), counts)
    return kl.layers.SampledSoftmax(len(counts), min(SAMPLES, len(counts) // 2), counts=counts)


def one_label(labels):
    """Return one of each row's labels, -1 if it has none, and how many there are: a target and its weight.

    Drawn again in each epoch, it is an estimate of the sum of the cross-entropies of all labels ("pick all
    labels" of Menon et al., 2019, "Multilabel reductions: what is my loss optimising?", section 3).

    Args:
        labels: int `[batch, n]`, padded with -1.
    """
    lengths = tf.reduce_sum(tf.cast(labels >= 0, tf.int32), axis=1)
    drawn = tf.cast(tf.random.uniform(tf.shape(lengths)) * tf.cast(lengths, tf.float32), tf.int32)
    padded = tf.pad(labels, [[0, 0], [0, 1]], constant_values=-1)
    return tf.gather(padded, tf.minimum(drawn, tf.maximum(lengths - 1, 0)), batch_dims=1), tf.cast(
        lengths, tf.float32
    )


class Dense(keras.layers.Dense):
    """Keras's `Dense` as a head: logits of all labels, and the sum of their binary cross-entropies."""

    @staticmethod
    def loss(y_true, logits):
        ids = tf.cast(y_true, tf.int32)
        own = tf.where(ids >= 0, tf.gather(logits, tf.maximum(ids, 0), batch_dims=1), 0.0)
        return tf.reduce_sum(tf.nn.softplus(logits), -1) - tf.reduce_sum(own, -1)

    def predictor(self, model, k):
        scores, ids = keras.ops.top_k(model.outputs[0], k)
        return keras.Model(model.inputs, {"ids": ids, "scores": scores})
