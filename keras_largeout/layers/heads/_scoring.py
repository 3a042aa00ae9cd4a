"""`Scoring`: targets, the losses of tokens, and which tokens count. Losses and metrics begin here."""

import contextlib
import functools

import tensorflow as tf

from keras_largeout._head_annotations import ScoredOutput, annotate_training, in_training
from keras_largeout._keras import mask_of
from keras_largeout.layers._inputs import check_exact
from keras_largeout.layers.heads._listed_targets import shares_of_labels
from keras_largeout.ops.labels import LabelLists, are_lists, as_ids, label_lists, on_the_host


class Scoring:
    """A base of `Head`: what its loss and metrics make of targets."""

    scores_lists = False  # whether `token_losses` takes `LabelLists`

    def targets(self, y_true, hidden, ignore_class=None):
        """Return what the loss makes of Keras's `y_true`.

        Args:
            y_true: as it came: a tensor, a `tf.RaggedTensor`, a `tf.SparseTensor` or an array.
            hidden: float `[..., dim]`.
            ignore_class: int or None, a class id that stands for no target.

        Returns:
            `(targets, like, present)`: class ids `[...]`, or `LabelLists` where tokens have several; a tensor
            that has the shape of the tokens, `[...]`, which masks and sample weights are for; and where a
            token has a target, bool `[...]`, or None for everywhere.
        """
        lead = hidden.shape[:-1]
        if are_lists(y_true, lead):
            lists = label_lists(y_true, (lead, tf.shape(hidden)[:-1]), self.num_classes, ignore_class)
            return lists, hidden[..., 0], lists.present(hidden[..., 0])
        ids = _class_ids(y_true, hidden)
        if ignore_class is not None:
            ids = tf.where(tf.cast(ids, tf.int64) == ignore_class, tf.constant(-1, ids.dtype), ids)
        return ids, ids, ids != -1

    def score(self, y_true, hidden, sample_weight=None, ignore_class=None):
        """Return the `ScoredOutput` of a batch: what losses and metrics begin with.

        Args:
            y_true: as it came to the loss or metric.
            hidden: float `[..., dim]`; its mask counts.
            sample_weight: of the shape of the tokens, or of its first axes; of that of lists of targets; or
                None.
            ignore_class: int or None, a class id that stands for no target.
        """
        mask, hidden = mask_of(hidden), tf.convert_to_tensor(hidden)
        if self.vocabulary is not None:
            y_true = self.class_vocabulary.classes_of_targets(y_true, hidden, ignore_class)
            ignore_class = None
        check_targets(y_true, hidden, self.num_classes)
        found, like, present = self.targets(y_true, hidden, ignore_class)
        are_labels = isinstance(found, LabelLists)
        shape = None if sample_weight is None else tf.shape(like)  # where `like` is: a GPU need not send it
        with on_the_host() if are_labels else contextlib.nullcontext():  # where labels are
            of_targets = _weights_of_targets(y_true, sample_weight, like)
            if of_targets is not None:
                found, sample_weight = _weighed_lists(self, found, of_targets, shape)
            weight, counted = _weights_like(like, sample_weight), _all_of(mask, present)
            used = None if weight is None else tf.broadcast_to(weight != 0, shape)
            active = _all_of(counted, used)
        of_lists = are_labels and not self.scores_lists
        losses_of = self.losses_of_lists if of_lists else self.weighed_losses
        losses, cross_entropy = losses_of(found, hidden, active, weight)
        return ScoredOutput(losses, counted, active, weight, cross_entropy)

    def weighed_losses(self, y_true, hidden, active, weight):
        """Return `token_losses`, which are then multiplied by `weight` (float `[...]` or None) and added up.

        A head that computes gradients along with the losses can make use of it.

        Returns:
            The losses, and -log p of the targets, which metrics want: float32 `[...]` each.
        """
        losses = self.token_losses(y_true, hidden, active)
        return losses, losses

    def losses_of_lists(self, lists, hidden, active, weight):
        """Return what `weighed_losses` does for tokens with several targets: the mean over each list.

        Args:
            lists: `LabelLists`, the targets of the tokens.
            hidden: float `[..., dim]`.
            active: bool `[...]`, tokens that count, or None for all.
            weight: float `[...]`, or None.
        """
        lead = tf.shape(hidden)[:-1]
        with on_the_host():
            tokens = tf.reduce_prod(lead)
        token, label, share = shares_of_labels(lists, active, tokens)
        vectors = tf.gather(tf.reshape(hidden, [-1, hidden.shape[-1]]), token)
        annotate_training(vectors, in_training(hidden))
        weights = share
        if weight is not None:
            weight = tf.broadcast_to(tf.cast(weight, tf.float32), lead)
            weights = share * tf.gather(tf.reshape(weight, [-1]), token)
        found = self.weighed_losses(label, vectors, None, weights)
        return tuple(
            tf.reshape(tf.math.unsorted_segment_sum(losses * share, token, tokens), lead) for losses in found
        )


def check_targets(y_true, hidden, num_classes):
    """Raise where targets are of a type that cannot name each class.

    Keras and `TabularFiles` make float32 of targets that nobody said to be integers.

    Raises:
        TypeError: they are strings.
        NotImplementedError: they are ids in a floating point type that cannot hold every id.
    """
    composite = isinstance(y_true, (tf.RaggedTensor, tf.SparseTensor))
    y_true = y_true if composite else tf.convert_to_tensor(y_true)
    if y_true.dtype == tf.string:
        raise TypeError(
            "`y_true` must be ids of classes, integers. Give the head a `vocabulary` to train it on strings. "
            "Received: dtype=string"
        )
    multi_hot = isinstance(y_true, tf.SparseTensor) or (
        are_lists(y_true, hidden.shape[:-1])
        and not isinstance(y_true, tf.RaggedTensor)
        and y_true.shape[-1] in (None, num_classes)
    )
    if num_classes is not None and not multi_hot:
        check_exact(y_true.dtype, num_classes, "y_true")


def _class_ids(y_true, hidden):
    """Return class ids as integers, without the trailing axis of length 1 that Keras allows."""
    y_true, rank = as_ids(tf.convert_to_tensor(y_true)), hidden.shape.rank
    trailing = rank is not None and y_true.shape.rank == rank and y_true.shape[-1] == 1
    return tf.squeeze(y_true, -1) if trailing else y_true


def _weights_of_targets(y_true, sample_weight, like):
    """Return sample weights of single targets, float `[L]`; None where there are none, or one per token."""
    if isinstance(sample_weight, tf.RaggedTensor):
        return sample_weight.flat_values
    if isinstance(sample_weight, tf.SparseTensor):
        return tf.sparse.reorder(sample_weight).values
    if sample_weight is None or isinstance(y_true, (tf.RaggedTensor, tf.SparseTensor)):
        return None
    weight, targets = tf.convert_to_tensor(sample_weight), tf.convert_to_tensor(y_true).shape
    several = weight.shape.rank is not None and weight.shape.rank == like.shape.rank + 1 == targets.rank
    if not several or 1 in (weight.shape[-1], targets[-1]) or not weight.shape.is_compatible_with(targets):
        return None
    return tf.reshape(weight, [-1])


def _weighed_lists(head, lists, weights, shape):
    """Return lists of targets with weights, and the weights of the tokens: the sums, of their shape.

    Raises:
        ValueError: the head adds up labels, or the targets have weights already.
    """
    if head.scores_lists or not isinstance(lists, LabelLists) or lists.weights is not None:
        raise ValueError(
            "`sample_weight` must be one weight per token where `y_true` is a matrix, or the labels of a "
            "SparseOutput. Received: a weight for each target of "
            f"{type(head).__name__} {head.name!r}"
        )
    lists, sums = lists.weighed(weights)
    return lists, tf.reshape(sums, shape)


def _weights_like(like, sample_weight):
    """Return `sample_weight` with axes of length 1 at the end, as many as broadcasting to `like` takes.

    Raises:
        ValueError: it has other axes than `like`.
    """
    if sample_weight is None:
        return None
    weight, rank = tf.convert_to_tensor(sample_weight), like.shape.rank
    weight = tf.cast(weight, tf.float32) if weight.dtype == tf.bool else weight
    known = weight.shape.rank
    if known is not None and (known > rank + 1 or (known == rank + 1 and weight.shape[-1] not in (1, None))):
        raise ValueError(
            "`sample_weight` must have the shape of `y_true`, or of its first axes. "
            f"Received: sample_weight.shape={weight.shape}, y_true.shape={like.shape}"
        )
    missing = tf.maximum(rank - tf.rank(weight), 0)
    weight = tf.reshape(weight, tf.concat([tf.shape(weight)[:rank], tf.ones([missing], tf.int32)], 0))
    weight.set_shape([None] * rank)
    return weight


def _all_of(*conditions):
    """Return where all of some tensors of bools are True; None for everywhere, as for a condition that is
    None.
    """
    conditions = [tf.cast(condition, tf.bool) for condition in conditions if condition is not None]
    return functools.reduce(tf.logical_and, conditions) if conditions else None


def check_token_shape(name, classes, hidden):
    """Raise ValueError where the argument `name`, classes of tokens, has another shape than `hidden` says."""
    if not hidden.shape[:-1].is_compatible_with(classes.shape):
        raise ValueError(
            f"`{name}` must have the shape of the hidden vectors without their last axis. "
            f"Received: {name}.shape={tuple(classes.shape)}, hidden.shape={tuple(hidden.shape)}"
        )


def of_active(losses_of, active, *given):
    """Return `losses_of(*given)` of the active tokens alone, and 0 for the others.

    Args:
        losses_of: function from tensors of m tokens to several tensors `[m]`.
        active: bool `[n]`.
        *given: tensors `[n, ...]`.

    Returns:
        list of tensors `[n]`.
    """
    # Of three axes: the gradient is `scatter_nd` then, and a GPU computes no shape for it.
    kept, size = tf.where(active)[:, None], tf.shape(active, tf.int64)
    found = losses_of(*(tf.squeeze(tf.gather_nd(x, kept), 1) for x in given))
    return [tf.scatter_nd(kept[:, 0], losses, size) for losses in found]
