"""Predictions of a layer with fixed fan-in: best classes and log-probabilities of flat hidden vectors.

`weights` is everywhere the `FanInWeights`, `loss` the layer's, `hidden` float `[n, dim]`. Over several hosts
hidden vectors go to all of them, and from each come a few numbers per vector back.
"""

import tensorflow as tf

from keras_largeout.distribute.outputs.over_hosts import best_of_hosts, logsumexp_of_hosts
from keras_largeout.ops._gradients import with_gradient, without_gradient
from keras_largeout.ops.export_mode import is_exporting
from keras_largeout.ops.fan_in.stock import stock_fan_in_logits_of, stock_fan_in_top_k
from keras_largeout.ops.fan_in.wrapper import fan_in_forward, fan_in_loss, fan_in_top_k
from keras_largeout.ops.top_k_in_chunks import best_of
from keras_largeout.replicas.collectives import AllGather
from keras_largeout.replicas.hosts import ALONE


def top_scores(weights, hidden, k, loss):
    """Return the k best classes: float32 `[n, k]` scores, int32 `[n, k]` ids."""
    hosts = ALONE if is_exporting() else weights.kernel.hosts
    route = AllGather(hosts, hidden)
    logits, ids, total = _top_here(weights.parts(), route.forward(hidden), k, loss)
    logits, ids = best_of_hosts(hosts, route, logits, ids, k)
    total = None if total is None else logsumexp_of_hosts(hosts, route, total)
    if total is not None:
        logits -= total[:, None]
    return (tf.math.log_sigmoid(logits) if loss == "binary_crossentropy" else logits), ids


def _top_here(parts, hidden, k, loss):
    """Return the k best logits of some parts (or all), their ids, and for a softmax the logsumexp of all
    of them.
    """
    candidates = [_top_of(part, hidden, k, with_total=loss == "softmax") for part in parts]
    logits, ids, totals = (list(found) for found in zip(*candidates))
    total = tf.reduce_logsumexp(tf.stack(totals, axis=1), axis=1) if loss == "softmax" else None
    if len(parts) == 1:
        return logits[0], ids[0], total
    classes = sum(part.kernel.shape[0] for part in parts)
    most = tf.minimum(k, classes) if tf.is_tensor(k) else min(k, classes)
    # Ids ascend from part to part, so ties still go to the smaller one.
    return *best_of(logits, ids, most), total


def _top_of(part, hidden, k, with_total):
    """Return the best logits of one part, their ids, and the logsumexp of all of it (None unless asked
    for).
    """
    k = tf.minimum(k, part.kernel.shape[0]) if tf.is_tensor(k) else min(k, part.kernel.shape[0])
    with part.on_its_device():
        if is_exporting():
            logits, ids, total = stock_fan_in_top_k(hidden, *part.operands, k)
        else:
            logits, ids = fan_in_top_k(hidden, *part.operands, k)
            total = _logsumexp(part, hidden) if with_total else None
        return logits, ids + part.first_class, total


def _logsumexp(part, hidden):
    """Return the logsumexp of the logits of one part, float32 `[n]`."""
    tokens = tf.shape(hidden)[0]
    no_labels = tf.zeros([tokens + 1], tf.int64)
    value = fan_in_forward(hidden, tf.zeros([0], tf.int32), no_labels, *part.operands, loss="softmax").lse
    variables = [variable for variable in (part.kernel, part.bias) if variable is not None]

    def gradient(upstream):  # that of the loss of class 0, and of its logit
        with tf.GradientTape() as tape:
            tape.watch([hidden, *variables])
            first = tf.zeros([tokens], tf.int64)
            losses = fan_in_loss(hidden, first, tf.range(tokens + 1), *part.operands, loss="softmax")
            total = losses + stock_fan_in_logits_of(hidden, first, *part.operands)
        return tape.gradient(total, [hidden, *variables], output_gradients=upstream)

    return with_gradient(gradient, value, [hidden], variables)


def scores_of(weights, hidden, ids, loss):
    """Return the scores of `top_scores` of given classes, `[n, k]`, on one host: float32, with gradients."""
    every = tf.repeat(hidden, tf.shape(ids)[1], axis=0)
    parts, flat = weights.parts(), tf.cast(tf.reshape(ids, [-1]), tf.int64)
    logits = tf.reshape(_logits_here(parts, every, flat, None)[0], tf.shape(ids))
    if loss == "softmax":
        totals = [_logsumexp(part, hidden) for part in parts]
        logits -= tf.reduce_logsumexp(tf.stack(totals, axis=1), axis=1, keepdims=True)
    return tf.math.log_sigmoid(logits) if loss == "binary_crossentropy" else logits


def log_probs(weights, hidden, classes, loss):
    """Return the log-probability of one class (int `[n]`) each, float32 `[n]`; no gradient over several
    hosts.
    """
    last = weights.kernel.shape[0] - 1
    message = f"`y` must be class ids from 0 to {last}."
    inside = [
        tf.debugging.assert_non_negative(classes, message=message),
        tf.debugging.assert_less_equal(classes, tf.cast(last, classes.dtype), message=message),
    ]
    with tf.control_dependencies([check for check in inside if check is not None]):
        classes = tf.cast(classes, tf.int64)
    hosts = ALONE if is_exporting() else weights.kernel.hosts
    if hosts.is_alone:
        logits, total = _logits_here(weights.parts(), hidden, classes, loss)
    else:
        route = AllGather(hosts, classes)
        logits, total = _logits_here(weights.parts(), route.forward(hidden), route.forward(classes), loss)
        logits = without_gradient(tf.reduce_sum(route.reverse(logits), axis=0), hidden)
        total = None if total is None else logsumexp_of_hosts(hosts, route, total)
    return tf.math.log_sigmoid(logits) if total is None else logits - total


def _logits_here(parts, hidden, classes, loss):
    """Return the logits of the classes that are in some parts, 0 for others; for a softmax the logsumexp
    of all.
    """
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
    return logits, tf.reduce_logsumexp(tf.stack(totals, axis=1), axis=1) if totals else None
