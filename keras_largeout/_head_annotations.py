"""The annotations that a head attaches to the hidden vectors that it returns.

A loss and a metric are given tensors, and nothing else. So the notes are on the tensor itself, as attributes:
which heads it went through, and whether in training; the losses of its tokens, once a loss has scored it;
its best classes, once a metric has asked for them; the item vectors that a `Retrieval` was called with, and
the items that a search leaves out. The layer `GroupBy` attaches the groups of the rows to any output. The
notes hold in graphs and outside, in every replica and on every worker, and nothing of them is saved. (While
Keras builds a model symbolically it copies tensors, and the notes get lost: `is_symbolic` in `_keras`.)
"""

import contextlib
import weakref
from typing import Any, NamedTuple

_HEADS = "_largeout_heads"  # weak references to the heads that a tensor went through
_SCORES = "_largeout_scores"  # what losses made of it
_TRAINING = "_largeout_training"  # whether they come from a call of the head in training
_CALLS = "_largeout_calls"  # the calls of the head's vocabulary in the same step of training
_BEST = "_largeout_best"  # the best classes of it, by head
_GROUPS = "_largeout_groups"  # the group of each row
_ITEMS = "_largeout_items"  # the `GivenItems` that the head was called with
_EXCLUDED = "_largeout_excluded"  # the classes that metrics leave out


class ScoredOutput(NamedTuple):
    """The losses of the tokens of a batch. A token is one hidden vector.

    `losses`: float32 `[...]`, 0 where `active` is False. `counted`: bool `[...]` or None for all: the tokens
    over which a mean is taken, that is those which are not masked and have a target. `active`: likewise,
    the counted tokens whose weight is not 0. `weight`: `[...]`, axes of length 1 standing for all, or None.
    `cross_entropy`: float32 `[...]`, -log p of the targets; of most heads the losses themselves.
    """

    losses: Any
    counted: Any
    active: Any
    weight: Any
    cross_entropy: Any


class GivenItems(NamedTuple):
    """The item vectors that a `Retrieval` was called with, as in its call arguments; None where not given."""

    vectors: Any
    negatives: Any
    negative_ids: Any
    hard_negatives: Any
    hard_negative_ids: Any


def annotate(hidden, head, inputs=None):
    """Record that `hidden` went through `head`, after the heads of `inputs`."""
    with contextlib.suppress(AttributeError):
        setattr(hidden, _HEADS, (*getattr(inputs, _HEADS, ()), weakref.ref(head)))


def copy_annotations(hidden, copy):
    """Copy all annotations of `hidden` to `copy`, a tensor of the same values."""
    for attribute in (_HEADS, _SCORES, _TRAINING, _CALLS, _BEST, _GROUPS, _ITEMS, _EXCLUDED):
        if hasattr(hidden, attribute):
            with contextlib.suppress(AttributeError):
                setattr(copy, attribute, getattr(hidden, attribute))


def heads_of(hidden):
    """Return the heads that a tensor went through, the last one last; empty where that is unknown."""
    heads = [reference() for reference in getattr(hidden, _HEADS, ())]
    return [head for head in heads if head is not None]


def annotate_training(hidden, training):
    """Record whether a head returned `hidden` in training."""
    with contextlib.suppress(AttributeError):
        setattr(hidden, _TRAINING, bool(training))


def in_training(hidden):
    """Return whether a head returned `hidden` in training; False where that is unknown."""
    return getattr(hidden, _TRAINING, False)


def annotate_calls(hidden, calls):
    """Record the list in which the head's vocabulary notes its calls of the step that made `hidden`."""
    with contextlib.suppress(AttributeError):
        setattr(hidden, _CALLS, calls)


def calls_of(hidden):
    """Return the list that `annotate_calls` has recorded; None where it did not."""
    return getattr(hidden, _CALLS, None)


def annotate_items(hidden, items):
    """Record the `GivenItems` of hidden vectors."""
    with contextlib.suppress(AttributeError):
        setattr(hidden, _ITEMS, items)


def items_of(hidden):
    """Return the `GivenItems` of hidden vectors, or None."""
    return getattr(hidden, _ITEMS, None)


def annotate_excluded(hidden, exclude):
    """Record the classes that metrics leave out, as `Head.top_k` takes them."""
    with contextlib.suppress(AttributeError):
        setattr(hidden, _EXCLUDED, exclude)


def excluded_of(hidden):
    """Return the classes that metrics leave out, or None."""
    return getattr(hidden, _EXCLUDED, None)


def _annotate(hidden, attribute, head, *what):
    """Record `what` of a head, in the place of an earlier record."""
    others = [entry for entry in getattr(hidden, attribute, ()) if entry[0]() is not head]
    with contextlib.suppress(AttributeError):
        setattr(hidden, attribute, (*others, (weakref.ref(head), *what)))


def annotate_scores(hidden, head, y_true, scored):
    """Record the `ScoredOutput` of the loss of `head` for its output and `y_true`. The last one stays."""
    if head in heads_of(hidden):
        _annotate(hidden, _SCORES, head, y_true, scored)


def scores_of(hidden, head, y_true):
    """Return the `ScoredOutput` that the loss of `head` made of just these tensors; None where it did not."""
    for reference, targets, scored in getattr(hidden, _SCORES, ()):
        if reference() is head and targets is y_true:
            return scored
    return None


def annotate_best(hidden, head, ids):
    """Record the best classes that `head` found for `hidden`, `[..., k]`, the best first."""
    _annotate(hidden, _BEST, head, ids)


def best_known(hidden, head, k):
    """Return the k best classes, `[..., k]`, where as many at least were noted; None where not."""
    for reference, ids in getattr(hidden, _BEST, ()):
        if reference() is head and ids.shape[-1] >= k:
            return ids[..., :k]
    return None


def annotate_groups(outputs, groups):
    """Record the group of each row of `outputs`, which no head has made."""
    with contextlib.suppress(AttributeError):
        setattr(outputs, _GROUPS, groups)


def groups_of(outputs):
    """Return the groups that `annotate_groups` has recorded; None where it did not."""
    return getattr(outputs, _GROUPS, None)
