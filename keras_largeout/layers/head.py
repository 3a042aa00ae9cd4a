"""What an output head is: a layer that returns its input, owns the output weights and brings its loss."""

import functools
import weakref

import keras
import numpy as np
import tensorflow as tf

from keras_largeout._checks import positive_int
from keras_largeout._keras import mask_of
from keras_largeout.distribute.replicas.average import mean_of_replicas
from keras_largeout.distribute.replicas.optimizer_check import check_optimizer
from keras_largeout.layers._check import hidden_vectors
from keras_largeout.model import Model

_HEADS = weakref.WeakValueDictionary()  # name -> the newest head of that name


class Head(keras.layers.Layer):
    """Base class of the output heads.

    `head(x)` returns `x`, the hidden vectors, so that a Keras model can end in it; the scores of all classes
    are never formed. `head.loss` compares `(y_true, hidden)`, and `model.compile(loss=head.loss)` trains the
    head's weights with the model.

    The model's output being hidden vectors, metrics such as "accuracy" mean nothing on it: look at the loss
    (the exponential of a softmax's is the perplexity) and at `top_k`.

    Subclasses have `dim`, the length of the vectors, and implement `token_losses`, `best_classes` and
    `initialized`. One whose positions have more than one class overrides `targets` as well, and one whose
    losses are not -log p(y | hidden) overrides `log_prob`.
    """

    def __init__(self, num_classes, **kwargs):
        super().__init__(**kwargs)
        self.num_classes = positive_int("num_classes", num_classes)
        self.supports_masking = True
        self.supports_jit = False  # custom ops
        _HEADS[self.name] = self

    def call(self, inputs):
        check_optimizer(self)
        return inputs

    def compute_output_shape(self, input_shape):
        return input_shape

    @property
    def loss(self):
        """A `keras.losses.Loss` of `(y_true, hidden)`: the mean of `token_losses` over the positions.

        These are -log p(y_true | hidden), where the head does not say otherwise.
        """
        return HeadLoss(self.name, head=self)

    def make_loss(self, **kwargs):
        """`loss` with other `keras.losses.Loss` arguments, such as `reduction="sum"`."""
        return HeadLoss(self.name, head=self, **kwargs)

    def targets(self, y_true, hidden):
        """What the loss makes of Keras's `y_true`.

        Args:
            y_true: as it came: a tensor, a `tf.RaggedTensor`, a `tf.SparseTensor` or an array.
            hidden: float `[..., dim]`.

        Returns:
            `(targets, positions)`: the `y_true` of `token_losses`, and a tensor that has the shape of the
            positions, `[...]`, which masks and sample weights are for.
        """
        ids = _class_ids(y_true, hidden)
        return ids, ids

    def token_losses(self, y_true, hidden, active=None):
        """The losses of all positions, float32 `[...]`; 0 where `active` (bool `[...]`) is False."""
        raise NotImplementedError

    def log_prob(self, hidden, y):
        """log p(y | hidden).

        Args:
            hidden: float `[..., dim]`.
            y: int32 or int64 `[...]`, class ids.

        Returns:
            float32 `[...]`.
        """
        return -self.token_losses(tf.convert_to_tensor(y), tf.convert_to_tensor(hidden))

    def top_k(self, hidden, k):
        """The k classes of highest score, exactly.

        Args:
            hidden: float `[..., dim]`.
            k: int, `1 <= k <= num_classes`.

        Returns:
            `(scores, ids)`: float32 `[..., k]` in descending order and int32 `[..., k]`; ties go to the
            smaller id. Scores are log-probabilities, where the head does not say otherwise.

        Raises:
            ValueError: `k` outside that range.
        """
        self.check_k(k)
        hidden = hidden_vectors(self, tf.convert_to_tensor(hidden))
        shape = tf.concat([tf.shape(hidden)[:-1], [k]], 0)
        if not self.initialized:
            return tf.zeros(shape), tf.zeros(shape, tf.int32)
        best = self.best_classes(tf.reshape(hidden, [-1, self.dim]), k)
        static = [*hidden.shape[:-1], k]
        scores, ids = (tf.ensure_shape(tf.reshape(part, shape), static) for part in best)
        return scores, ids

    @property
    def initialized(self):
        """False only while Keras builds a model symbolically and has not created its variables yet."""
        raise NotImplementedError

    def best_classes(self, hidden, k):
        """What `top_k` gives, of float `[n, dim]`: `(scores, ids)`, `[n, k]` each."""
        raise NotImplementedError

    def predictor(self, model, k=10, position="all"):
        """A `keras.Model` from the inputs of `model` to the k classes of highest score.

        Args:
            model: a built model whose output is this head's (the hidden vectors).
            k: int.
            position: `"all"`, or `"last"`: only the last (unmasked) time step of `[batch, time, dim]` is
                scored.

        Returns:
            A `keras_largeout.Model` with the outputs `{"ids": int32 [..., k], "scores": float32 [..., k]}`,
            those of `top_k`. It shares the weights of `model`.

        Raises:
            ValueError: `model` has not one known output, as a subclassed model has none.
        """
        known = getattr(model, "inputs", None) and getattr(model, "outputs", None)
        if not known or len(model.outputs) != 1:
            raise ValueError(
                "`model` must be a built functional or sequential model that ends in this head alone. "
                f"Received: {model!r} with the outputs {getattr(model, 'outputs', None)}"
            )
        # A sequential model knows its tensors, but not as `input` and `output` before it was called.
        inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        outputs = TopK(self, k, position)(model.outputs[0])
        return Model(inputs, outputs, name=f"{model.name}_predictor")

    def check_k(self, k):
        whole = isinstance(k, (int, np.integer)) and not isinstance(k, bool)
        if not whole or not 1 <= k <= self.num_classes:
            raise ValueError(
                f"`k` must be an integer in 1 .. num_classes={self.num_classes}. Received: k={k!r}"
            )

    def get_config(self):
        return {**super().get_config(), "num_classes": self.num_classes}


@keras.saving.register_keras_serializable(package="keras_largeout")
class HeadLoss(keras.losses.Loss):
    """The loss of a head. Made by `head.loss`; deserialised (by `load_model`) it finds its head by name."""

    def __init__(self, head_name, head=None, name=None, reduction="sum_over_batch_size", dtype=None):
        super().__init__(name=name or f"{head_name}_loss", reduction=reduction, dtype=dtype)
        self.head_name = head_name
        head = head if head is not None else _HEADS.get(head_name)
        # Weak, and behind a method: Keras walks the attributes of whatever it saves, and the head's weights
        # belong to the model, not to its loss.
        self._reference = None if head is None else weakref.ref(head)

    def resolve_head(self):
        """The head that this loss belongs to.

        Raises:
            ValueError: there is none of its name in this process.
        """
        head = None if self._reference is None else self._reference()
        if head is None:
            head = _HEADS.get(self.head_name)
        if head is None:
            raise ValueError(
                f"The loss belongs to a head named {self.head_name!r}, and no such layer exists here. "
                "Compile with `loss=head.loss` of the head that ends the model."
            )
        self._reference = weakref.ref(head)
        return head

    def __call__(self, y_true, y_pred, sample_weight=None):
        hidden = tf.convert_to_tensor(y_pred)
        mask = mask_of(y_pred)
        head = self.resolve_head()
        targets, positions = head.targets(y_true, hidden)
        sample_weight = _weights_like(positions, sample_weight)
        losses = head.token_losses(targets, hidden, _active(positions, mask, sample_weight))
        # Keras's own __call__ applies mask, weights and reduction to what `call` returns. It would cast class
        # ids to float32 (exact up to 16.7 million only), so the losses travel in the place of y_true.
        loss = super().__call__(losses, y_pred, sample_weight=sample_weight)
        # Keras leaves the losses of an empty batch as they are: an empty vector, where a loss is a number.
        reduced = self.reduction not in (None, "none")
        loss = tf.reduce_sum(loss) if reduced and loss.shape.rank else loss
        if not reduced or self.reduction == "sum":
            return loss
        return mean_of_replicas(loss, self._divisor(losses, mask, sample_weight), tf.shape(hidden)[0])

    def _divisor(self, losses, mask, sample_weight):
        """What Keras divides the sum of the losses by."""
        factors = [tf.cast(f, tf.float32) for f in (mask, sample_weight) if f is not None]
        if factors and self.reduction == "mean_with_sample_weight":
            return tf.reduce_sum(functools.reduce(tf.multiply, factors))
        return tf.size(losses) if mask is None else tf.reduce_sum(factors[0])

    def call(self, y_true, y_pred):
        return y_true

    def get_config(self):
        return {**super().get_config(), "head_name": self.head_name}


def _class_ids(y_true, hidden):
    """Class ids as integers, without the trailing axis of length 1 that Keras allows."""
    y_true = tf.convert_to_tensor(y_true)
    if y_true.dtype not in (tf.int32, tf.int64):
        y_true = tf.cast(y_true, tf.int64)
    rank = hidden.shape.rank
    if rank is not None and y_true.shape.rank is None:  # batches of several ranks were seen
        return tf.ensure_shape(tf.reshape(y_true, tf.shape(hidden)[:-1]), hidden.shape[:-1])
    if rank is not None and y_true.shape.rank == rank and y_true.shape[-1] == 1:
        y_true = tf.squeeze(y_true, -1)
    return y_true


def _weights_like(positions, sample_weight):
    """`sample_weight` with axes of length 1 at the end, as many as broadcasting to positions takes."""
    if sample_weight is None:
        return None
    weight, rank = tf.convert_to_tensor(sample_weight), positions.shape.rank
    known = weight.shape.rank
    if known is not None and (known > rank + 1 or (known == rank + 1 and weight.shape[-1] not in (1, None))):
        raise ValueError(
            "`sample_weight` must have the shape of `y_true`, or of its first axes. "
            f"Received: sample_weight.shape={weight.shape}, y_true.shape={positions.shape}"
        )
    missing = tf.maximum(rank - tf.rank(weight), 0)
    weight = tf.reshape(weight, tf.concat([tf.shape(weight)[:rank], tf.ones([missing], tf.int32)], 0))
    weight.set_shape([None] * rank)
    return weight


def _active(positions, mask, weight):
    """Positions that count, bool of their shape, or None for all: the losses of the others are 0."""
    active = None if mask is None else tf.cast(mask, tf.bool)
    if weight is None:
        return active
    used = tf.broadcast_to(weight != 0, tf.shape(positions))
    return used if active is None else active & used


@keras.saving.register_keras_serializable(package="keras_largeout")
class TopK(keras.layers.Layer):
    """The k best classes of a head: `[..., dim] -> {"ids": [..., k], "scores": [..., k]}`."""

    def __init__(self, head, k=10, position="all", **kwargs):
        super().__init__(**kwargs)
        if position not in ("all", "last"):
            raise ValueError(f'`position` must be "all" or "last". Received: position={position!r}')
        head.check_k(k)
        self.head, self.k, self.position = head, k, position
        self.supports_masking = True
        self.supports_jit = False

    def build(self, input_shape):
        if not self.head.built:
            self.head.build(input_shape)
        self.built = True

    def call(self, inputs, mask=None):
        hidden = tf.convert_to_tensor(inputs)
        if self.position == "last" and hidden.shape.rank != 3:
            raise ValueError(
                '`position="last"` is for hidden vectors [batch, time, dim]. '
                f"Received: inputs.shape={hidden.shape}"
            )
        if self.position == "last":
            time = tf.shape(hidden)[1]
            if mask is None:
                last = tf.fill([tf.shape(hidden)[0]], time - 1)
            else:
                last = tf.reduce_max(tf.where(tf.cast(mask, tf.bool), tf.range(time)[None, :], 0), axis=1)
            hidden = tf.gather(hidden, last, axis=1, batch_dims=1)
        scores, ids = self.head.top_k(hidden, self.k)
        return {"ids": ids, "scores": scores}

    def compute_mask(self, inputs, mask=None):
        return None

    def get_config(self):
        return {
            **super().get_config(),
            "head": keras.saving.serialize_keras_object(self.head),
            "k": self.k,
            "position": self.position,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        return cls(keras.saving.deserialize_keras_object(config.pop("head")), **config)
