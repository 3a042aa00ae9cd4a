"""The weight of each label where it is one, such as 1 / propensity: a part of a head's weights."""

import numpy as np
import tensorflow as tf


class LabelWeights:
    """What a head was given as `label_weights`, and the variable that it becomes.

    A config says just that there are some (True): their values are NaN until weights are loaded.

    Args:
        given: array `[num_classes]` of numbers from 0 on; or True.
        num_classes: int.

    Raises:
        ValueError: another shape, or negative numbers.
    """

    def __init__(self, given, num_classes):
        self._known = given is not True
        self._first = np.asarray(given if self._known else np.full(num_classes, np.nan), np.float32)
        if self._first.shape != (num_classes,) or np.any(self._first < 0):
            raise ValueError(
                f"`label_weights` must be num_classes={num_classes} numbers from 0 on. "
                f"Received: shape {self._first.shape}, smallest {self._first.min(initial=np.inf)}"
            )
        self._head, self.variable = None, None

    def build(self, head):
        """Makes the variable, a weight of `head`."""
        self._head = head.name
        self.variable = head.add_weight(
            shape=self._first.shape,
            initializer=lambda shape, dtype: tf.convert_to_tensor(self._first, dtype),
            dtype="float32",
            trainable=False,
            autocast=False,
            name="label_weights",
        )

    def times(self, lists):
        """`LabelLists` with these weights, times those that they have."""
        self._require_known()
        last = len(self._first) - 1  # the op says which label is out of range
        weights = tf.gather(self.variable.value, tf.clip_by_value(lists.labels, 0, last))
        return lists._replace(weights=weights if lists.weights is None else weights * lists.weights)

    def _require_known(self):
        if self._known:
            return
        with tf.init_scope():
            self._known = not np.isnan(self.variable.numpy()).any()
        if not self._known:
            raise ValueError(
                f"`label_weights` of the head {self._head!r} are not known: it was made from a config, which "
                "says just that there are some. Load its weights, or give the array. "
                "Received: label_weights=True"
            )


def check_stored(weights, store):
    """Raises ValueError where a file lacks the label weights that the head has, or has others."""
    if ("label_weights" in store) != (weights is not None):
        there, here = ("without", "with") if weights is not None else ("with", "without")
        raise ValueError(
            "`label_weights` must be in both, or in neither. "
            f"Received: a file {there} them, for a head {here} them"
        )
    if weights is not None and np.shape(store["label_weights"]) != tuple(weights.variable.shape):
        raise ValueError(
            f"`label_weights` must have the shape {tuple(weights.variable.shape)}. "
            f"Received: a file with the shape {np.shape(store['label_weights'])}"
        )
