"""The head behind an output, its losses and the tokens that count, for metrics."""

import tensorflow as tf

from keras_largeout._head_annotations import annotate_best, best_known, excluded_of, heads_of, scores_of
from keras_largeout._keras import is_symbolic, mask_of


def head_of(y_pred):
    """Return the head that returned `y_pred`; None where no head did, or where that is unknown."""
    return heads_of(y_pred)[-1] if heads_of(y_pred) else None


def classes_of(y_true, y_pred):
    """Return targets as class numbers, for the output of a head that is given ids of its `vocabulary`."""
    return head_of(y_pred).class_vocabulary.classes(y_true)


def nothing_to_measure(y_pred):
    """Return True while Keras builds a model symbolically, and `y_pred` has lost the note of its head."""
    return is_symbolic() and not isinstance(y_pred, dict) and head_of(y_pred) is None


def scored(y_true, y_pred, sample_weight=None):
    """Return the `ScoredOutput` of a head's output: what its loss has computed, or else computed now.

    A metric is asked after the optimizer's step. What the loss computed is of the weights before it, as the
    hidden vectors are.
    """
    head = head_of(y_pred)
    known = scores_of(y_pred, head, y_true)
    return head.score(y_true, y_pred, sample_weight) if known is None else known


def best_of(y_true, y_pred, k):
    """Return the ids of the k best classes, int `[..., k]`, and which tokens count, bool `[...]` or None
    for all.
    """
    head = head_of(y_pred)
    known = scores_of(y_pred, head, y_true)
    counted = mask_of(y_pred) if known is None else known.counted
    ids = best_known(y_pred, head, k)
    if ids is None:
        exclude = excluded_of(y_pred)
        more = {} if exclude is None else {"exclude": exclude}  # a head of one's own may not know it
        ids = head.top_k(tf.convert_to_tensor(y_pred), k, **more)[1]
        if not tf.executing_eagerly():  # there the head may have learnt when the next one asks
            annotate_best(y_pred, head, ids)
    return ids, counted
