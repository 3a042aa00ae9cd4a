"""The best of many classes in stock TensorFlow ops, some classes at a time."""

import tensorflow as tf

NO_CLASS = tf.float32.min  # the score of a place that has none
_BLOCK = 64  # columns of which the largest is looked at before the others


def best_of(scores, ids, k):
    """Return the k best of several lists of candidates: their scores `[examples, k]`, descending, and their
    ids.

    Args:
        scores: list of float32 `[examples, n_i]`.
        ids: list of int32 `[examples, n_i]`. Ties go to the earlier list, and to the earlier place.
        k: int or int32 scalar, at most the sum of the `n_i`.
    """
    best, places = tf.math.top_k(tf.concat(scores, axis=1), k)
    return best, tf.gather(tf.concat(ids, axis=1), places, batch_dims=1)


def marked_missing(scores, ids, missing):
    """Return `scores` with -inf and `ids` with -1 where the bools `missing` say so.

    By arithmetic: constants that are not finite stop `tf.debugging.enable_check_numerics`.
    """
    scores = tf.where(missing, NO_CLASS, scores) * tf.where(missing, 2.0, 1.0)
    return scores, tf.where(missing, -1, ids)


def _candidates(scores, k):
    """Return those of float32 `[examples, n]` among which the k best are, and their columns; ties keep their
    order.

    The k best are in the k blocks of highest maxima. Looking at these alone is three times as fast as
    `tf.math.top_k` of all, where k is small.
    """
    examples, n = tf.unstack(tf.shape(scores))
    if tf.is_tensor(k) or k > _BLOCK:
        return scores, tf.broadcast_to(tf.range(n), [examples, n])
    count = n // _BLOCK
    blocks = tf.reshape(scores[:, : count * _BLOCK], [examples, count, _BLOCK])
    _, chosen = tf.math.top_k(tf.reduce_max(blocks, axis=2), tf.minimum(k, count))
    chosen = tf.sort(chosen, axis=1)
    columns = tf.expand_dims(chosen * _BLOCK, 2) + tf.range(_BLOCK)  # TFLite adds no axis by a slice
    rest = tf.broadcast_to(tf.range(count * _BLOCK, n), [examples, n % _BLOCK])
    flat = [examples, tf.minimum(k, count) * _BLOCK]
    found = tf.reshape(tf.gather(blocks, chosen, batch_dims=1), flat)
    return (
        tf.concat([found, scores[:, count * _BLOCK :]], axis=1),
        tf.concat([tf.reshape(columns, flat), rest], axis=1),
    )


def top_k_in_chunks(logits_of, examples, classes, step, k, excluded=None, present=None):
    """Return the k largest logits of every example, and the logsumexp of all of them.

    Args:
        logits_of: function from class ids, int32 `[n]`, to their logits, float32 `[examples, n]`.
        examples: int32 scalar.
        classes: int.
        step: int or int32 scalar, classes at a time.
        k: int, `1 <= k <= classes`; or an int32 scalar tensor, which is not checked.
        excluded: None, or int32 `[pairs, 2]`: an example and a class id that is not one of its best; ids
            that are no class exclude nothing.
        present: None, or bool `[classes]`: which of them may be among the best; the logsumexp is of all.

    Returns:
        `(scores, ids, logsumexp)`: float32 `[examples, k]`, descending, int32 `[examples, k]` (ties go to the
        smaller id), and float32 `[examples]`. Where fewer than k are left, scores of `NO_CLASS`
        follow.
    """
    # Finite, for whoever looks for infinities (`tf.debugging.enable_check_numerics`). Places without a class
    # are below all classes.
    nothing, lowest = NO_CLASS, NO_CLASS / 2

    def add_rows(start, scores, ids, total):
        rows = tf.range(start, tf.minimum(start + step, classes))
        logits = logits_of(rows)
        # NaN breaks the order of top_k: it counts as the lowest score.
        logits = tf.where(logits > lowest, logits, lowest)
        here = tf.reduce_logsumexp(logits, axis=1)
        high = tf.maximum(total, here)
        total = high + tf.math.log1p(tf.exp(tf.minimum(total, here) - high))
        if excluded is not None:
            pairs = excluded - [0, start]
            pairs = tf.boolean_mask(pairs, (pairs[:, 1] >= 0) & (pairs[:, 1] < tf.size(rows)))
            with tf.control_dependencies([total]):  # the logits are no longer read: no copy of them
                logits = tf.tensor_scatter_nd_update(logits, pairs, tf.fill(tf.shape(pairs)[:1], nothing))
        if present is not None:
            logits = tf.where(tf.gather(present, rows), logits, nothing)
        logits, columns = _candidates(logits, k)
        # Those found before come first: they have the smaller ids, and win ties.
        scores, ids = best_of([scores, logits], [ids, columns + start], k)
        return start + step, scores, ids, total

    none = tf.fill([examples, k], nothing)
    best = tf.TensorShape([None, tf.get_static_value(k)])
    loop = (tf.constant(0), none, tf.zeros([examples, k], tf.int32), tf.fill([examples], nothing))
    _, scores, ids, total = tf.while_loop(
        lambda start, *_: start < classes,
        add_rows,
        loop,
        shape_invariants=(tf.TensorShape([]), best, best, tf.TensorShape([None])),
        parallel_iterations=1,
    )
    return scores, ids, total
