"""The index of a `Retrieval`: the vectors of the items that it searches, and which items are there."""

import keras
import numpy as np
import tensorflow as tf

from keras_largeout._checks import positive_int
from keras_largeout._keras import is_symbolic, more_weights
from keras_largeout.distribute.outputs.softmax_weights import SoftmaxWeights
from keras_largeout.files.array_digests import saved_shapes
from keras_largeout.files.verified_loading import only_checking
from keras_largeout.layers.heads.retrieval.candidates import NOT_THERE
from keras_largeout.layers.heads.retrieval.item_vectors import item_vectors
from keras_largeout.ops.rows import unit_rows
from keras_largeout.tables.row_range import saved_shape
from keras_largeout.tables.table import ShardedTable, track_shards


class ItemIndex:
    """The vectors of all items, weights of a head that nothing trains.

    Attributes:
        softmax_weights: `SoftmaxWeights`: a row of its kernel is the vector of an item. A bias is 0, or
            `NOT_THERE` for an item that was not given. None before the number of items is known.
    """

    def __init__(self):
        self.softmax_weights, self._has_items = None, False

    def build(self, head):
        """Make the tables for the items of `head`, if it knows how many there are."""
        if head.num_classes is None:
            return
        shape, absent = (head.num_classes, head.dim), keras.initializers.Constant(NOT_THERE)
        options = {"placement": "range", "trainable": False}
        vectors = ShardedTable(shape, "zeros", dtype=head.variable_dtype, name="index", **options)
        indexed = ShardedTable(shape[:1], absent, name="indexed", **options)
        self.softmax_weights = SoftmaxWeights(vectors, indexed, head)
        track_shards(head, vectors, indexed)

    def _build_later(self, head, num_items):
        """Make the tables of a head that is built."""
        head.num_classes = positive_int("num_items", num_items)
        with more_weights(head):
            self.build(head)
        head.track_state()

    def fill(self, head, items, model, ids, batch_size):
        """Store the vectors of items; see `Retrieval.index`."""
        if isinstance(items, keras.Model):
            if head.num_classes is None:
                raise ValueError(
                    "`num_items` must be given where `items` is a model. Received: num_items=None"
                )
            items, model = np.arange(head.num_classes), items
        vectors, ids = item_vectors(items, model, ids, positive_int("batch_size", batch_size))
        largest = int(ids.max(initial=-1))
        if vectors.shape[1] != head.dim:
            raise ValueError(
                f"`items` must have vectors of the length {head.dim}, that of the user vectors. "
                f"Received: vectors of shape {vectors.shape}"
            )
        if head.num_classes is not None and largest >= head.num_classes:
            raise ValueError(
                f"`items` must have ids below num_items={head.num_classes}. Where it is not given, the first "
                "`index` sets it: give Retrieval(num_items=...) room for later items. "
                f"Received: the id {largest}"
            )
        if head.num_classes is None:
            strategy = tf.distribute.get_strategy() if model is None else model.distribute_strategy
            with strategy.scope():
                self._build_later(head, largest + 1)
        kernel, bias = np.zeros((head.num_classes, head.dim), "float32"), np.full(head.num_classes, NOT_THERE)
        kernel[ids], bias[ids] = unit_rows(vectors).numpy() if head.normalize else vectors, 0.0
        self.softmax_weights.kernel.assign(kernel)
        self.softmax_weights.bias.assign(bias.astype("float32"))
        self._has_items = True

    def is_empty(self, head):
        """Return True where there are no items yet, and Keras is only building a model.

        Raises:
            ValueError: there are no items, and something is to be computed.
        """
        if self._has_items:
            return False
        if self.softmax_weights is not None and self.softmax_weights.initialized:
            with tf.init_scope():
                self._has_items = bool(np.any(self.softmax_weights.bias.numpy() > NOT_THERE / 2))
        if not self._has_items and not is_symbolic():
            raise ValueError(
                f"The head {head.name!r} has no items to search: call `head.index(items, item_tower)`, or "
                "give `kl.callbacks.IndexItems(head, items, item_tower)` to `fit` and `evaluate`. For the "
                "loss among the items of a batch, call the head with `item_vectors`"
            )
        return not self._has_items

    def prepare_load(self, head, store):
        """Make the tables for an index that a file has, if the number of items is not known yet."""
        saved = saved_shape(store, "index")
        if self.softmax_weights is None and saved is not None and not only_checking():
            self._build_later(head, saved[0])
        if self.softmax_weights is None and saved is None and "indexed_rows_000000" in saved_shapes(store):
            raise ValueError(  # TensorFlow restores what is there already
                f"`num_items` of the head {head.name!r} must be given, or `index` called, before a "
                "`tf.train.Checkpoint` with an index is restored. Received: num_items=None"
            )
        self._has_items = False  # unknown
