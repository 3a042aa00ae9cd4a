"""The best of many classes in stock TensorFlow ops, some classes at a time."""

import tensorflow as tf


def best_of(scores, ids, k):
    """The k best of several lists of candidates: their scores `[examples, k]`, descending, and their ids.

    Args:
        scores: list of float32 `[examples, n_i]`.
        ids: list of int32 `[examples, n_i]`. Ties go to the earlier list, and to the earlier place.
        k: int or int32 scalar, at most the sum of the `n_i`.
    """
    best, places = tf.math.top_k(tf.concat(scores, axis=1), k)
    return best, tf.gather(tf.concat(ids, axis=1), places, batch_dims=1)


def top_k_in_chunks(logits_of, examples, classes, step, k):
    """The k largest logits of every example, and the logsumexp of all of them.

    Args:
        logits_of: function from class ids, int32 `[n]`, to their logits, float32 `[examples, n]`.
        examples: int32 scalar.
        classes: int.
        step: int or int32 scalar, classes at a time.
        k: int, `1 <= k <= classes`; or an int32 scalar tensor, which is not checked.

    Returns:
        `(scores, ids, logsumexp)`: float32 `[examples, k]`, descending, int32 `[examples, k]` (ties go to the
        smaller id), and float32 `[examples]`.
    """

    def add_rows(start, scores, ids, total):
        rows = tf.range(start, tf.minimum(start + step, classes))
        logits = logits_of(rows)
        # NaN breaks the order of top_k: it counts as the lowest score. Places without class are below it.
        logits = tf.maximum(tf.where(tf.math.is_nan(logits), tf.float32.min, logits), tf.float32.min)
        here = tf.broadcast_to(rows, tf.shape(logits))
        # Those found before come first: they have the smaller ids, and win ties.
        scores, ids = best_of([scores, logits], [ids, here], k)
        total = tf.reduce_logsumexp(tf.concat([total[:, None], logits], 1), axis=1)
        return start + step, scores, ids, total

    lowest = tf.fill([examples, k], -float("inf"))
    best = tf.TensorShape([None, tf.get_static_value(k)])
    loop = (tf.constant(0), lowest, tf.zeros([examples, k], tf.int32), tf.fill([examples], -float("inf")))
    _, scores, ids, total = tf.while_loop(
        lambda start, *_: start < classes,
        add_rows,
        loop,
        shape_invariants=(tf.TensorShape([]), best, best, tf.TensorShape([None])),
        parallel_iterations=1,
    )
    return scores, ids, total
