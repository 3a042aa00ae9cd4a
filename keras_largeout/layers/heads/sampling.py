"""Scores of all classes, and drawing from them: what `head.log_probs` and `head.sample` do."""

import math

import keras
import tensorflow as tf


def log_probs(head, hidden):
    """Return the log-probabilities of all classes of `head`, float32 `[..., num_classes]`."""
    _check_head(head)
    return all_scores(head, hidden)


def all_scores(head, hidden, **exclude):
    """Return the scores of all classes in the order of their ids; -inf of those that `exclude` names.

    Args:
        head: a head.
        hidden: float `[..., dim]`.
        **exclude: nothing, or the `exclude` of `head.top_k`.

    Returns:
        float32 `[..., num_classes]`, what `head.top_k` gives of all classes.
    """
    scores, ids = head.top_k(hidden, head.num_classes, **exclude)
    shape, classes = tf.shape(ids), head.num_classes
    ids = tf.reshape(ids, [-1, classes])
    tokens = tf.broadcast_to(tf.range(tf.shape(ids)[0])[:, None], tf.shape(ids))
    places = tf.stack([tokens, tf.where(ids < 0, classes, ids)], axis=-1)  # a column more takes the ids -1
    whole = tf.fill([tf.shape(ids)[0], classes + 1], tf.constant(-math.inf, scores.dtype))
    whole = tf.tensor_scatter_nd_update(whole, places, tf.reshape(scores, tf.shape(ids)))
    whole = tf.reshape(whole[:, :classes], shape)
    whole.set_shape(scores.shape)
    return whole


def sample(head, hidden, temperature=1.0, top_k=None, top_p=None, seed=None):
    """Return int32 `[...]`: one class per token; takes the arguments of `head.sample`."""
    _check_head(head)
    if isinstance(temperature, (int, float)) and not temperature > 0:
        raise ValueError(f"`temperature` must be positive. Received: temperature={temperature}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"`top_p` must be in (0, 1]. Received: top_p={top_p}")
    scores, ids = head.top_k(hidden, head.num_classes if top_k is None else top_k)
    known = tf.debugging.Assert(
        ~tf.reduce_any(tf.math.is_nan(scores)),
        [
            "`hidden` must give scores that are numbers, to draw from. Received: scores that are NaN, of",
            head.name,
        ],
    )
    with tf.control_dependencies([] if known is None else [known]):
        scores = tf.identity(scores)
    shape, classes = tf.shape(ids)[:-1], ids.shape[-1]
    logits = tf.reshape(scores, [-1, classes]) / tf.cast(temperature, scores.dtype)
    if top_p is not None:
        before = tf.cumsum(tf.nn.softmax(logits), axis=-1, exclusive=True)  # 0 for the best: it always stays
        logits = tf.where(before < top_p, logits, logits.dtype.min)
    drawn = keras.random.categorical(logits, 1, dtype="int32", seed=seed)
    chosen = tf.reshape(tf.gather(tf.reshape(ids, [-1, classes]), drawn, batch_dims=1), shape)
    chosen.set_shape(ids.shape[:-1])
    return chosen


def _check_head(head):
    if not head.has_log_probs:
        raise ValueError(
            "The scores of the head must be log-probabilities: its `loss` must be a softmax. "
            f"Received: {type(head).__name__} {head.name!r} of loss={getattr(head, 'loss_kind', None)!r}"
        )
