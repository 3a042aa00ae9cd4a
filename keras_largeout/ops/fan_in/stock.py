"""Fixed fan-in layers in stock TensorFlow ops: for exported models, and for the logits of single classes."""

import tensorflow as tf

from keras_largeout.ops.top_k_in_chunks import top_k_in_chunks

_VALUES = 2**24  # Values of one gathered [rows, fan_in, examples] tensor.


def stock_fan_in_logits_of(inputs, classes, weights, indices, bias=None):
    """Return the logit of one class for each example: float32 `[B]`.

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
    """Return int32: what bits that were taken for signed integers are as `dtype`."""
    places = tf.cast(places, tf.int32)
    return tf.where(places < 0, places + 2**16, places) if dtype == tf.uint16 else places


def stock_fan_in_top_k(inputs, weights, indices, bias, k):
    """Return the k largest logits of every example and what a softmax divides by, some classes at a time.

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

    def logits_of(rows):
        gathered = tf.gather(columns, _unsigned(tf.gather(inputs_of, rows), indices.dtype))
        logits = tf.einsum("rkb,rk->br", gathered, tf.cast(tf.gather(weights, rows), tf.float32))
        return logits if bias is None else logits + tf.cast(tf.gather(bias, rows), tf.float32)

    return top_k_in_chunks(logits_of, examples, classes, step, k)
