"""Fixed fan-in layers in stock TensorFlow ops: for exported models, and for the logits of single classes."""

import tensorflow as tf

_VALUES = 2**24  # Values of one gathered [rows, fan_in, examples] tensor.


def stock_fan_in_logits_of(inputs, classes, weights, indices, bias=None):
    """The logit of one class for each example: float32 `[B]`.

    Args:
        inputs: float `[B, I]`.
        classes: int `[B]`.
        weights, indices, bias: variables or tensors `[C, K]`, `[C, K]`, `[C]` or None.
    """
    places = tf.cast(tf.gather(indices, classes), tf.int32)
    values = tf.cast(tf.gather(inputs, places, batch_dims=1), tf.float32)
    logits = tf.reduce_sum(values * tf.cast(tf.gather(weights, classes), tf.float32), axis=1)
    return logits if bias is None else logits + tf.cast(tf.gather(bias, classes), tf.float32)


def _unsigned(places, dtype):
    """int32: what bits that were taken for signed integers are as `dtype`."""
    places = tf.cast(places, tf.int32)
    return tf.where(places < 0, places + 2**16, places) if dtype == tf.uint16 else places


def stock_fan_in_top_k(inputs, weights, indices, bias, k):
    """The k largest logits of every example and what a softmax divides by, some classes at a time.

    Args:
        inputs: float `[B, I]`.
        weights, indices, bias: variables `[C, K]`, `[C, K]`, and `[C]` or None.
        k: int, `1 <= k <= C`; or an int32 scalar tensor, which is not checked.

    Returns:
        `(scores, ids, logsumexp)`: float32 `[B, k]`, descending, int32 `[B, k]` (ties go to the smaller id),
        and float32 `[B]` over all classes.
    """
    classes, fan_in = weights.shape
    columns = tf.transpose(tf.cast(inputs, tf.float32))
    examples = tf.shape(inputs)[0]
    step = tf.clip_by_value(_VALUES // (fan_in * tf.maximum(examples, 1)), 1, classes)

    # TFLite's gather knows no unsigned integers. The bits are the same, and nothing is copied.
    inputs_of = tf.bitcast(
        indices, {tf.uint16: tf.int16, tf.uint32: tf.int32}.get(indices.dtype, indices.dtype)
    )

    def add_rows(start, scores, ids, total):
        rows = tf.range(start, tf.minimum(start + step, classes))
        gathered = tf.gather(columns, _unsigned(tf.gather(inputs_of, rows), indices.dtype))
        logits = tf.einsum("rkb,rk->br", gathered, tf.cast(tf.gather(weights, rows), tf.float32))
        if bias is not None:
            logits += tf.cast(tf.gather(bias, rows), tf.float32)
        # NaN breaks the order of top_k: it counts as the lowest score. Places without class are below it.
        logits = tf.maximum(tf.where(tf.math.is_nan(logits), tf.float32.min, logits), tf.float32.min)
        here = tf.broadcast_to(rows, tf.shape(logits))
        # Those found before come first: they have the smaller ids, and win ties.
        scores, places = tf.math.top_k(tf.concat([scores, logits], 1), k)
        ids = tf.gather(tf.concat([ids, here], 1), places, batch_dims=1)
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
