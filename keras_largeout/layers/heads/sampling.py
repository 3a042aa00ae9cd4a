"""Log-probabilities of all classes, and drawing from them: what `head.log_probs` and `head.sample` do."""

import keras
import tensorflow as tf


def log_probs(head, hidden):
    """float32 `[..., num_classes]`, from all of the head's classes in descending order."""
    _check_head(head)
    scores, ids = head.top_k(hidden, head.num_classes)
    return tf.gather(scores, tf.argsort(ids, axis=-1), axis=-1, batch_dims=scores.shape.rank - 1)


def sample(head, hidden, temperature=1.0, top_k=None, top_p=None, seed=None):
    """int32 `[...]`: one class per token; arguments as those of `head.sample`."""
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
