"""The hierarchical softmax over several devices: the numbers of one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.distribute.planning.placement import Placement
from keras_largeout.distribute.planning.tree_placement import spread, subtree_roots

VOCAB, DIM, BATCH, LENGTH = 300, 8, 24, 5
COUNTS = 1e6 / np.arange(1, VOCAB + 1) ** 1.1

TREES = {
    "head_tail": kl.trees.head_tail(COUNTS, head=30, clusters=10, arity=4),
    "huffman": kl.trees.huffman(COUNTS, arity=8),
    "two_level": kl.trees.two_level(VOCAB),
    "balanced": kl.trees.balanced(VOCAB, arity=8),
}


def below_the_root(tree, devices):
    """Everything but the root goes to the devices, subtrees in turn."""
    cut = np.arange(tree.num_nodes) == 0
    units = subtree_roots(tree, cut)
    owners = spread(tree, cut, units, np.arange(len(units)) % devices)
    return Placement.explicit(np.repeat(owners, tree.node_sizes), devices)


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
        x = keras.layers.GRU(DIM, return_sequences=True)(x)
        head = kl.layers.HierarchicalSoftmax(VOCAB, counts=COUNTS, tree=TREES[tree], name="words")
        if devices > 1:  # by itself so small a tree would be replicated
            head.placement = below_the_root(head.tree, devices)
        model = keras.Model(tokens, head(x))
        model.compile(optimizer(), loss=head.loss, **compile_args)
    return model


def fit(model, steps, **kwargs):
    losses = []
    record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: losses.append(logs["loss"]))
    model.fit(data(steps), verbose=0, shuffle=False, callbacks=[record], **kwargs)
    return losses


def state(model):
    embedding, head = model.layers[1], model.layers[-1]
    tables = {"embedding": embedding.table, "kernel": head.kernel_table, "bias": head.bias_table}
    arrays = {name: table.numpy() for name, table in tables.items()}
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    arrays.update({key: slot.numpy() for key, slot in optimizer._row_slots.slots.items()})
    return arrays


def assert_same(a, b, rtol=2e-4, atol=2e-5):
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_allclose(a[key], b[key], rtol=rtol, atol=atol, err_msg=key)


@pytest.mark.parametrize(
    "tree, devices",
    [("two_level", 2), ("two_level", 4), ("two_level", 8)]
    + [(tree, 4) for tree in TREES if tree != "two_level"],
)
def test_same_numbers(tree, devices):
    one, several = make(1, tree), make(devices, tree)
    want, got = fit(one, 20), fit(several, 20)
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
