"""Losses for implicit feedback: the score of the target against the scores of sampled classes."""

import tensorflow as tf

from keras_largeout._checks import check_one_of

KINDS = ("bpr", "binary_crossentropy", "cosine_contrastive")


class RankingLoss:
    """A loss of a target against candidates, with its parameters.

    Args:
        kind: one of `KINDS`; "softmax", whose parameters are those of the head, is checked as well.
        calibration: float in [0, 1], t of gSASRec.
        negative_margin: float in [-1, 1), m of the cosine contrastive loss.
        negative_weight: float > 0, its w.
        normalize, temperature: bool and float, whether scores are cosines, and what they are divided by.

    Raises:
        ValueError: an argument outside its range, or "cosine_contrastive" of other scores.
    """

    def __init__(self, kind, calibration, negative_margin, negative_weight, normalize, temperature):
        check_one_of("loss", kind, ("softmax", *KINDS))
        if not 0 <= calibration <= 1:
            raise ValueError(f"`calibration` must be in [0, 1]. Received: calibration={calibration}")
        if not -1 <= negative_margin < 1:
            raise ValueError(
                f"`negative_margin` must be in [-1, 1). Received: negative_margin={negative_margin}"
            )
        if not negative_weight > 0:
            raise ValueError(
                f"`negative_weight` must be positive. Received: negative_weight={negative_weight}"
            )
        if kind == "cosine_contrastive" and not (normalize and temperature == 1.0):
            raise ValueError(
                '`normalize` must be True and `temperature` 1 where `loss` is "cosine_contrastive". '
                f"Received: loss={kind!r}, normalize={normalize}, temperature={temperature}"
            )
        self.kind, self.calibration = kind, float(calibration)
        self.negative_margin, self.negative_weight = float(negative_margin), float(negative_weight)

    def losses(self, vectors, rows, biases, of_targets, hits, num_classes):
        """Return the losses, float32 `[tokens]`.

        Args:
            vectors: float `[tokens, dim]`.
            rows, biases: float `[candidates, dim]`, and float32 `[candidates]` or None.
            of_targets: float32 `[tokens]`, the scores of the targets.
            hits: bool `[tokens, candidates]`: where a candidate is the token's target, which is left out.
            num_classes: int.
        """
        scores = tf.matmul(tf.cast(vectors, tf.float32), tf.cast(rows, tf.float32), transpose_b=True)
        scores = scores if biases is None else scores + biases
        counted = tf.cast(~hits, tf.float32)
        of_each = tf.reduce_sum(counted, axis=1)
        if self.kind == "bpr":
            losses = tf.math.softplus(scores - of_targets[:, None])
            return tf.math.divide_no_nan(tf.reduce_sum(losses * counted, axis=1), of_each)
        if self.kind == "cosine_contrastive":
            above = tf.reduce_sum(self._above(scores) * counted, axis=1)
            return self._contrastive(of_targets, above, of_each)
        # alpha, the share of the other classes that was sampled, and beta, the power of the positive
        # probability (section 5 of Petrov and Macdonald, 2023).
        alpha = tf.minimum(of_each / max(num_classes - 1, 1), 1.0)
        beta = alpha * self.calibration + tf.cast(alpha > 0, tf.float32) * (1.0 - self.calibration)
        of_others = tf.reduce_sum(tf.math.softplus(scores) * counted, axis=1)
        return (beta * tf.math.softplus(-of_targets) + of_others) / (of_each + 1.0)

    def contrastive_of_lists(self, vectors, rows, of_targets, hits, targets):
        """Return the mean cosine contrastive loss of each token's targets, float32 `[tokens]`.

        The losses of a token share one sum over the candidates, without the target of each.

        Args:
            vectors: float `[tokens, dim]`.
            rows: float `[candidates, dim]`.
            of_targets: float32 `[pairs]`, the scores of the targets.
            hits: bool `[pairs]`: where the target is one of the candidates.
            targets: `ListedTargets` of the tokens.
        """
        scores = tf.matmul(tf.cast(vectors, tf.float32), tf.cast(rows, tf.float32), transpose_b=True)
        hits = tf.cast(hits, tf.float32)
        of_all = tf.reduce_sum(self._above(scores), axis=1)
        above = targets.per_target(of_all) - hits * self._above(of_targets)
        count = tf.cast(tf.shape(rows)[0], tf.float32) - hits
        return targets.mean(self._contrastive(of_targets, above, count))

    def _above(self, scores):
        return tf.nn.relu(scores - self.negative_margin)

    def _contrastive(self, of_targets, above, count):
        """Return the losses of targets beside `count` others whose sum above the margin is `above`."""
        return 1.0 - of_targets + self.negative_weight * tf.math.divide_no_nan(above, count)
