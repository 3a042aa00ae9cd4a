"""Penalties of classes that came before, for `head.sample`."""

import tensorflow as tf


class Penalties:
    """Three numbers that make classes less probable once they came before.

    Args:
        repetition: float >= 1, by which its log-probability is multiplied.
        frequency: float >= 0, which is subtracted from it for each time that it came.
        presence: float >= 0, which is subtracted once.

    Raises:
        ValueError: a number out of range.
    """

    def __init__(self, repetition, frequency, presence):
        if not repetition >= 1:
            raise ValueError(
                f"`repetition_penalty` must be at least 1. Received: repetition_penalty={repetition}"
            )
        for name, penalty in (("frequency_penalty", frequency), ("presence_penalty", presence)):
            if not penalty >= 0:
                raise ValueError(f"`{name}` must not be negative. Received: {name}={penalty}")
        self.repetition, self.frequency, self.presence = repetition, frequency, presence

    def lowered(self, scores, ids, previous):
        """Return the log-probabilities of classes, lowered for those that came before.

        Args:
            scores, ids: float32 and int32 `[n, k]`.
            previous: int32 `[n, m]`, class ids, -1 being none.

        Returns:
            float32 `[n, k]`.
        """
        ordered = tf.sort(
            tf.pad(previous, [[0, 0], [0, 1]], constant_values=-1), axis=1
        )  # never without columns
        first, behind = (tf.searchsorted(ordered, ids, side=side) for side in ("left", "right"))
        times = tf.cast(behind - first, scores.dtype)
        lowered = scores * self.repetition - self.presence - self.frequency * times
        return tf.where(times > 0, lowered, scores)
