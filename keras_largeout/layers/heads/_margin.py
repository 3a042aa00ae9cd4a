"""A margin by which a head that scores by cosines lowers the scores of targets in training."""

import math

import tensorflow as tf

KINDS = ("arcface", "cosface")


class Margin:
    """The argument `margin` of a head.

    Args:
        given: `("arcface", m)` or `("cosface", m)`.
        normalize: bool, whether the head scores by cosines.

    Raises:
        ValueError: another kind; m outside its range; scores that are not cosines.
    """

    def __init__(self, given, normalize):
        known = isinstance(given, (tuple, list)) and len(given) == 2 and given[0] in KINDS
        number = known and isinstance(given[1], (int, float)) and not isinstance(given[1], bool)
        highest = math.pi / 2 if known and given[0] == "arcface" else math.inf
        if not number or not 0 <= given[1] <= highest or math.isinf(given[1]):
            raise ValueError(
                '`margin` must be None, ("arcface", m) with m in [0, pi / 2], or ("cosface", m) with m >= 0. '
                f"Received: margin={given!r}"
            )
        if not normalize:
            raise ValueError(
                f"`margin` must be None without `normalize`: it acts on cosines. Received: margin={given!r}"
            )
        self.kind, self.size = given[0], float(given[1])

    def lowered(self, scores, temperature):
        """Return the scores of targets with the margin: float32 `[tokens]`, as `scores`.

        ArcFace turns cos(theta) into cos(theta + m) up to theta + m = pi, and above into
        cos(theta) - m sin(m): this falls with theta, too. CosFace subtracts m.
        """
        cosines = scores * temperature
        if self.kind == "cosface":
            return (cosines - self.size) / temperature
        sines = tf.sqrt(tf.maximum(1.0 - tf.square(cosines), 1e-7))  # finite gradients at theta = 0
        turned = cosines * math.cos(self.size) - sines * math.sin(self.size)
        beyond = cosines - self.size * math.sin(self.size)
        return tf.where(cosines > -math.cos(self.size), turned, beyond) / temperature
