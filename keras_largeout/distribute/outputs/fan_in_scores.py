"""What a layer with fixed fan-in predicts: the best classes, and log-probabilities, of flat hidden vectors.

`parts` is everywhere what `FanInWeights.parts()` returns, `loss` the layer's, `hidden` float `[n, dim]`.
"""

import tensorflow as tf

from keras_largeout.ops.export_mode import is_exporting
from keras_largeout.ops.fan_in.stock import stock_fan_in_logits_of, stock_fan_in_top_k
from keras_largeout.ops.fan_in.wrapper import fan_in_forward, fan_in_top_k
from keras_largeout.ops.top_k_in_chunks import best_of


def top_scores(parts, hidden, k, loss):
    """The k best classes: float32 `[n, k]` scores, int32 `[n, k]` ids."""
    candidates = [_top_of(part, hidden, k, with_total=loss == "softmax") for part in parts]
    found_logits, found_ids, totals = (list(found) for found in zip(*candidates))
    logits, ids = found_logits[0], found_ids[0]
    if len(parts) > 1:  # ids ascend from part to part, so ties still go to the smaller one
        logits, ids = best_of(found_logits, found_ids, k)
    if loss == "softmax":
        logits -= tf.reduce_logsumexp(tf.stack(totals, axis=1), axis=1, keepdims=True)
    return (tf.math.log_sigmoid(logits) if loss == "binary_crossentropy" else logits), ids


def _top_of(part, hidden, k, with_total):
    """The best logits of one part, their ids, and the logsumexp of all of it (None unless asked for)."""
    k = tf.minimum(k, part.kernel.shape[0]) if tf.is_tensor(k) else min(k, part.kernel.shape[0])
    with part.on_its_device():
        if is_exporting():
            logits, ids, total = stock_fan_in_top_k(hidden, *part.operands, k)
        else:
            logits, ids = fan_in_top_k(hidden, *part.operands, k)
            total = _logsumexp(part, hidden) if with_total else None
        return logits, ids + part.first_class, total


def _logsumexp(part, hidden):
    """Of the logits of one part, float32 `[n]`."""
    no_labels = tf.zeros(tf.shape(hidden)[:1] + 1, tf.int64)
    return fan_in_forward(hidden, tf.zeros([0], tf.int32), no_labels, *part.operands, loss="softmax").lse


def log_probs(parts, hidden, classes, loss):
    """The log-probability of one class (int `[n]`) each, float32 `[n]`. It has no gradient."""
    last = parts[-1].first_class + parts[-1].kernel.shape[0] - 1
    message = f"`y` must be class ids from 0 to {last}."
    inside = [
        tf.debugging.assert_non_negative(classes, message=message),
        tf.debugging.assert_less_equal(classes, tf.cast(last, classes.dtype), message=message),
    ]
    with tf.control_dependencies([check for check in inside if check is not None]):
        classes = tf.cast(classes, tf.int64)
    logits, totals = tf.zeros_like(classes, tf.float32), []
    for part in parts:
        rows = part.kernel.shape[0]
        local = classes - part.first_class
        here = (local >= 0) & (local < rows)
        with part.on_its_device():
            found = stock_fan_in_logits_of(hidden, tf.where(here, local, 0), *part.operands)
            logits += tf.where(here, found, 0.0)
            if loss == "softmax":
                totals.append(_logsumexp(part, hidden))
    if loss == "binary_crossentropy":
        return tf.stop_gradient(tf.math.log_sigmoid(logits))
    return tf.stop_gradient(logits - tf.reduce_logsumexp(tf.stack(totals, axis=1), axis=1))
