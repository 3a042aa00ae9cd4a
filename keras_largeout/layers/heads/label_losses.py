"""The losses of tokens that have several targets each, by a head that knows those of one."""

import tensorflow as tf

from keras_largeout._head_annotations import annotate_training, in_training


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


def losses_of_lists(head, lists, hidden, active, weight):
    """Return the mean loss of each token's labels, weighed where the labels are; as `Head.weighed_losses`.

    Args:
        head: `Head`.
        lists: `LabelLists` of the tokens.
        hidden: float `[..., dim]`.
        active: bool `[...]` or None for all.
        weight: float `[...]` or None for ones.
    """
    lead = tf.shape(hidden)[:-1]
    tokens = tf.reduce_prod(lead)
    token, label, share = shares_of_labels(lists, active, tokens)
    vectors = tf.gather(tf.reshape(hidden, [-1, hidden.shape[-1]]), token)
    annotate_training(vectors, in_training(hidden))
    weights = share
    if weight is not None:
        weight = tf.broadcast_to(tf.cast(weight, tf.float32), lead)
        weights = share * tf.gather(tf.reshape(weight, [-1]), token)
    found = head.weighed_losses(label, vectors, None, weights)
    return tuple(
        tf.reshape(tf.math.unsorted_segment_sum(losses * share, token, tokens), lead) for losses in found
    )
