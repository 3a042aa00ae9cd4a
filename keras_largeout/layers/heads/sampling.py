"""Scores of all classes, and drawing from them: what `head.log_probs` and `head.sample` do."""

import math

import keras
import tensorflow as tf

from keras_largeout.layers.heads._search import classes_per_token


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


class Penalties:
    """Three numbers that make classes less probable once they came before.

    Args:
        repetition: float >= 1, by which its log-probability is multiplied.
        frequency: float >= 0, which is subtracted from it for each time that it came.
        presence: float >= 0, which is subtracted once.

    Raises:
        ValueError: a number out of range.
    """

    def __init__(self, repetition, frequency, presence):
        if not repetition >= 1:
            raise ValueError(
                f"`repetition_penalty` must be at least 1. Received: repetition_penalty={repetition}"
            )
        for name, penalty in (("frequency_penalty", frequency), ("presence_penalty", presence)):
            if not penalty >= 0:
                raise ValueError(f"`{name}` must not be negative. Received: {name}={penalty}")
        self.repetition, self.frequency, self.presence = repetition, frequency, presence

    def lowered(self, scores, ids, previous):
        """Return the log-probabilities of classes, lowered for those that came before.

        Args:
            scores, ids: float32 and int32 `[n, k]`.
            previous: int32 `[n, m]`, class ids, -1 being none.

        Returns:
            float32 `[n, k]`.
        """
        ordered = tf.sort(tf.pad(previous, [[0, 0], [0, 1]], constant_values=-1), axis=1)  # never empty
        first, behind = (tf.searchsorted(ordered, ids, side=side) for side in ("left", "right"))
        times = tf.cast(behind - first, scores.dtype)
        lowered = scores * self.repetition - self.presence - self.frequency * times
        return tf.where(times > 0, lowered, scores)


def sample(
    head,
    hidden,
    temperature=1.0,
    top_k=None,
    top_p=None,
    seed=None,
    exclude=None,
    previous=None,
    penalties=None,
):
    """Return int32 `[...]`: one class per token; see `head.sample`. penalties: `Penalties`."""
    _check_head(head)
    if isinstance(temperature, (int, float)) and not temperature > 0:
        raise ValueError(f"`temperature` must be positive. Received: temperature={temperature}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"`top_p` must be in (0, 1]. Received: top_p={top_p}")
    more = {} if exclude is None else {"exclude": exclude}  # a head of one's own may not know it
    if previous is None:
        scores, ids = head.top_k(hidden, head.num_classes if top_k is None else top_k, **more)
    else:
        scores, ids = _best_lowered(head, tf.convert_to_tensor(hidden), top_k, previous, penalties, more)
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
    logits = tf.maximum(logits, logits.dtype.min)  # no -inf: a row of them alone has nothing to draw
    if top_p is not None:
        before = tf.cumsum(tf.nn.softmax(logits), axis=-1, exclusive=True)  # 0 for the best: it always stays
        logits = tf.where(before < top_p, logits, logits.dtype.min)
    drawn = keras.random.categorical(logits, 1, dtype="int32", seed=seed)
    chosen = tf.reshape(tf.gather(tf.reshape(ids, [-1, classes]), drawn, batch_dims=1), shape)
    chosen.set_shape(ids.shape[:-1])
    return chosen


def _best_lowered(head, hidden, top_k, previous, penalties, more):
    """Return scores and ids, `[..., k]` each, of the best classes once those of `previous` are lowered.

    At most as many classes are lowered as a token has in `previous`: so many more are searched.
    """
    lead = hidden.shape[:-1], tf.shape(hidden)[:-1]
    previous = classes_per_token("previous", previous, lead, head.num_classes)
    if top_k is not None:
        head.check_k(top_k)
        if previous.shape[-1] is None:
            raise ValueError(
                "`previous` must have a static last axis where `top_k` is given, in a graph. "
                f"Received: previous.shape={previous.shape}, top_k={top_k}"
            )
        wanted = min(int(top_k) + previous.shape[-1], head.num_classes)
    else:
        wanted = head.num_classes
    scores, ids = (tf.reshape(part, [-1, wanted]) for part in head.top_k(hidden, wanted, **more))
    k = wanted if top_k is None else int(top_k)
    scores, places = tf.math.top_k(penalties.lowered(scores, ids, previous), k)
    ids = tf.gather(ids, places, batch_dims=1)
    found = [tf.reshape(part, tf.concat([lead[1], [k]], 0)) for part in (scores, ids)]
    for part in found:
        part.set_shape([*lead[0], k])
    return found


def _check_head(head):
    if not head.has_log_probs:
        raise ValueError(
            "The scores of the head must be log-probabilities: its `loss` must be a softmax. "
            f"Received: {type(head).__name__} {head.name!r} of loss={getattr(head, 'loss_kind', None)!r}"
        )
