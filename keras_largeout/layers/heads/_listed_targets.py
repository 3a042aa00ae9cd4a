"""Tokens that have lists of targets: their losses are means over the lists."""

from typing import NamedTuple

import tensorflow as tf

from keras_largeout.layers._inputs import hidden_vectors
from keras_largeout.ops.labels import on_the_host


def shares_of_labels(lists, active, tokens):
    """Return the labels of tokens with the share that each has in the loss of its token.

    Args:
        lists: `LabelLists` of the tokens.
        active: bool `[...]`, tokens that count, or None for all.
        tokens: int, how many there are.

    Returns:
        `(token, label, share)`: int64 `[pairs]` both, ordered by token, and float32 `[pairs]`, which add up
        to 1 for each token.
    """
    token, label, share = (lists if active is None else lists.of_tokens(active)).pairs()
    share = tf.ones(tf.shape(token)) if share is None else share
    return token, label, share / tf.gather(tf.math.unsorted_segment_sum(share, token, tokens), token)


class ListedTargets(NamedTuple):
    """The targets of tokens that have at least one, in the order of the tokens.

    Attributes:
        label: int64 `[pairs]`, classes.
        share: float32 `[pairs]`, the share of each target in the loss of its token; the sum is 1 per token.
        place: int32 `[pairs]`, the token of each target.
        first: int32 `[tokens]`, the first target of each token.
        weight: float32 `[tokens]`, by which the losses are going to be multiplied.
    """

    label: tf.Tensor
    share: tf.Tensor
    place: tf.Tensor
    first: tf.Tensor
    weight: tf.Tensor

    def per_target(self, of_tokens):
        """Return numbers or vectors of tokens, repeated for each target."""
        return tf.gather(of_tokens, self.place)

    def mean(self, of_targets):
        """Return the mean over the targets of each token, float32 `[tokens]`, of float32 `[pairs]`."""
        return tf.math.unsorted_segment_sum(self.share * of_targets, self.place, tf.size(self.first))


def losses_by_token(head, lists, hidden, active, weight, losses_of):
    """Return what `Head.losses_of_lists` does.

    Args:
        head: `TableHead`.
        lists, hidden, active, weight: as in `Head.losses_of_lists`.
        losses_of: function of scaled hidden vectors, float `[tokens, dim]`, and their `ListedTargets`, that
            returns the losses of the tokens, and -log p of their targets: float32 `[tokens]` each.
    """
    vectors, lead = hidden_vectors(head, hidden), tf.shape(hidden)[:-1]
    if not head.initialized:  # Keras builds the model symbolically
        return (tf.zeros(lead),) * 2
    with on_the_host():
        tokens = tf.reduce_prod(lead)
    token, label, share = shares_of_labels(lists, active, tokens)
    with on_the_host():
        present, place = tf.unique(token)  # ordered, as `token` is
        first = tf.searchsorted(token, present)
    label = head.softmax_weights.checked(label, least=0)
    weight = tf.ones(lead) if weight is None else tf.broadcast_to(tf.cast(weight, tf.float32), lead)
    weight, vectors = (
        tf.gather(x, present) for x in (tf.reshape(weight, [-1]), tf.reshape(vectors, [-1, head.dim]))
    )
    targets = ListedTargets(label, share, place, first, weight)
    found = head.losses_with_fused_update(vectors, lambda vectors: losses_of(head.scaled(vectors), targets))
    return tuple(tf.reshape(tf.math.unsorted_segment_sum(losses, present, tokens), lead) for losses in found)
