"""`HeadLoss`: what `head.loss` is, and how it finds its head again."""

import functools
import operator
import weakref

import keras
import tensorflow as tf

from keras_largeout._hidden import heads_of, note_scores
from keras_largeout._keras import with_mask
from keras_largeout.distribute.replicas.cross_replica import mean_of_replicas

_HEADS = weakref.WeakValueDictionary()  # name -> the newest head of that name


def register(head):
    """Lets a deserialised loss find `head` by its name."""
    _HEADS[head.name] = head


@keras.saving.register_keras_serializable(package="keras_largeout")
class HeadLoss(keras.losses.Loss):
    """The loss of a head. Made by `head.loss`; deserialised (by `load_model`) it finds its head by name."""

    def __init__(
        self,
        head_name,
        head=None,
        name=None,
        reduction="sum_over_batch_size",
        dtype=None,
        ignore_class=None,
    ):
        super().__init__(name=name or f"{head_name}_loss", reduction=reduction, dtype=dtype)
        self.head_name = head_name
        self.ignore_class = _checked_class(ignore_class)
        # Weak, and behind a method: Keras walks the attributes of whatever it saves, and the head's weights
        # belong to the model, not to its loss.
        self._reference = None if head is None else weakref.ref(head)

    def resolve_head(self, hidden=None):
        """The head that this loss belongs to.

        Args:
            hidden: the model's output, which knows the heads that it went through. A loss that was
                deserialised takes the one of its name from there.

        Raises:
            ValueError: there is none of its name, or the model ends in another head than that of the loss.
        """
        through = heads_of(hidden)
        head = None if self._reference is None else self._reference()
        if head is None:
            named = [other for other in through if other.name == self.head_name]
            head = named[-1] if named else _HEADS.get(self.head_name)
        if head is None:
            raise ValueError(
                f"The loss belongs to a head named {self.head_name!r}, and no such layer exists here. "
                "Compile with `loss=head.loss` of the head that ends the model."
            )
        if through and head not in through:
            raise ValueError(
                "`loss` must be that of the head which ends the model; this one would train the head "
                f"{head.name!r} of another model. (For a clone: `clone.get_layer(name).loss`.) Received: "
                f"hidden vectors of {', '.join(repr(other.name) for other in through)}, a head of this model"
            )
        self._reference = weakref.ref(head)
        return head

    def __call__(self, y_true, y_pred, sample_weight=None):
        head = self.resolve_head(y_pred)
        scored = head.score(y_true, y_pred, sample_weight, self.ignore_class)
        note_scores(y_pred, head, y_true, scored)
        losses, counted, weight = scored.losses, scored.counted, scored.weight
        # Keras's own __call__ applies mask, weights and reduction to what `call` returns. It would cast class
        # ids to float32 (exact up to 16.7 million only), so the losses travel in the place of y_true, and in
        # that of y_pred, which brings the mask.
        loss = super().__call__(losses, with_mask(tf.identity(losses), counted), sample_weight=weight)
        # Keras leaves the losses of an empty batch as they are: an empty vector, where a loss is a number.
        reduced = self.reduction not in (None, "none")
        loss = tf.reduce_sum(loss) if reduced and loss.shape.rank else loss
        if not reduced or self.reduction == "sum":
            return loss
        return mean_of_replicas(loss, self._divisor(scored), tf.shape(y_pred)[0])

    def _divisor(self, scored):
        """What Keras divides the sum of the losses by."""
        factors = [tf.cast(f, tf.float32) for f in (scored.counted, scored.weight) if f is not None]
        if factors and self.reduction == "mean_with_sample_weight":
            return tf.reduce_sum(functools.reduce(tf.multiply, factors))
        return tf.size(scored.losses) if scored.counted is None else tf.reduce_sum(factors[0])

    def call(self, y_true, y_pred):
        return y_true

    def get_config(self):
        return {**super().get_config(), "head_name": self.head_name, "ignore_class": self.ignore_class}


def _checked_class(ignore_class):
    try:
        whole = None if ignore_class is None else operator.index(ignore_class)
    except TypeError:
        whole = False
    if isinstance(ignore_class, bool) or whole is False:
        raise ValueError(
            f"`ignore_class` must be a class id or None. Received: ignore_class={ignore_class!r}"
        )
    return whole


def weights_like(like, sample_weight):
    """`sample_weight` with axes of length 1 at the end, as many as broadcasting to `like` takes.

    Raises:
        ValueError: it has other axes than `like`.
    """
    if sample_weight is None:
        return None
    weight, rank = tf.convert_to_tensor(sample_weight), like.shape.rank
    known = weight.shape.rank
    if known is not None and (known > rank + 1 or (known == rank + 1 and weight.shape[-1] not in (1, None))):
        raise ValueError(
            "`sample_weight` must have the shape of `y_true`, or of its first axes. "
            f"Received: sample_weight.shape={weight.shape}, y_true.shape={like.shape}"
        )
    missing = tf.maximum(rank - tf.rank(weight), 0)
    weight = tf.reshape(weight, tf.concat([tf.shape(weight)[:rank], tf.ones([missing], tf.int32)], 0))
    weight.set_shape([None] * rank)
    return weight


def all_of(*conditions):
    """Where all of some tensors of bools are True; None for everywhere, as for a condition that is None."""
    conditions = [tf.cast(condition, tf.bool) for condition in conditions if condition is not None]
    return functools.reduce(tf.logical_and, conditions) if conditions else None
