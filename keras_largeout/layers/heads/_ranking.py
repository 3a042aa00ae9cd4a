"""Losses for implicit feedback: the score of the target against those of sampled classes."""

import tensorflow as tf


def ranking_losses(kind, vectors, rows, biases, of_targets, hits, num_classes, calibration):
    """Return the losses, float32 `[tokens]`.

    Args:
        kind: "bpr" or "binary_crossentropy".
        vectors: float `[tokens, dim]`.
        rows, biases: float `[candidates, dim]`, and float32 `[candidates]` or None.
        of_targets: float32 `[tokens]`, the scores of the targets.
        hits: bool `[tokens, candidates]`: where a candidate is the token's target, and counts for nothing.
        num_classes: int.
        calibration: float, t of gSASRec.
    """
    scores = tf.matmul(tf.cast(vectors, tf.float32), tf.cast(rows, tf.float32), transpose_b=True)
    scores = scores if biases is None else scores + biases
    counted = tf.cast(~hits, tf.float32)
    of_each = tf.reduce_sum(counted, axis=1)
    if kind == "bpr":
        losses = tf.math.softplus(scores - of_targets[:, None])
        return tf.math.divide_no_nan(tf.reduce_sum(losses * counted, axis=1), of_each)
    # alpha, the share of the other classes that was sampled, and beta, the power of the positive probability
    # (section 5 of Petrov and Macdonald, 2023).
    alpha = tf.minimum(of_each / max(num_classes - 1, 1), 1.0)
    beta = alpha * calibration + tf.cast(alpha > 0, tf.float32) * (1.0 - calibration)
    of_others = tf.reduce_sum(tf.math.softplus(scores) * counted, axis=1)
    return (beta * tf.math.softplus(-of_targets) + of_others) / (of_each + 1.0)
