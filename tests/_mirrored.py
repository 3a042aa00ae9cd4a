"""A small language model, on one device or with its tables cut over several: for the tests of both."""

import functools

import _training
import keras
import numpy as np
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.tree_cut import TreeCut
from keras_largeout.planning.tree_placement import spread, subtree_roots

VOCAB, DIM, LENGTH, BATCH = 67, 6, 4, 12
COUNTS = 1e6 / np.arange(1, VOCAB + 1) ** 1.1


def below_the_root(tree, devices):
    """Everything but the root goes to the devices, subtrees in turn: so small a tree would be replicated."""
    cut = np.arange(tree.num_nodes) == 0
    units = subtree_roots(tree, cut)
    owners = spread(tree, cut, units, np.arange(len(units)) % devices)
    return Placement.explicit(np.repeat(owners, tree.node_sizes), devices)


def cut_below_the_root(head, devices=2):
    """The cut belongs to the tree: a model that was made on one device is cut alike where it is loaded."""
    head._tree._cut = TreeCut.of_placement(head.tree, below_the_root(head.tree, devices))


def model_of(devices, optimizer, placement="permutation", mask_zero=False, dtype=None, **compile_args):
    """A compiled model; its layers "words" (an embedding), "rnn" and "next" (a head)."""
    keras.utils.set_random_seed(7)
    tree = kl.trees.head_tail(COUNTS, head=10, clusters=6, arity=4)
    with strategy_of(devices).scope():
        tokens = keras.Input((LENGTH,), dtype="int32", name="tokens")
        place = placement if devices > 1 else "auto"
        words = kl.layers.ShardedEmbedding(
            VOCAB, DIM, placement=place, mask_zero=mask_zero, dtype=dtype, name="words"
        )
        x = keras.layers.SimpleRNN(DIM, return_sequences=True, name="rnn")(words(tokens))
        head = kl.layers.HierarchicalSoftmax(VOCAB, counts=COUNTS, tree=tree, name="next", dtype=dtype)
        cut_below_the_root(head, max(2, devices))
        model = keras.Model(tokens, head(x))
        model.compile(optimizer(), loss=head.loss, **compile_args)
    return model


def data(steps=4, seed=1, padding=0.0):
    """Words, the words after them, and weights of them."""
    rng = np.random.default_rng(seed)
    words = rng.choice(VOCAB, (steps * BATCH, LENGTH + 1), p=COUNTS / COUNTS.sum()).astype("int32")
    words[rng.random(words.shape) < padding] = 0
    return words[:, :-1], words[:, 1:], rng.random((len(words), LENGTH)).astype("float32")


fit = functools.partial(_training.fit, batch=BATCH)


def tables(model):
    words, head = model.get_layer("words"), model.get_layer("next")
    return {"words": words.table, "kernel": head.kernel_table, "bias": head.bias_table}


def optimizers(model):
    """The optimizers of this package in a model's, whatever they are wrapped in."""
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return [o for o in [*getattr(inner, "optimizers", []), inner] if hasattr(o, "_row_slots")]


def state(model):
    """Logical tables and slots, and the dense weights: arrays by name."""
    arrays = {name: table.numpy() for name, table in tables(model).items()}
    for optimizer in optimizers(model):
        name = type(optimizer).__name__
        arrays |= {f"{name}_{key}": slot.numpy() for key, slot in optimizer._row_slots.slots.items()}
        arrays[f"{name}_iterations"] = optimizer.iterations.numpy()
    return arrays | {w.path: w.numpy() for w in model.get_layer("rnn").weights}
