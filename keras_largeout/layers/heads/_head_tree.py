"""The tree of a head: from its arguments, from a layer that it is a clone of, or from a weights file.

It is saved with the weights, as three of its six int32 variables; the others follow from them. A config has
its sizes, so that a loaded layer has the right shapes, and a digest, by which a clone in the same process
finds it.
"""

import hashlib
import warnings
import weakref

import keras
import numpy as np
import tensorflow as tf

from keras_largeout import trees
from keras_largeout.layers.heads._per_class import counts_per_class
from keras_largeout.ops.tree_softmax.wrapper import TreeArrays
from keras_largeout.planning.tree_cut import TreeCut, unfilled_placement
from keras_largeout.replicas.devices import plain_variable
from keras_largeout.tables.placing import place

_USUAL_DIM = 300  # of a head that is not built yet, where the cost of its nodes is asked for
_SAVED = TreeArrays._fields[:3]  # the others are derived

# Digest -> a tree alive in this process, and its cut, for `clone_model`.
_TREES, _CUTS = weakref.WeakValueDictionary(), weakref.WeakValueDictionary()


class HeadTree:
    """The tree of one head, with its cut and its variables.

    Args:
        num_classes: int.
        counts: frequencies `[num_classes]`, or None.
        given: what the head was given as `tree`: a `trees.Tree`, a function from counts to one, None, or the
            dict that `config` gives. A dict has the sizes of the tree. The tree itself comes with the
            weights, or from the layer that was cloned, while that is alive.

    Attributes:
        tree: the `trees.Tree`; None before the weights have brought it.
        num_nodes: int.
        counts: float32 `[num_classes]`, or None.
        variables: six int32 variables, one for each of `TreeArrays`; empty before `build`.
    """

    def __init__(self, num_classes, counts, given):
        self.num_classes, self.variables = num_classes, []
        self._sizes, self._cut = None, None
        counts = None if counts is None else counts_per_class(counts, num_classes)
        if isinstance(given, dict):
            self._sizes = given
            self.tree, self._cut = _remembered(given["digest"])
            self.num_nodes = int(given["num_nodes"])
        else:
            self.tree = tree_of_arguments(num_classes, counts, given)
            self.num_nodes = self.tree.num_nodes
        self.counts = None if counts is None else counts.astype(np.float32)

    @property
    def num_rows(self):
        """Rows of the table: one for every class and every inner node but the root."""
        return self.num_classes + self.num_nodes - 1

    def cut(self, dim):
        """Return the `TreeCut`: what of the tree is replicated on several devices."""
        if self._cut is None:
            self._cut = TreeCut.of(self.tree, self.counts, dim or _USUAL_DIM)
        return self._cut

    def place(self, placement, devices, dim, name):
        """Return the `Placement` of the rows on several devices.

        Raises:
            ValueError: `placement` is not valid for a tree.
        """
        if placement == "replicated":
            return place("replicated", (self.num_rows,), devices)
        if placement != "auto":
            if self.tree is None or isinstance(placement, str):
                raise ValueError(
                    "`placement` of a tree on several devices must be 'auto', 'replicated', a Placement made "
                    f"by `place_tree`, or a Plan. Received: placement={placement!r}"
                )
            placement = place(placement, (self.num_rows,), devices, name=name)
            self._cut = TreeCut.of_placement(self.tree, placement)
            return placement
        if self.tree is None:  # the sizes are known, the rows' places come with the tree
            top_rows, largest = self._sizes["top_rows"], self._sizes["largest_subtree"]
            return unfilled_placement(self.num_rows, top_rows, largest, devices)
        return self.cut(dim).place(self.tree, devices)

    def build(self, head, one_copy):
        """Makes the variables, weights of `head`.

        Args:
            head: the layer.
            one_copy: bool: the training step has no use for the whole tree, so it is on the host alone.
        """
        values = self.tree.arrays() if self.tree is not None else self._unfilled()
        for field in TreeArrays._fields:
            self.variables.append(_variable(head, field, values[field], one_copy))

    def _unfilled(self):
        """Return arrays of the right shapes, until the weights file brings the tree."""
        rows = self.num_rows
        sizes = (self.num_classes, self.num_nodes + 1, self.num_nodes, self.num_nodes, -(-rows // 16), rows)
        return {field: np.zeros(size, np.int32) for field, size in zip(TreeArrays._fields, sizes)}

    def arrays(self):
        """Return the `TreeArrays` that the ops take."""
        return TreeArrays(*(v.value if isinstance(v, keras.Variable) else v for v in self.variables))

    def require(self, name):
        """Takes the tree from the variables, where `set_weights` brought it.

        Raises:
            ValueError: nothing did.
        """
        if self.tree is not None:
            return
        with tf.init_scope():
            arrays = [variable.numpy() for variable in self.variables[: len(_SAVED)]]
        if arrays[1][-1] == 0:
            raise ValueError(
                f"The head {name!r} was made from a config and has no tree yet: load its weights first."
            )
        self.tree = trees.Tree.from_arrays(*arrays)

    def replace(self, tree, cut):
        """Takes another tree of the same sizes; `cut` may be None."""
        self.tree, self._cut = tree, cut

    def config(self, dim):
        """Return dict: the sizes of the tree, and a digest by which a clone in this process finds it."""
        if self.tree is None:
            return self._sizes
        cut = self.cut(dim)
        top_rows, largest = cut.sizes(self.tree)
        return {
            "num_nodes": self.num_nodes,
            "digest": _remember(self.tree, cut),
            "top_rows": top_rows,
            "largest_subtree": largest,
        }


class SavedTree:
    """The tree of a head as a part of what the head saves.

    Args:
        mine: the `HeadTree` of the head.
        dim: int, of its hidden vectors.
        sharded: the `ShardedTree` that places the rows, or None.
    """

    def __init__(self, mine, dim, sharded):
        self.mine, self.dim, self.sharded = mine, dim, sharded
        self._checked = None  # the tree in the store that `check` has taken

    def save(self, arrays):
        for field, variable in zip(_SAVED, self.mine.variables):
            arrays[field] = variable.numpy()
        if self.mine.tree is not None:
            cut = self.mine.cut(self.dim)
            arrays["cut_nodes"], arrays["cut_loads"] = cut.nodes, cut.loads

    def check(self, store):
        self._checked = self._tree_in(store)

    def load(self, store):
        tree = self._checked
        if self.mine.tree is None or _digest(self.mine.tree) != _digest(tree):
            cut = None
            if "cut_nodes" in store:
                cut = TreeCut(np.asarray(store["cut_nodes"]), np.asarray(store["cut_loads"]))
            if self.sharded is not None:
                cut = cut or TreeCut.of(tree, None, self.dim)
                self.sharded.replace_tree(tree, cut)
            self.mine.replace(tree, cut)
        for field, variable in zip(TreeArrays._fields, self.mine.variables):
            variable.assign(self.mine.tree.arrays()[field])

    def _tree_in(self, store):
        saved = [np.asarray(store[field]) for field in _SAVED if field in store]
        shapes, expected = (
            [tuple(array.shape) for array in arrays] for arrays in (saved, self.mine.variables[: len(_SAVED)])
        )
        if shapes != expected:
            raise ValueError(
                f"The file must have a tree of {self.mine.num_classes} classes and {self.mine.num_nodes} "
                f"nodes, array shapes {expected}. Received: {shapes}"
            )
        return trees.Tree.from_arrays(*saved)


def _variable(head, field, value, one_copy):
    if one_copy:
        with tf.init_scope(), tf.device("CPU:0"):
            return plain_variable(tf.constant(value), trainable=False, name=field)
    return head.add_weight(
        shape=value.shape,
        dtype="int32",
        initializer=lambda shape, dtype: tf.convert_to_tensor(value, dtype),
        trainable=False,
        name=field,
    )


def tree_of_arguments(num_classes, counts, tree):
    """Return the tree that the constructor's arguments ask for."""
    if isinstance(tree, trees.Tree):
        if tree.num_classes != num_classes:
            raise ValueError(
                f"`tree` must have num_classes={num_classes} classes. Received: a tree of {tree.num_classes}."
            )
        return tree
    sorted_classes = counts is None
    if counts is None:
        counts = 1.0 / np.arange(1, num_classes + 1)
    if tree is None:
        built = trees.head_tail(counts)
        if sorted_classes and built.num_nodes > 1:
            warnings.warn(
                f"`counts` were not given: the tree takes the {num_classes} classes to be sorted by falling "
                "frequency (1 / rank). Where they are not, training is slower and the model worse: pass "
                "`counts`, the frequency of each class, or a `tree`.",
                stacklevel=4,
            )
        return built
    if callable(tree):
        built = tree(counts)
        if isinstance(built, trees.Tree):
            return tree_of_arguments(num_classes, counts, built)
        tree = built
    raise ValueError(f"`tree` must be a trees.Tree or a function from counts to one. Received: tree={tree!r}")


def _digest(tree):
    """Return a str: two trees have the same one where they are equal."""
    digest = hashlib.blake2b(digest_size=8)
    for array in (tree.class_row, tree.node_start, tree.node_row):
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()


def _remember(tree, cut):
    """Return the digest by which a layer made from this config finds the tree again while it is alive."""
    digest = _digest(tree)
    _TREES[digest], _CUTS[digest] = tree, cut
    return digest


def _remembered(digest):
    """Return the tree and the cut that `_remember` was given; None, None where they are no longer alive."""
    return _TREES.get(digest), _CUTS.get(digest)
