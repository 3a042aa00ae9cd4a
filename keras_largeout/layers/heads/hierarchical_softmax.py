"""`HierarchicalSoftmax`: a softmax over millions of classes as a walk down a tree."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout.distribute.balance.recording import record
from keras_largeout.distribute.outputs.sharded_tree import ShardedTree
from keras_largeout.layers._fused_optimizer import FusedHeadMixin
from keras_largeout.layers._inputs import hidden_length, hidden_vectors
from keras_largeout.layers._saved_state import NotSaved
from keras_largeout.layers.heads._head_tree import HeadTree, SavedTree
from keras_largeout.layers.heads._per_class import PerClass
from keras_largeout.layers.heads._scoring import check_token_shape
from keras_largeout.layers.heads.head import Head
from keras_largeout.ops.export_mode import is_exporting
from keras_largeout.ops.tree_softmax.stock_top_k import stock_top_k
from keras_largeout.ops.tree_softmax.wrapper import tree_softmax_loss, tree_softmax_top_k
from keras_largeout.planning.placement import Placement
from keras_largeout.planning.plan import Plan
from keras_largeout.planning.specs import TableSpec
from keras_largeout.replicas.collectives import AllGather
from keras_largeout.replicas.devices import table_devices
from keras_largeout.replicas.hosts import ALONE
from keras_largeout.tables.lookup import LogicalRows
from keras_largeout.tables.placing import check_placement
from keras_largeout.tables.table import ShardedTable, track_shards
from keras_largeout.trees import Tree, head_tail


@keras.saving.register_keras_serializable(package="keras_largeout")
class HierarchicalSoftmax(FusedHeadMixin, Head):
    """An output layer over 100 thousand to 100 million classes.

    p(class | h) is the product of one softmax per node on the way from the root of a tree to the class
    (Goodman 2001; Morin and Bengio 2005). A training step scores the nodes on the paths of its targets and
    nothing else; the probabilities are exact and sum to one. How good the model gets depends on the tree: the
    default, `trees.head_tail`, comes within a few percent of the perplexity of a full softmax;
    `trees.huffman` is the fastest.

    The layer returns its input; see `Head`. Compile the model with `loss=head.loss`.

    Args:
        num_classes: int > 0.
        counts: optional array `[num_classes]` of class frequencies, from which the default tree and the first
            biases are made. A frequency of 0 is taken as the smallest other one. Without them (and without
            `tree`) classes are taken to be sorted by falling frequency, as 1 / rank, and a warning says so
            where it matters. Defaults to `None`.
        tree: a `keras_largeout.trees.Tree`, or a function from counts to one, such as `trees.huffman`. It is
            saved with the weights. (A config has a dict here: the sizes of the tree, and a digest.) Defaults
            to `None`.
        use_bias: bool, whether every row has a bias. Defaults to `True`.
        kernel_initializer: initializer of the rows `[num_rows, dim]`, drawn in chunks. Defaults to
            `"uniform"`.
        bias_initializer: initializer of the biases `[num_rows]`. None: such that an untrained head predicts
            the frequencies of `counts` (most models learn much faster from there), zeros without `counts`.
            Under plain SGD a recurrent model may stay there for a while before it learns more: a small LSTM
            on the Penn Treebank did for 700 steps, and with Adam not at all. Defaults to `None`.
        kernel_constraint: constraint that acts row by row. Defaults to `None`.
        placement: where the rows go under `tf.distribute.MirroredStrategy`: "auto" (the nodes near the root
            on every device, whole subtrees below them packed onto devices by the work that `counts` let
            expect), "replicated", a `kl.distribute.Placement` that `distribute.place_tree` made, or a `Plan`
            that knows this layer by its name. Not saved with the model unless it is a name. Defaults to
            `"auto"`.
        optimizer: None: the model's optimizer trains the head. Otherwise the head has one of its own, whose
            step is a part of the backward pass: one of `kl.optimizers`, or of `keras.optimizers` SGD,
            Adagrad, Ftrl, Adam or AdamW (these two of rows that have a gradient, as `optimizers.LazyAdam`).
            On one device the gradients of the rows are then never in memory. Defaults to `None`.
        class_weight: array `[num_classes]` of numbers from 0 on, or None, as in `FullSoftmax`. Defaults to
            `None`.
        vocabulary: None; a `DynamicVocabulary`; or a Keras `StringLookup` or `IntegerLookup`. Targets are
            ids then, and a predictor answers with ids: see `Head`. With a `DynamicVocabulary` the default
            tree takes classes to be equally frequent. Defaults to `None`.
        **kwargs: `name`, `dtype`, `trainable`. With `dtype="bfloat16"` the rows are bfloat16; sums are in
            float32. With `"mixed_bfloat16"` they are float32, and products of wide nodes are of bfloat16 on
            GPUs and on processors with AVX512-BF16.

    Input shape:
        float `[..., dim]`.

    Output shape:
        the same: the hidden vectors.

    Raises:
        ValueError: `counts`, `tree` or `class_weight` are not for `num_classes` classes, `counts` are
            negative, not finite or all 0, `class_weight` is negative, or `placement` is not valid. In a call:
            `y_true` does not have the shape of the vectors without their last axis, or these are not as long
            as the head's rows.
        tf.errors.InvalidArgumentError: a target that counts (see masks and sample weights) is neither in
            `[0, num_classes)` nor -1, no target.

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

    searches = True

    def __init__(
        self,
        num_classes: int,
        counts: ArrayLike | None = None,
        tree: Tree | Callable[[np.ndarray], Tree] | None = None,
        use_bias: bool = True,
        kernel_initializer: str | keras.Initializer = "uniform",
        bias_initializer: str | keras.Initializer | None = None,
        kernel_constraint: str | keras.constraints.Constraint | None = None,
        placement: str | Placement | Plan = "auto",
        optimizer: str | keras.Optimizer | None = None,
        class_weight: ArrayLike | None = None,
        vocabulary: keras.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, vocabulary, **kwargs)
        self.class_vocabulary.check_arguments(counts=counts, class_weight=class_weight)
        if self.class_vocabulary.changes and tree is None:
            tree = head_tail(np.ones(self.num_classes))
        self._set_optimizer(optimizer)
        self._class_weight = None
        if class_weight is not None:
            self._class_weight = PerClass("class_weight", class_weight, self.num_classes)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.placement = check_placement(placement)
        self._tree = HeadTree(self.num_classes, counts, tree)

    @property
    def tree(self) -> Tree | None:
        """The `trees.Tree`; None for a layer that was made from a config and has no weights yet."""
        return self._tree.tree

    @property
    def cut(self) -> Any:
        """The `TreeCut` of the head's tree: what of it is replicated on several devices."""
        return self._tree.cut(self.dim)

    @property
    def num_rows(self) -> int:
        """Rows of the table: one for every class and every inner node but the root."""
        return self._tree.num_rows

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if self.built:
            return
        if self._class_weight is not None:
            self._class_weight.build(self)
        self.dim = hidden_length(input_shape)
        devices, placement = len(table_devices()), "auto"
        if devices > 1:
            placement = self._tree.place(self.placement, devices, self.dim, self.name)
        self.kernel_table = ShardedTable(
            (self.num_rows, self.dim),
            self.kernel_initializer,
            dtype=self.variable_dtype,
            name="kernel",
            constraint=self.kernel_constraint,
            placement=placement,
            trainable=self.optimizer is None,
        )
        self.bias_table = None
        if self.use_bias:
            self.bias_table = ShardedTable(
                (self.num_rows,),
                self._first_biases(),
                name="bias",
                placement=placement,
                trainable=self.optimizer is None,
            )
        track_shards(self, *self._tables())
        self.build_optimizer(self._tables())
        self._sharded = None
        if devices > 1 and placement.kind == "explicit":
            self._sharded = ShardedTree(
                self.kernel_table, self.bias_table, self.num_classes, self.name, self._tree.counts
            )
            if self.tree is not None:
                self._sharded.set_tree(self.tree)
        self._tree.build(self, one_copy=self._sharded is not None)
        if self.class_vocabulary.changes:
            first = self.kernel_initializer, self._first_biases()
            self.class_vocabulary.reset_rows(dict(zip(self._tables(), first)), self._rows_of)
        self.built = True
        self.track_state()

    def _first_biases(self):
        if self.bias_initializer is not None:
            return self.bias_initializer
        if self._tree.counts is None:
            return "zeros"
        biases = self.tree.log_frequencies(self._tree.counts)
        return lambda shape, dtype: tf.convert_to_tensor(biases, dtype)

    def _rows_of(self, classes):
        self._tree.require(self.name)
        return tf.gather(self._tree.arrays().class_row, classes)

    @property
    def initialized(self) -> bool:
        return all(table.initialized for table in self._tables())

    def _tables(self):
        return [self.kernel_table] + ([self.bias_table] if self.use_bias else [])

    def _parts(self):
        """Return the table, the bias (None without) and the tree, of the whole."""
        in_parts = self._sharded is not None and not is_exporting()
        rows = LogicalRows if in_parts else lambda table: table.variable
        return rows(self.kernel_table), rows(self.bias_table) if self.use_bias else None, self._tree.arrays()

    def token_losses(
        self, y_true: Any, hidden: tf.Tensor | np.ndarray, active: tf.Tensor | None = None
    ) -> tf.Tensor:
        weights = None if active is None else tf.reshape(tf.cast(active, tf.float32), [-1])

        def losses_of(hidden, y_true):
            record(self.name, y_true if active is None else tf.where(weights != 0, y_true, -1))
            return self.apply_fused_update(
                lambda hidden: self._flat_losses(hidden, y_true, weights),
                hidden,
                of_a_tree=self._sharded is None,
            )

        return self._per_token(losses_of, hidden, y_true)

    def weighed_losses(
        self, y_true: Any, hidden: tf.Tensor | np.ndarray, active: tf.Tensor | None, weight: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        losses = self.token_losses(y_true, hidden, active)
        if self._class_weight is None or not self.initialized:
            return losses, losses
        return losses * self._class_weight.of(y_true), losses

    def log_prob(self, hidden: tf.Tensor | np.ndarray, y: tf.Tensor | np.ndarray) -> tf.Tensor:
        # Not `token_losses`: its gradient takes a step of an optimizer of the layer's own.
        losses = self._per_token(self._flat_losses, tf.convert_to_tensor(hidden), tf.convert_to_tensor(y))
        return -losses

    def _per_token(self, losses_of, hidden, y_true):
        """Return what `losses_of` makes of `[n, dim]` and `[n]`, in the shape of `y_true`."""
        hidden = hidden_vectors(self, hidden)
        lead = tf.shape(hidden)[:-1]
        check_token_shape("y_true", y_true, hidden)
        if not self.initialized:  # Keras builds the model symbolically
            return tf.zeros(lead)
        self._tree.require(self.name)
        losses = losses_of(tf.reshape(hidden, [-1, self.dim]), tf.reshape(y_true, [-1]))
        return tf.reshape(losses, lead)

    def _flat_losses(self, hidden, y_true, weights=None):
        if self._sharded is not None:
            return self._sharded.losses(hidden, y_true, weights)
        return tree_softmax_loss(hidden, y_true, *self._parts(), weights=weights)

    def table_specs(self) -> list[TableSpec]:
        """Return what a planner (`kl.distribute.plan`) has to know of the layer: `TableSpec`s."""
        if self.tree is None or not self.built:
            raise ValueError(f"The head {self.name!r} has no tree or no weights yet: build it first.")
        rows = TableSpec(
            self.name,
            self.num_rows,
            self.dim,
            dtype=self.kernel_table.array.dtype,
            tree=self.tree,
            counts=self._tree.counts,
        )
        bias = TableSpec(f"{self.name}_bias", self.num_rows, 1, like=self.name)
        return [rows, bias] if self.use_bias else [rows]

    def best_classes(self, hidden: tf.Tensor | np.ndarray, k: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        search = stock_top_k if is_exporting() or self._sharded is not None else tree_softmax_top_k
        hosts = ALONE if is_exporting() or self._sharded is None else self.kernel_table.hosts
        # All hosts search for the tokens of all: so they ask one another for rows equally often.
        route = AllGather(hosts, hidden)
        return tuple(route.local(found) for found in search(route.forward(hidden), *self._parts(), k=k))

    def score_variables(self) -> list[tf.Variable]:
        plain = self._sharded is None and len(self.kernel_table.devices) == 1
        return [table.variable for table in self._tables()] if plain and self.trainable else []

    def saved_parts(self) -> list[Any]:
        tree = SavedTree(self._tree, self.dim, self._sharded)
        bias = [] if self.use_bias else [NotSaved("bias", "use_bias")]
        return [tree, *self._tables(), *bias, self._class_weight or NotSaved("class_weight", "class_weight")]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "placement": self.placement if isinstance(self.placement, str) else "auto",
            "optimizer": None if self._fused is None else self._fused.config,
            "class_weight": None if self._class_weight is None else True,
            "tree": self._tree.config(self.dim),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "HierarchicalSoftmax":
        if "tree_shape" in config:  # files of version 0.1.0
            config = {**config, "tree": config["tree_shape"]}
            del config["tree_shape"]
        return super().from_config(config)
