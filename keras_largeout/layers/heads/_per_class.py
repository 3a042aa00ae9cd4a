"""A number for each class that a head is given and keeps among its weights, such as counts."""

import numpy as np
import tensorflow as tf

from keras_largeout.ops.labels import on_the_host
from keras_largeout.trees._check import class_counts


def counts_per_class(counts, num_classes):
    """Return class frequencies as positive float64 `[num_classes]`; a 0 becomes the smallest other, with a
    warning.

    Raises:
        ValueError: another shape; numbers that are negative or not finite, or all 0.
    """
    if np.shape(counts) != (num_classes,):
        raise ValueError(
            f"`counts` must have the shape (num_classes,) = ({num_classes},). "
            f"Received: counts.shape={np.shape(counts)}"
        )
    return class_counts(np.array(counts))  # a copy: what the caller does to it later changes nothing


class PerClass:
    """One number per class that a head was given, and the variable that it becomes.

    A config says just that there are some (True): their values are NaN until weights are loaded.

    Args:
        name: str, of the head's argument; the variable and its place in a file have it too.
        given: array `[num_classes]` of numbers from 0 on; or True.
        num_classes: int.

    Raises:
        ValueError: another shape, or negative numbers.
    """

    def __init__(self, name, given, num_classes):
        self.name, self._known = name, given is not True
        self._first = np.array(given if self._known else np.full(num_classes, np.nan), np.float32)
        if self._first.shape != (num_classes,) or np.any(self._first < 0):
            raise ValueError(
                f"`{name}` must be num_classes={num_classes} numbers from 0 on. "
                f"Received: shape {self._first.shape}, smallest {self._first.min(initial=np.inf)}"
            )
        self._head, self.variable = None, None

    def build(self, head):
        """Makes the variable, a weight of `head`."""
        self._head = head.name
        with on_the_host():
            self.variable = head.add_weight(
                shape=self._first.shape,
                initializer=lambda shape, dtype: tf.convert_to_tensor(self._first, dtype),
                dtype="float32",
                trainable=False,
                autocast=False,
                name=self.name,
            )

    def require_known(self):
        """Raises ValueError where the head was made from a config, and no weights were loaded yet."""
        if self._known:
            return
        with tf.init_scope():
            self._known = not np.isnan(self.variable.numpy()).any()
        if not self._known:
            raise ValueError(
                f"`{self.name}` of the head {self._head!r} are not known: it was made from a config, which "
                "says just that there are some. Load its weights, or give the array. "
                f"Received: {self.name}=True"
            )

    def of(self, classes):
        """Return the numbers of classes, float32; `classes`: int32 or int64 of any shape.

        One that is out of range, of which the head's op tells, gets that of the nearest.
        """
        self.require_known()
        with on_the_host():
            clipped = tf.clip_by_value(classes, 0, self.variable.shape[0] - 1)
        return tf.gather(self.variable.value, clipped)  # where the variable is

    # A part of what the head saves.

    def save(self, arrays):
        arrays[self.name] = self.variable.numpy()

    def check(self, store):
        if self.name not in store:
            raise ValueError(
                f"`{self.name}` must be in both, or in neither. Received: a file without them, for a head "
                "with them"
            )
        if np.shape(store[self.name]) != tuple(self.variable.shape):
            raise ValueError(
                f"`{self.name}` must have the shape {tuple(self.variable.shape)}. "
                f"Received: a file with the shape {np.shape(store[self.name])}"
            )

    def load(self, store):
        self.variable.assign(np.asarray(store[self.name]))


class LabelWeights(PerClass):
    """The weight of each label where it is one, such as 1 / propensity."""

    def __init__(self, given, num_classes):
        super().__init__("label_weights", given, num_classes)

    def times(self, lists):
        """Return `LabelLists` with these weights, times those that they have."""
        weights = self.of(lists.labels)
        with on_the_host():
            return lists._replace(weights=weights if lists.weights is None else weights * lists.weights)
