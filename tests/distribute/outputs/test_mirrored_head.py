"""The hierarchical softmax over several devices: the numbers of one device."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from _mirrored import below_the_root
from _tables import strategy_of
from _training import arrays_of, assert_same, fit, in_the_suite

import keras_largeout as kl

VOCAB, DIM, BATCH, LENGTH = 300, 8, 24, 5
COUNTS = 1e6 / np.arange(1, VOCAB + 1) ** 1.1

TREES = {
    "head_tail": kl.trees.head_tail(COUNTS, head=30, clusters=10, arity=4),
    "huffman": kl.trees.huffman(COUNTS, arity=8),
    "two_level": kl.trees.two_level(VOCAB),
    "balanced": kl.trees.balanced(VOCAB, arity=8),
}


def data(steps, batch=BATCH):
    rng = np.random.default_rng(1)
    words = rng.choice(VOCAB, (steps * batch, LENGTH + 1), p=COUNTS / COUNTS.sum()).astype("int32")
    words[rng.random(words.shape) < 0.1] = 0
    return tf.data.Dataset.from_tensor_slices((words[:, :-1], words[:, 1:])).batch(batch)


def make(devices, tree="two_level", optimizer=lambda: kl.optimizers.LazyAdam(0.01), **compile_args):
    keras.utils.set_random_seed(7)
    with strategy_of(devices).scope():
        tokens = keras.Input((LENGTH,), dtype="int32")
        place = "modulo" if devices > 1 else "auto"
        x = kl.layers.ShardedEmbedding(VOCAB, DIM, placement=place)(tokens)
        x = keras.layers.SimpleRNN(DIM, return_sequences=True)(x)
        head = kl.layers.HierarchicalSoftmax(VOCAB, counts=COUNTS, tree=TREES[tree], name="words")
        if devices > 1:  # by itself so small a tree would be replicated
            head.placement = below_the_root(head.tree, devices)
        model = keras.Model(tokens, head(x))
        model.compile(optimizer(), loss=head.loss, **compile_args)
    return model


def state(model):
    head = model.layers[-1]
    return arrays_of(model.layers[1].table, head.kernel_table, head.bias_table)


def trained(devices, tree):
    """A model, and the losses of its steps."""
    model = make(devices, tree)
    return model, fit(model, data(20))


trained_on_one = functools.cache(functools.partial(trained, 1))


@pytest.mark.parametrize(
    "tree, devices",
    [("two_level", 6), ("head_tail", 4), ("huffman", 3), *in_the_suite([("two_level", 2), ("balanced", 2)])],
)
def test_same_numbers(tree, devices):
    (one, want), (several, got) = trained_on_one(tree), trained(devices, tree)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    assert_same(state(several), state(one))
    head = several.layers[-1]
    assert len(head.kernel_table.shards) > devices / 2
    hidden = np.random.default_rng(0).normal(size=(7, DIM)).astype("float32")
    for mine, theirs in zip(head.top_k(hidden, 5), one.layers[-1].top_k(hidden, 5)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        head.log_prob(hidden, np.arange(7)), one.layers[-1].log_prob(hidden, np.arange(7)), rtol=1e-3
    )
