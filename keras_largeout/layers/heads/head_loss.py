"""`HeadLoss`: what `head.loss` is, and how it finds its head again.

Several heads of one name may be there: those of a model and of its clone, or of a model that was loaded
twice. `head.loss` belongs to its head. A loss that was deserialised takes the head of its name that its input
went through, and where a layer behind the head has made other tensors (a slice, `TimeDistributed`), the head
of its name in the model that is compiled with it.
"""

import functools
import operator
import weakref

import keras
import tensorflow as tf

from keras_largeout._head_annotations import annotate_scores, heads_of
from keras_largeout._keras import all_layers, compiled_metrics, is_symbolic, with_mask
from keras_largeout.replicas.cross_replica import mean_of_replicas

_HEADS = weakref.WeakSet()


def register(head):
    """Register `head`, so that a deserialized loss finds it by its name."""
    _HEADS.add(head)


def match_losses(model, head):
    """Make the losses and metrics of the calling model find `head`.

    Raises:
        ValueError: the loss of a head of that name in another model.
    """
    for loss in _head_losses([model.loss, compiled_metrics(model)]):
        if loss.head_name == head.name:
            loss.find_head(model, head)


def _head_losses(given):
    """Yields the `HeadLoss`es among losses and metrics, and inside them."""
    for value in keras.tree.flatten(given):
        if isinstance(value, HeadLoss):
            yield value
        elif isinstance(value, (keras.losses.Loss, keras.metrics.Metric)):
            yield from _head_losses(list(vars(value).values()))


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
        self._is_given = head is not None

    def _known_head(self):
        return None if self._reference is None else self._reference()

    def find_head(self, model, called):
        """Takes the head of its name in a model, if it was not made by a head.

        Args:
            model: the model that is compiled with this loss.
            called: a head of that name, of which the model may have several.

        Raises:
            ValueError: this is the loss of a head of another model.
        """
        head = self._known_head()
        if head is called:
            return
        named = [layer for layer in all_layers(model) if layer in _HEADS and layer.name == self.head_name]
        if head in named:
            return
        if self._is_given and head is not None:
            self._refuse(head, [called])
        self._reference = weakref.ref(called) if len(named) < 2 else None

    def _refuse(self, head, heads):
        raise ValueError(
            "`loss` must be that of the head which ends the model; this one would train the head "
            f"{head.name!r} of another model. (For a clone: `clone.get_layer(name).loss`.) Received: "
            f"hidden vectors of {', '.join(repr(other.name) for other in heads)}, a head of this model"
        )

    def resolve_head(self, hidden=None):
        """Return the head that this loss belongs to.

        Args:
            hidden: the model's output, which knows the heads that it went through.

        Raises:
            ValueError: there is no head of its name, or several and nothing tells which; or the model ends in
                another head than that of the loss.
        """
        through = heads_of(hidden)
        head = self._known_head()
        named = [other for other in through if other.name == self.head_name]
        if named and not (self._is_given and head is not None):
            head = named[-1]
        if head is None:
            head = self._only_head()
        if through and head not in through:
            self._refuse(head, through)
        return head

    def _only_head(self):
        named = [head for head in _HEADS if head.name == self.head_name]
        if len(named) != 1:
            many = f"and there are {len(named)} of this name" if named else "and no such layer exists here"
            raise ValueError(
                f"The loss belongs to a head named {self.head_name!r}, {many}. "
                "Compile with `loss=head.loss` of the head that ends the model."
            )
        return named[0]

    def __call__(self, y_true, y_pred, sample_weight=None):
        if is_symbolic() and self._known_head() is None and not heads_of(y_pred):
            return tf.zeros([])  # nothing is computed, and the note of the head is lost
        head = self.resolve_head(y_pred)
        scored = head.score(y_true, y_pred, sample_weight, self.ignore_class)
        annotate_scores(y_pred, head, y_true, scored)
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
        """Return what Keras divides the sum of the losses by."""
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
