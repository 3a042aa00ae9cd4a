"""`SparseOutput`: hundreds of thousands of labels, each connected to a few of its inputs."""

import functools
import random
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout._checks import check_one_of, positive_int
from keras_largeout.distribute.outputs.fan_in_losses import fan_in_losses
from keras_largeout.distribute.outputs.fan_in_scores import log_probs, scores_of, top_scores
from keras_largeout.distribute.outputs.fan_in_weights import FanInWeights
from keras_largeout.distribute.outputs.rewiring import BatchKeeper, rewire, slots_of
from keras_largeout.layers._fused_optimizer import FusedHeadMixin
from keras_largeout.layers._inputs import hidden_length, hidden_vectors
from keras_largeout.layers._saved_state import NotSaved
from keras_largeout.layers.heads._per_class import LabelWeights
from keras_largeout.layers.heads.head import Head
from keras_largeout.ops._gradients import without_gradient
from keras_largeout.ops.fan_in.wrapper import LOSSES
from keras_largeout.ops.labels import LabelLists, label_lists, on_the_host
from keras_largeout.optimizers.fan_in_optimizer import FanInOptimizer
from keras_largeout.tables.table import ShardedTable, track_shards


@keras.saving.register_keras_serializable(package="keras_largeout")
class SparseOutput(FusedHeadMixin, Head):
    """An output layer over hundreds of thousands of labels, with `fan_in` connections for each of them.

    `logits[c] = bias[c] + sum over k of kernel[c, k] * inputs[connections[c, k]]`: memory and time are those
    of `num_classes * fan_in` weights, however wide the inputs are. It is meant to sit on a wide layer,
    `Dense(16_000 .. 100_000, activation="relu")`: labels then choose among many features, and the Rewire
    callback lets them choose better ones during training.

    The layer returns its input; see `Head`. Compile the model with `loss=head.loss`. Targets are the ids of
    the labels that a token has, any number of them: `[..., labels]` padded with -1, a `tf.RaggedTensor`
    or a `tf.SparseTensor` `[batch, labels]`; or one label per token, `[...]`. A label given twice counts
    once. A `tf.SparseTensor` `[batch, num_classes]` (or with float values) is taken as a multi-hot matrix,
    its values being weights of the labels; so is a dense `[..., num_classes]` of bools, of integers that are
    all 0 or 1, or of floats from 0 on. (Over several devices Keras's own `fit` takes neither ragged nor
    sparse batches, whatever the layers; that of `kl.Model` does.)

    The scores of `top_k` are log-probabilities, as in `log_prob`; with "squared_hinge" logits, 1 being the
    margin.

    Args:
        num_classes: int > 0, number of labels.
        fan_in: int > 0, connections of each label; at most the width of the inputs. Defaults to `32`.
        loss: of a token, with z the logits; sums over all labels, not means:
            `"squared_hinge"`: max(0, 1 - z)^2 of its labels, max(0, 1 + z)^2 of all others;
            `"binary_crossentropy"`: softplus(-z) of its labels, softplus(z) of all others;
            `"softmax"`: logsumexp(z) - z of its label (of each of its labels, if there are several). Defaults
            to `"squared_hinge"`.
        use_bias: bool, whether every label has a bias. Defaults to `True`.
        optimizer: None: the model's optimizer trains the layer, from gradients `[num_classes, fan_in]`.
            Otherwise the layer is trained by its own optimizer, fused into its backward pass: it is
            updated label by label, and no gradient array ever exists. `"sgd"`, `"adagrad"`, `"adam"`, a Keras
            optimizer of these (without momentum, clipping and the like; learning-rate schedules count the
            layer's own steps) or `optimizers.LazyAdam`; the layer makes a copy of it. `compile` gets the
            optimizer of the other weights and does not see these: neither its clipping nor its accumulation
            acts on them, and callbacks that set its learning rate do not reach them (give a schedule here,
            or set `head.optimizer.learning_rate`). It must not scale the loss. Adam moves all labels in every
            step, LazyAdam those that have a gradient. Weight decay acts on the kernel, not on the biases.
            Defaults to `None`.
        label_weights: optional array `[num_classes]`, the weight of a label where it is one (such as
            1 / propensity). Saved with the weights; in a config it is just True, and a layer made from a
            config must load weights before it is trained. (`class_weight` of `fit` means nothing for lists.)
            Defaults to `None`.
        kernel_initializer: initializer of `[num_classes, fan_in]`. None: uniform in +-1/sqrt(fan_in).
            Defaults to `None`.
        bias_initializer: initializer of `[num_classes]`. Defaults to `"zeros"`.
        seed: int, of the first connections and of the rounding of bfloat16 weights. None: from Keras's
            global seed. Defaults to `None`.
        vocabulary: None; a `DynamicVocabulary`; or a Keras `StringLookup` or `IntegerLookup`. Targets are
            ids then, and a predictor answers with ids: see `Head`. Defaults to `None`.
        **kwargs: `name`, `dtype`, `trainable`. With `dtype="bfloat16"` kernel and inputs are bfloat16, and a
            fused optimizer rounds stochastically.

    Attributes:
        optimizer: the layer's own optimizer, which counts its steps and keeps its slots, or None.

    Input shape:
        float `[..., dim]`.

    Output shape:
        the same: the hidden vectors.

    Raises:
        ValueError: an argument outside its range; an `optimizer` that cannot be fused; `fan_in` above the
            width of the inputs; when the layer is called, a model whose optimizer scales the loss, if the
            layer has an `optimizer`.

    Example:

    ```python
    x = keras.layers.Dense(16_384, activation="relu")(x)
    head = kl.layers.SparseOutput(670_091, optimizer=keras.optimizers.Adam(1e-3))
    model = keras.Model(inputs, head(x))
    model.compile("adam", loss=head.loss)
    model.fit(data, callbacks=[kl.callbacks.Rewire(head)])  # data: (x, label ids)
    ```

    References:
        - Schultheis and Babbar, "Towards memory-efficient training for extremely large output spaces", ECML
          PKDD 2023, section 3.
    """

    dense_gradients = True  # a step touches every label
    scores_lists = True
    searches = True

    def __init__(
        self,
        num_classes: int,
        fan_in: int = 32,
        loss: str = "squared_hinge",
        use_bias: bool = True,
        optimizer: str | keras.Optimizer | None = None,
        label_weights: ArrayLike | None = None,
        kernel_initializer: str | keras.Initializer | None = None,
        bias_initializer: str | keras.Initializer = "zeros",
        seed: int | None = None,
        vocabulary: keras.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, vocabulary, **kwargs)
        self.class_vocabulary.check_arguments(label_weights=label_weights)
        self.fan_in = positive_int("fan_in", fan_in)
        check_one_of("loss", loss, LOSSES)
        self.loss_kind = loss
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = random.randint(1, 10**9) if seed is None else int(seed)
        self._label_weights = None
        if label_weights is not None:
            self._label_weights = LabelWeights(label_weights, self.num_classes)
        self._keeper: BatchKeeper | None = None
        self._set_optimizer(optimizer, functools.partial(FanInOptimizer, seed=self.seed))

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if self.built:
            return
        self.dim = hidden_length(input_shape)
        if self.fan_in > self.dim:
            raise ValueError(
                f"`fan_in` must be at most the width of the inputs, {self.dim}. "
                f"Received: fan_in={self.fan_in}"
            )
        self.fan_in_weights = FanInWeights(
            self.num_classes,
            self.fan_in,
            self.dim,
            self.variable_dtype,
            self.use_bias,
            self.kernel_initializer,
            self.bias_initializer,
            self.seed,
            trainable=self.optimizer is None,
        )
        track_shards(self, *self.fan_in_weights.tables)
        self._connection_parts = list(self.connections.parts.values())
        if self._label_weights is not None:
            self._label_weights.build(self)
        self.build_optimizer(self.fan_in_weights.tables)
        first = self.fan_in_weights.kernel_initializer, self.bias_initializer
        self.class_vocabulary.reset_rows(dict(zip(self.fan_in_weights.tables, first)))
        self.built = True
        self.track_state()

    @property
    def kernel(self) -> ShardedTable:
        """The weights of the connections: `[num_classes, fan_in]`, a table with `numpy` and `assign`."""
        return self.fan_in_weights.kernel

    @property
    def bias(self) -> ShardedTable | None:
        """The biases: `[num_classes]`, a table with `numpy` and `assign`, or None."""
        return self.fan_in_weights.bias

    @property
    def connections(self) -> Any:
        """The inputs of each label: `[num_classes, fan_in]`, with `numpy`; uint16, or uint32 from 65537 on.

        First drawn uniformly without repetition, then changed by Rewire.
        """
        return self.fan_in_weights.connections

    # Training.

    def targets(
        self, y_true: Any, hidden: tf.Tensor | np.ndarray, ignore_class: int | None = None
    ) -> tuple[LabelLists, tf.Tensor, tf.Tensor | None]:
        lead, like = (hidden.shape[:-1], tf.shape(hidden)[:-1]), hidden[..., 0]
        lists = label_lists(y_true, lead, self.num_classes, ignore_class)
        if self.loss_kind != "softmax" or isinstance(y_true, (tf.RaggedTensor, tf.SparseTensor)):
            return lists, like, None  # all tokens count, without a label too
        present = lists.present(like)
        with on_the_host():  # with one label per token -1 says that it has none
            several = tf.rank(tf.convert_to_tensor(y_true)) != tf.rank(like)
            return lists, like, present | several

    def token_losses(
        self, y_true: Any, hidden: tf.Tensor | np.ndarray, active: tf.Tensor | None = None
    ) -> tf.Tensor:
        hidden = hidden_vectors(self, hidden)
        lead = tf.shape(hidden)[:-1]
        if not self.initialized:  # Keras builds the model symbolically
            return tf.zeros(lead)
        flat = tf.reshape(hidden, [-1, self.dim])
        if active is not None:
            y_true = y_true.of_tokens(active)
            # NaN there reaches no gradient.
            flat = tf.where(tf.reshape(active, [-1, 1]), flat, tf.zeros([], flat.dtype))
        if self._label_weights is not None:
            y_true = self._label_weights.times(y_true)
        fused = self.stepping_optimizer()
        losses = fan_in_losses(
            self.fan_in_weights,
            flat,
            y_true,
            self.loss_kind,
            fused,
            None if fused is None else self._trigger.value,
        )
        if self._keeper is not None:
            losses = self._keeper.keeping(losses, flat, y_true)
        losses = tf.reshape(losses, lead)
        return losses if active is None else tf.where(active, losses, 0.0)

    # Connections.

    def rewire(
        self,
        step: int,
        fraction: float = 0.1,
        per_class: bool = True,
        optimizer: keras.Optimizer | None = None,
        batch: Any = None,
        candidates: int | None = None,
    ) -> int:
        """Exchanges the weakest connections for others, in place; the `Rewire` callback calls it.

        Args:
            step: int > 0; with the layer's seed it decides every random choice.
            fraction: float in [0, 1], of the connections that are exchanged. Defaults to `0.1`.
            per_class: bool, the weakest of each label, or of all labels together. Defaults to `True`.
            optimizer: the optimizer that trains the layer, if it is not its own: its moments are set to zero
                where a connection is new, like the kernel. Defaults to `None`.
            batch: None: new connections are drawn uniformly. What `keep_batches().batch()` has kept: they go
                to the inputs on which its loss depends most, of `candidates` that are drawn for each label.
                Defaults to `None`.
            candidates: int. None: 4 * fan_in. Defaults to `None`.

        Returns:
            int, how many connections changed.

        Raises:
            ValueError: the layer is not built.
        """
        self._require_built("rewire")
        slots = None
        if self.optimizer is not None or optimizer is not None:
            kernels = self.kernel.shards
            slots = [slots_of(self.optimizer or optimizer, kernel) for kernel in kernels]
        return rewire(
            self.fan_in_weights,
            (self.seed, int(step)),
            fraction,
            per_class=per_class,
            slots=slots,
            batch=batch,
            candidates=4 * self.fan_in if candidates is None else candidates,
            loss=self.loss_kind,
        )

    def keep_batches(self) -> BatchKeeper:
        """Return the layer's `BatchKeeper`, which can keep the batch of a training step traced from now
        on.
        """
        self._require_built("keep_batches")
        if self._keeper is None:
            dtype = tf.bfloat16 if self.compute_dtype == "bfloat16" else tf.float32
            table = self.fan_in_weights.kernel
            here = [table.devices[index] for index in table.here]
            self._keeper = BatchKeeper(self.dim, dtype, here, table.hosts)
        return self._keeper

    def in_degrees(self) -> np.ndarray:
        """Return how many connections each input has: int64 array `[dim]`."""
        self._require_built("in_degrees")
        return self.fan_in_weights.in_degrees()

    def _require_built(self, what):
        if not self.built:
            raise ValueError(
                f"The head {self.name!r} has no connections yet: call it on hidden vectors, or build it, "
                f"before `{what}`."
            )

    # Prediction.

    @property
    def has_log_probs(self) -> bool:
        return self.loss_kind == "softmax"

    def log_prob(self, hidden: tf.Tensor | np.ndarray, y: tf.Tensor | np.ndarray) -> tf.Tensor:
        """Return log p(y | hidden): of the softmax over all labels, or of y being a label
        ("binary_crossentropy").

        Args:
            hidden: float `[..., dim]`.
            y: int32 or int64 `[...]`, class ids.

        Returns:
            float32 `[...]`.

        Raises:
            ValueError: `loss` is "squared_hinge", whose scores are no probabilities.
        """
        if self.loss_kind == "squared_hinge":
            raise ValueError(
                "`loss` must be softmax or binary_crossentropy for probabilities. "
                f"Received: loss={self.loss_kind!r}"
            )
        hidden, y = hidden_vectors(self, tf.convert_to_tensor(hidden)), tf.convert_to_tensor(y)
        flat, ids = tf.reshape(hidden, [-1, self.dim]), tf.reshape(y, [-1])
        scores = log_probs(self.fan_in_weights, flat, ids, self.loss_kind)
        return tf.reshape(scores, tf.shape(y))

    @property
    def initialized(self) -> bool:
        return self.fan_in_weights.initialized

    def best_classes(self, hidden: tf.Tensor | np.ndarray, k: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return top_scores(self.fan_in_weights, hidden, k, self.loss_kind)

    def scores_of(self, hidden: tf.Tensor | np.ndarray, ids: tf.Tensor) -> tf.Tensor:
        if not self.fan_in_weights.kernel.hosts.is_alone:
            return without_gradient(tf.zeros(tf.shape(ids)), hidden)
        return scores_of(self.fan_in_weights, hidden, ids, self.loss_kind)

    def score_variables(self) -> list[tf.Variable]:
        parts = self.fan_in_weights.parts()
        if len(parts) > 1 or not self.trainable:
            return []
        return [variable for variable in (parts[0].kernel, parts[0].bias) if variable is not None]

    # Saving. The layer's optimizer is saved by Keras, in its own folder.

    def saved_parts(self) -> list[Any]:
        return [self.fan_in_weights, self._label_weights or NotSaved("label_weights", "label_weights")]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "fan_in": self.fan_in,
            "loss": self.loss_kind,
            "use_bias": self.use_bias,
            "optimizer": None if self._fused is None else self._fused.config,
            "label_weights": None if self._label_weights is None else True,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "seed": self.seed,
        }
