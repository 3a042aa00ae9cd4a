"""Language model: the tree beside full and sampled softmaxes, and beside Keras's `Dense`."""

import math

import _common
import keras
import language_model as example
import numpy as np
import tensorflow as tf

import keras_largeout as kl

ROWS = ("tree", "huffman", "full", "sampled", "dense")
COURSE = ("seconds of training", "perplexity in validation")


def run(row, argv):
    args = example.arguments([*argv, *(["--head", row] if row != "dense" else [])])
    keras.utils.set_random_seed(args.seed)
    corpus = example.read_corpus(args)
    if row == "dense":
        head, loss = dense(corpus.counts), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metric = Perplexity(name="perplexity")
    else:
        head = example.make_head(args, corpus)
        loss, metric = head.loss, kl.metrics.Perplexity()
    model = example.build(args, len(corpus.words), head)
    model.compile(kl.optimizers.LazyAdam(args.learning_rate), loss=loss, metrics=[metric])
    found = example.fit(args, model, corpus)
    return {
        "perplexity": found["val_perplexity"][-1],
        "best": min(found["val_perplexity"]),
        "epochs": len(found["seconds"]),
        "seconds": found["seconds"][-1],
        "words/s": found["words/s"],
        "GB": _common.peak_memory(),
        "course": list(zip(found["seconds"], found["val_perplexity"])),
    }


def dense(counts):
    """Return Keras's `Dense` over all words. Like the tree it begins with the frequencies."""
    frequencies = keras.initializers.Constant(np.log(counts / counts.sum()))
    return keras.layers.Dense(len(counts), bias_initializer=frequencies)


class Perplexity(keras.metrics.Mean):
    """exp of the mean loss of logits over all words that are not padding, which is 0."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y_true, y_pred)
        super().update_state(losses, tf.cast(y_true != example.PAD, losses.dtype))

    def result(self):
        return keras.ops.exp(keras.ops.minimum(super().result(), math.log(1e30)))
