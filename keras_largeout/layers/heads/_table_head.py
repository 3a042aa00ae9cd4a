"""`TableHead`: what the heads have in common that own a row and a bias for each class."""

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout._head_annotations import in_training
from keras_largeout.distribute.outputs.softmax_weights import SoftmaxWeights
from keras_largeout.layers._class_vocabulary import ClassVocabulary
from keras_largeout.layers._fused_optimizer import FusedHeadMixin
from keras_largeout.layers._inputs import hidden_length, hidden_vectors
from keras_largeout.layers._saved_state import NotSaved
from keras_largeout.layers._tied import Tied
from keras_largeout.layers.heads._margin import Margin
from keras_largeout.layers.heads._per_class import PerClass
from keras_largeout.layers.heads._scoring import check_token_shape, of_active
from keras_largeout.layers.heads.head import Head
from keras_largeout.ops.rows import unit_rows
from keras_largeout.tables.table import ShardedTable, track_shards


def row_scores(vectors, rows):
    """Return the inner product of each vector and its row, float32 `[n]`, of float `[n, dim]` both."""
    return tf.reduce_sum(tf.cast(vectors, tf.float32) * tf.cast(rows, tf.float32), axis=-1)


class TableHead(FusedHeadMixin, Head):
    """A head whose scores are `hidden . kernel[class] / temperature + bias[class]`, or cosines over the
    temperature.

    Args:
        num_classes: int > 0.
        use_bias: bool, whether every class has a bias; None: unless `normalize`.
        kernel: None, or the `ShardedEmbedding` or Keras `Embedding` (or its name) whose table is the kernel
            too.
        temperature: float > 0.
        optimizer: None, or an optimizer that is fused into the backward pass.
        counts: positive frequencies `[num_classes]`, of which the first biases are the logs, or None.
        normalize: bool, whether scores are `cos(hidden, kernel[class]) / temperature`.
        margin: None, or `("arcface" or "cosface", m)`, by which targets are lowered in training.
        label_smoothing: float in [0, 1).
        vocabulary: as in `Head`.
        class_weight: None, or `[num_classes]`, by which the losses of tokens are multiplied; True: those of
            the weights that are going to be loaded.
        kernel_initializer, kernel_constraint: as in `keras.layers.Dense`.
        bias_initializer: None: the logs of `counts`, or zeros.
        **kwargs: `name`, `dtype`, `trainable`.
    """

    def __init__(
        self,
        num_classes: int,
        use_bias: bool | None = None,
        kernel: str | keras.Layer | None = None,
        temperature: float = 1.0,
        optimizer: str | keras.Optimizer | None = None,
        counts: np.ndarray | None = None,
        kernel_initializer: str | keras.Initializer = "uniform",
        bias_initializer: str | keras.Initializer | None = None,
        kernel_constraint: str | keras.constraints.Constraint | None = None,
        normalize: bool = False,
        margin: tuple[str, float] | None = None,
        label_smoothing: float = 0.0,
        class_weight: ArrayLike | None = None,
        vocabulary: keras.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, vocabulary, **kwargs)
        self.class_vocabulary.check_arguments(counts=counts, class_weight=class_weight)
        self.normalize = bool(normalize)
        if self.normalize and use_bias:
            raise ValueError(
                "`use_bias` must be False or None where `normalize` is True: the scores are cosines. "
                f"Received: use_bias={use_bias}, normalize={normalize}"
            )
        self._margin = None if margin is None else Margin(margin, self.normalize)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"`label_smoothing` must be in [0, 1). Received: label_smoothing={label_smoothing}"
            )
        if self._margin is not None and label_smoothing:
            raise ValueError(
                "`label_smoothing` must be 0 with a `margin`. "
                f"Received: label_smoothing={label_smoothing}, margin={margin}"
            )
        self.label_smoothing = float(label_smoothing)
        self._class_weight = None
        if class_weight is not None:
            self._class_weight = PerClass("class_weight", class_weight, self.num_classes)
        self.use_bias = not self.normalize if use_bias is None else use_bias
        self._first_counts = counts
        self._tied = None if kernel is None else Tied(kernel, self.num_classes)
        if not temperature > 0:
            raise ValueError(f"`temperature` must be positive. Received: temperature={temperature}")
        self.temperature = float(temperature)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        if self._tied is not None and self.kernel_constraint is not None:
            raise ValueError(
                "`kernel_constraint` must be None where the kernel is a table of another layer, which "
                f"has its own. Received: kernel_constraint={kernel_constraint!r}, kernel={kernel!r}"
            )

        if optimizer is not None and self._tied is not None:
            raise ValueError(
                "`optimizer` must be None where the kernel is a table of another layer: one optimizer trains "
                f"it. Received: optimizer={optimizer!r}, kernel={kernel!r}"
            )
        self._set_optimizer(optimizer)

    def tied_to(self) -> keras.Layer | None:
        """Return the embedding whose table is the kernel; None where the head has one of its own.

        No attribute: Keras would save the embedding with the head.
        """
        return None if self._tied is None else self._tied.embedding

    def get_build_config(self) -> dict[str, Any] | None:
        """Return what a copy is built with before it is called; None for a tied head.

        Keras makes the layers of a copy in its own order: the embedding may come after the head.
        """
        return super().get_build_config() if self._tied is None else None

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if self.built:
            return
        for numbers in filter(None, self._per_class().values()):
            numbers.build(self)
        self.dim = hidden_length(input_shape)
        trainable = self.optimizer is None
        if self._tied is None:
            kernel = ShardedTable(
                (self.num_classes, self.dim),
                self.kernel_initializer,
                dtype=self.variable_dtype,
                name="kernel",
                constraint=self.kernel_constraint,
                placement="range",
                trainable=trainable,
            )
        else:
            kernel = self._tied.table(self.dim)
        bias = None
        if self.use_bias:
            whole = self._tied is not None and kernel.is_whole
            placement = "replicated" if whole and len(kernel.devices) > 1 else "range"
            bias = ShardedTable(
                (self.num_classes,),
                self._first_biases(),
                name="bias",
                placement=placement,
                trainable=trainable,
                beside=kernel if whole else None,
            )
        self.softmax_weights = SoftmaxWeights(kernel, bias, self, self.normalize)
        track_shards(self, *self._own_tables())
        self.build_optimizer(self._own_tables())
        self._reset_rows()
        self.built = True
        self.track_state()

    def _first_biases(self):
        if self.bias_initializer is not None:
            return self.bias_initializer
        if self._first_counts is None:
            return "zeros"
        counts = np.asarray(self._first_counts, np.float64)
        biases = np.log(counts / counts.sum())
        return lambda shape, dtype: tf.convert_to_tensor(biases, dtype)

    def _reset_rows(self):
        """Have rows begin again for other ids: of the head's own tables, as the embedding has those it
        shares.
        """
        if self._tied is not None:
            self.class_vocabulary.adopt(self, self.tied_to())
        changing, of_embedding = self.class_vocabulary, getattr(self.tied_to(), "vocabulary", None)
        if self.vocabulary is None and hasattr(of_embedding, "on_replaced"):
            changing = self._of_embedding = ClassVocabulary(of_embedding, self)
        if changing.changes:
            own = dict.fromkeys(self._own_tables(), self.kernel_initializer)
            changing.reset_rows(own | ({} if self.bias is None else {self.bias: self._first_biases()}))

    @property
    def kernel(self) -> Any:
        """The rows of the classes: `[num_classes, dim]`, a table with `numpy` and `assign`."""
        return self.softmax_weights.kernel

    @property
    def bias(self) -> Any:
        """The biases: `[num_classes]`, a table with `numpy` and `assign`, or None."""
        return self.softmax_weights.bias

    @property
    def initialized(self) -> bool:
        return self.softmax_weights.initialized

    def token_losses(self, y_true, hidden, active=None):
        return self.weighed_losses(y_true, hidden, active, None)[0]

    def weighed_losses(self, y_true, hidden, active, weight):
        vectors = hidden_vectors(self, hidden)
        lead = tf.shape(vectors)[:-1]
        check_token_shape("y_true", y_true, vectors)
        if not self.initialized:  # Keras builds the model symbolically
            return (tf.zeros(lead),) * 2
        vectors, y_true = tf.reshape(vectors, [-1, self.dim]), tf.reshape(y_true, [-1])
        weight = tf.ones(lead) if weight is None else tf.broadcast_to(tf.cast(weight, tf.float32), lead)
        weight = tf.reshape(weight, [-1])
        if active is None:
            found = self._stepping(y_true, vectors, weight, hidden)
        else:  # the others cost nothing
            stepping = functools.partial(self._stepping, hidden=hidden)
            found = of_active(stepping, tf.reshape(active, [-1]), y_true, vectors, weight)
        return tuple(tf.reshape(losses, lead) for losses in found)

    def _stepping(self, y_true, vectors, weight, hidden):
        of_class = None if self._class_weight is None else self._class_weight.of(y_true)
        weight = weight if of_class is None else weight * of_class

        def losses_of(vectors):
            losses, cross_entropy = self.flat_losses(y_true, self.scaled(vectors), weight, hidden)
            return losses if of_class is None else losses * of_class, cross_entropy

        return self.losses_with_fused_update(vectors, losses_of)

    def flat_losses(self, y_true, vectors, weight, hidden):
        """Return the losses of tokens that all count, and -log p of their targets: float32 `[n]` each.

        Args:
            y_true: int32 or int64 `[n]`.
            vectors: float32 or bfloat16 `[n, dim]`, `scaled`.
            weight: float32 `[n]`, by which the losses are going to be multiplied.
            hidden: the hidden vectors as they came, with what was noted on them.
        """
        raise NotImplementedError

    def scaled(self, vectors):
        """Return hidden vectors, of length 1 if cosines are asked for, over the temperature."""
        vectors = unit_rows(vectors) if self.normalize else vectors
        return vectors if self.temperature == 1.0 else vectors / tf.cast(self.temperature, vectors.dtype)

    def smoothed(self, cross_entropy, lse, mean):
        """Return the cross-entropy, smoothed where the head has `label_smoothing`: float32 `[n]`.

        Args:
            cross_entropy: float32 `[n]`, `lse` minus the logits of the targets.
            lse, mean: float32 `[n]`, the logsumexp and the mean of the logits of all classes.
        """
        if not self.label_smoothing:
            return cross_entropy
        return (1.0 - self.label_smoothing) * cross_entropy + self.label_smoothing * (lse - mean)

    def with_margin(self, scores, hidden):
        """Return scores of targets, float32 `[n]`, lowered by the margin if `hidden` is of training."""
        if self._margin is None or not in_training(hidden):
            return scores
        return self._margin.lowered(scores, self.temperature)

    def log_prob(self, hidden, y):
        vectors = hidden_vectors(self, tf.convert_to_tensor(hidden))
        y = tf.convert_to_tensor(y)
        check_token_shape("y", y, vectors)
        flat = self.scaled(tf.reshape(vectors, [-1, self.dim]))
        classes = self.softmax_weights.checked(tf.cast(tf.reshape(y, [-1]), tf.int64), "y", 0)
        return -tf.reshape(self.softmax_weights.terms(flat, classes).ce, tf.shape(y))

    def best_classes(self, hidden, k, excluded=None):
        present = self.class_vocabulary.present(self.num_classes)
        return self.softmax_weights.top_scores(self.scaled(hidden), k, self.has_log_probs, excluded, present)

    def present_classes(self, hidden, k):
        return self.best_classes(hidden, k)

    def best_without(self, hidden, k, excluded):
        if not self.softmax_weights.hosts.is_alone:
            return super().best_without(hidden, k, excluded)
        there = tf.where(excluded >= 0)
        pairs = tf.stack([there[:, 0], tf.cast(tf.gather_nd(excluded, there), tf.int64)], axis=1)
        return self.best_classes(hidden, k, tf.cast(pairs, tf.int32))

    # Saving.

    def _per_class(self):
        """Return the `PerClass` of each argument that the head has a number for each class of, or None."""
        return {"class_weight": self._class_weight}

    def _own_tables(self):
        return [table for table in self.softmax_weights.tables if self._tied is None or table is self.bias]

    def saved_parts(self):
        numbers = [each or NotSaved(name, name) for name, each in self._per_class().items()]
        bias = [] if self.use_bias else [NotSaved("bias", "use_bias")]
        return [*bias, *self._own_tables(), *numbers]

    def get_config(self):
        config = {
            **super().get_config(),
            "use_bias": self.use_bias,
            "temperature": self.temperature,
            "normalize": self.normalize,
            "margin": None if self._margin is None else (self._margin.kind, self._margin.size),
            "label_smoothing": self.label_smoothing,
            "class_weight": None if self._class_weight is None else True,
            "optimizer": None if self._fused is None else self._fused.config,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
        }
        return config if self._tied is None else {**config, "kernel": self._tied.name}
