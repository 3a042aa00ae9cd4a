"""`HierarchicalSoftmax`: a softmax over millions of classes as a walk down a tree."""

import keras
import numpy as np
import tensorflow as tf

from keras_largeout import trees
from keras_largeout.distribute.balance.recording import record
from keras_largeout.distribute.outputs.sharded_tree import ShardedTree
from keras_largeout.distribute.planning.specs import TableSpec
from keras_largeout.distribute.planning.tree_cut import TreeCut, unfilled_placement
from keras_largeout.distribute.replicas.devices import plain_variable, table_devices
from keras_largeout.distribute.tables.lookup import LogicalRows
from keras_largeout.distribute.tables.row_span import saved_shape
from keras_largeout.distribute.tables.table import ShardedTable, check_placement, give_shards, place
from keras_largeout.layers._check import hidden_length, hidden_vectors
from keras_largeout.layers._head_tree import digest_of, remember, remembered, tree_of_arguments, unfilled
from keras_largeout.layers.head import Head
from keras_largeout.ops.export_mode import is_exporting
from keras_largeout.ops.tree_softmax.stock_top_k import stock_top_k
from keras_largeout.ops.tree_softmax.wrapper import TreeArrays, tree_softmax_loss, tree_softmax_top_k

_USUAL_DIM = 300  # of a head that is not built yet, where the cost of its nodes is asked for


@keras.saving.register_keras_serializable(package="keras_largeout")
class HierarchicalSoftmax(Head):
    """An output layer over 100 thousand to 100 million classes.

    p(class | h) is the product of one softmax per node on the way from the root of a tree to the class
    (Goodman 2001; Morin and Bengio 2005). A training step scores the nodes on the paths of its targets and
    nothing else; the probabilities are exact and sum to one. How good the model gets depends on the tree: the
    default, `trees.head_tail`, comes within a few percent of the perplexity of a full softmax;
    `trees.huffman` is the fastest.

    The layer returns its input; see `Head`. Compile the model with `loss=head.loss`.

    Args:
        num_classes: int > 0.
        counts: optional array `[num_classes]` of positive class frequencies, from which the default tree and
            the first biases are made. Without them (and without `tree`) classes are taken to be sorted by
            falling frequency, as 1 / rank.
        tree: a `keras_largeout.trees.Tree`, or a function from counts to one, such as `trees.huffman`. It is
            saved with the weights.
        use_bias: bool, whether every row has a bias.
        kernel_initializer: initializer of the rows `[num_rows, dim]`, drawn in chunks.
        bias_initializer: initializer of the biases `[num_rows]`. None: such that an untrained head predicts
            the frequencies of `counts` (most models learn much faster from there), zeros without `counts`.
        kernel_constraint: constraint that acts row by row.
        placement: where the rows go under `tf.distribute.MirroredStrategy`: "auto" (the nodes near the root
            on every device, whole subtrees below them packed onto devices by the work that `counts` let
            expect), "replicated", a `kl.distribute.Placement` that `distribute.place_tree` made, or a `Plan`
            that knows this layer by its name. Not saved with the model unless it is a name.
        **kwargs: `name`, `dtype`, `trainable`.

    Input shape:
        float `[..., dim]`.

    Output shape:
        the same: the hidden vectors.

    Example:

    ```python
    head = kl.layers.HierarchicalSoftmax(vocab, counts=counts)
    model = keras.Model(tokens, head(x))
    model.compile(kl.optimizers.LazyAdam(1e-3), loss=head.loss)
    ```

    References:
        - Goodman, "Classes for fast maximum entropy training", ICASSP 2001, section 3.
        - Morin and Bengio, "Hierarchical probabilistic neural network language model", AISTATS 2005.
    """

    def __init__(
        self,
        num_classes,
        counts=None,
        tree=None,
        use_bias=True,
        kernel_initializer="uniform",
        bias_initializer=None,
        kernel_constraint=None,
        placement="auto",
        tree_shape=None,
        **kwargs,
    ):
        super().__init__(num_classes, **kwargs)
        num_classes = self.num_classes
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.placement = check_placement(placement)
        self._tree_shape, self._cut = tree_shape, None
        if tree_shape is not None:
            # Deserialised: the tree itself comes with the weights, or from the layer that was cloned.
            self.tree, self._cut = remembered(tree_shape["digest"])
            self._num_nodes = int(tree_shape["num_nodes"])
        else:
            self.tree = tree_of_arguments(num_classes, counts, tree)
            self._num_nodes = self.tree.num_nodes
        # For the first biases, and for the cut when it is asked for.
        self._counts = None if counts is None else np.asarray(counts, np.float32)

    @property
    def num_rows(self):
        """Rows of the table: one for every class and every inner node but the root."""
        return self.num_classes + self._num_nodes - 1

    def build(self, input_shape):
        if self.built:
            return
        self.dim = hidden_length(input_shape)
        several = len(table_devices()) > 1
        placement = self._place(len(table_devices())) if several else "auto"
        self.kernel_table = ShardedTable(
            (self.num_rows, self.dim),
            self.kernel_initializer,
            dtype=self.variable_dtype,
            name="kernel",
            constraint=self.kernel_constraint,
            placement=placement,
        )
        self.bias_table = (
            ShardedTable((self.num_rows,), self._first_biases(), name="bias", placement=placement)
            if self.use_bias
            else None
        )
        give_shards(self, *self._tables())
        self._sharded = None
        if several and placement.kind == "explicit":
            self._sharded = ShardedTree(
                self.kernel_table, self.bias_table, self.num_classes, self.name, self._counts
            )
            if self.tree is not None:
                self._sharded.set_tree(self.tree)
        values = self.tree.arrays() if self.tree is not None else unfilled(self.num_classes, self._num_nodes)
        self._tree_variables = [self._tree_variable(field, values[field]) for field in TreeArrays._fields]
        self.built = True

    def _tree_variable(self, field, value):
        if self._sharded is not None:  # a training step has no use for the whole tree: one copy is enough
            with tf.init_scope(), tf.device("CPU:0"):
                return plain_variable(tf.constant(value), trainable=False, name=field)
        return self.add_weight(
            shape=value.shape,
            dtype="int32",
            initializer=lambda shape, dtype: tf.convert_to_tensor(value, dtype),
            trainable=False,
            name=field,
        )

    def _place(self, devices):
        """The `Placement` of the rows on several devices."""
        if self.placement == "replicated":
            return place("replicated", (self.num_rows,), devices)
        if self.placement != "auto":
            if self.tree is None or isinstance(self.placement, str):
                raise ValueError(
                    "`placement` of a tree on several devices must be 'auto', 'replicated', a Placement made "
                    f"by `place_tree`, or a Plan. Received: placement={self.placement!r}"
                )
            placement = place(self.placement, (self.num_rows,), devices, name=self.name)
            self._cut = TreeCut.of_placement(self.tree, placement)
            return placement
        if self.tree is None:  # the sizes are known, the rows' places come with the tree
            top_rows, largest = self._tree_shape["top_rows"], self._tree_shape["largest_subtree"]
            return unfilled_placement(self.num_rows, top_rows, largest, devices)
        return self.cut.place(self.tree, devices)

    @property
    def cut(self):
        """The `TreeCut` of the head's tree: what of it is replicated on several devices."""
        if self._cut is None:
            self._cut = TreeCut.of(self.tree, self._counts, getattr(self, "dim", _USUAL_DIM))
        return self._cut

    def _first_biases(self):
        if self.bias_initializer is not None:
            return self.bias_initializer
        if self._counts is None:
            return "zeros"
        biases = self.tree.log_frequencies(self._counts)
        return lambda shape, dtype: tf.convert_to_tensor(biases, dtype)

    @property
    def initialized(self):
        return all(table.initialized for table in self._tables())

    def _tables(self):
        return [self.kernel_table] + ([self.bias_table] if self.use_bias else [])

    def _parts(self):
        """The table, the bias (None without) and the tree, of the whole."""
        in_parts = self._sharded is not None and not is_exporting()
        rows = LogicalRows if in_parts else lambda table: table.variable
        tree = TreeArrays(
            *(getattr(v, "value", v) if isinstance(v, keras.Variable) else v for v in self._tree_variables)
        )
        return rows(self.kernel_table), rows(self.bias_table) if self.use_bias else None, tree

    def _require_tree(self):
        """Takes the tree from the layer's variables, where `set_weights` brought it, or raises ValueError."""
        if self.tree is not None:
            return
        with tf.init_scope():
            arrays = [variable.numpy() for variable in self._tree_variables[:3]]
        if arrays[1][-1] == 0:
            raise ValueError(
                f"The head {self.name!r} was made from a config and has no tree yet: load its weights first."
            )
        self.tree = trees.Tree.from_arrays(*arrays)

    def token_losses(self, y_true, hidden, active=None):
        hidden = hidden_vectors(self, hidden)
        lead = tf.shape(hidden)[:-1]
        if not hidden.shape[:-1].is_compatible_with(y_true.shape):
            raise ValueError(
                "`y_true` must have the shape of the hidden vectors without their last axis. "
                f"Received: y_true.shape={tuple(y_true.shape)}, hidden.shape={tuple(hidden.shape)}"
            )
        if not self.initialized:  # Keras builds the model symbolically
            return tf.zeros(lead)
        self._require_tree()
        hidden, y_true = tf.reshape(hidden, [-1, self.dim]), tf.reshape(y_true, [-1])
        weights = None if active is None else tf.reshape(tf.cast(active, tf.float32), [-1])
        record(self.name, y_true if active is None else tf.where(weights != 0, y_true, -1))
        if self._sharded is not None:
            return tf.reshape(self._sharded.losses(hidden, y_true, weights), lead)
        return tf.reshape(tree_softmax_loss(hidden, y_true, *self._parts(), weights=weights), lead)

    def table_specs(self):
        """What a planner (`kl.distribute.plan`) has to know of the layer: `TableSpec`s."""
        if self.tree is None or not self.built:
            raise ValueError(f"The head {self.name!r} has no tree or no weights yet: build it first.")
        rows = TableSpec(
            self.name,
            self.num_rows,
            self.dim,
            dtype=self.kernel_table.array.dtype,
            tree=self.tree,
            counts=self._counts,
        )
        bias = TableSpec(f"{self.name}_bias", self.num_rows, 1, like=self.name)
        return [rows, bias] if self.use_bias else [rows]

    def best_classes(self, hidden, k):
        search = stock_top_k if is_exporting() or self._sharded is not None else tree_softmax_top_k
        return search(hidden, *self._parts(), k)

    def save_own_variables(self, store):
        for field, variable in zip(TreeArrays._fields[:3], self._tree_variables):
            store[field] = variable.numpy()
        if self.tree is not None:
            store["cut_nodes"], store["cut_loads"] = self.cut.nodes, self.cut.loads
        for table in self._tables():
            table.save(store)

    def load_own_variables(self, store):
        saved = [np.asarray(store[field]) for field in TreeArrays._fields[:3] if field in store]
        expected = [tuple(v.shape) for v in self._tree_variables[:3]]
        if [a.shape for a in saved] != expected:
            raise ValueError(
                f"The weights file does not fit the head {self.name!r}: expected a tree of "
                f"{self.num_classes} classes and "
                f"{self._num_nodes} nodes, array shapes {expected}. Received: {[a.shape for a in saved]}."
            )
        if not self.use_bias and saved_shape(store, "bias") is not None:
            raise ValueError(
                f"The weights file does not fit the head {self.name!r}: it holds biases. "
                "Received: use_bias=False"
            )
        tree = trees.Tree.from_arrays(*saved)
        for table in self._tables():  # all of them, before anything is changed
            table.check(store)
        self._take_tree(tree, store)
        for table in self._tables():
            table.load(store)
        for field, variable in zip(TreeArrays._fields, self._tree_variables):
            variable.assign(tree.arrays()[field])

    def _take_tree(self, tree, store):
        """Makes `tree` that of the head, with the cut that the store has for it; places the rows anew."""
        same = self.tree is not None and digest_of(self.tree) == digest_of(tree)
        if not same:
            cut = None
            if "cut_nodes" in store:
                cut = TreeCut(np.asarray(store["cut_nodes"]), np.asarray(store["cut_loads"]))
            if self._sharded is not None:
                cut = cut or TreeCut.of(tree, None, self.dim)
                self._sharded.replace_tree(tree, cut)
            self.tree, self._cut = tree, cut

    def get_config(self):
        if self.tree is not None:
            top_rows, largest = self.cut.sizes(self.tree)
            tree_shape = {
                "num_nodes": self._num_nodes,
                "digest": remember(self.tree, self.cut),
                "top_rows": top_rows,
                "largest_subtree": largest,
            }
        else:
            tree_shape = self._tree_shape
        return {
            **super().get_config(),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "placement": self.placement if isinstance(self.placement, str) else "auto",
            "tree_shape": tree_shape,
        }
