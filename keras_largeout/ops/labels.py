"""Targets of which a token may have any number: one list of labels after the other."""

import contextlib
from typing import NamedTuple

import tensorflow as tf


def on_the_host():
    """A context for what is made of labels: the ops that take them read them in host memory.

    Made on a GPU they would be waited for. Without a GPU the context changes nothing.
    """
    return tf.device("CPU:0") if tf.config.list_logical_devices("GPU") else contextlib.nullcontext()


class LabelLists(NamedTuple):
    """The labels of n tokens.

    `labels`: int32 or int64 `[L]`, -1 being none. `row_splits`: int64 `[n + 1]`: token i has the labels
    `labels[row_splits[i] : row_splits[i + 1]]`. `weights`: float32 `[L]`, or None for ones.
    """

    labels: tf.Tensor
    row_splits: tf.Tensor
    weights: tf.Tensor = None

    def of_tokens(self, active):
        """The same without the labels of tokens at which `active` (bool, n in all) is False."""
        with on_the_host():
            kept = tf.repeat(tf.reshape(active, [-1]), self.row_splits[1:] - self.row_splits[:-1])
            return self._replace(labels=tf.where(kept, self.labels, -1))


def label_lists(y_true, lead, num_classes):
    """The `LabelLists` of targets in any of the layouts.

    Args:
        y_true: label ids: int `[..., m]`, -1 being none; `[...]`, one label per token; a `tf.RaggedTensor`
            `[batch, m]`; a `tf.SparseTensor` `[batch, m]` of ids. A `tf.SparseTensor` that is
            `[batch, num_classes]`, or whose values are no integers, is a multi-hot matrix: its columns are
            the labels, its values their weights (0: no label).
        lead: `tf.TensorShape` of the tokens, `[...]`, of known rank; and its dynamic value, int `[rank]`.
        num_classes: int.

    Raises:
        ValueError: the shapes do not belong together.
    """
    with on_the_host():
        return _label_lists(y_true, *lead, num_classes)


def _label_lists(y_true, static, dynamic, num_classes):
    if isinstance(y_true, tf.SparseTensor):
        _require(y_true.shape.rank == 2 and static.rank == 1, y_true, static)
        return _from_sparse(tf.sparse.reorder(y_true), dynamic[0], num_classes)
    if isinstance(y_true, tf.RaggedTensor):
        _require(y_true.shape.rank == 2 and y_true.ragged_rank == 1 and static.rank == 1, y_true, static)
        return LabelLists(_ids(y_true.flat_values), tf.cast(y_true.row_splits, tf.int64))
    y_true = tf.convert_to_tensor(y_true)
    shape = y_true.shape
    if shape.rank is not None:
        one_each = shape.rank == static.rank and shape.is_compatible_with(static)
        several = shape.rank == static.rank + 1 and shape[:-1].is_compatible_with(static)
        _require(one_each or several, y_true, static)
    # Written so that it holds for both, and without any tokens.
    tokens = tf.reduce_prod(tf.cast(dynamic, tf.int64))
    each = tf.size(y_true, tf.int64) // tf.maximum(tokens, 1)
    return LabelLists(tf.reshape(_ids(y_true), [-1]), tf.range(tokens + 1) * each)


def without_class(y_true, class_id, num_classes):
    """Targets in which -1, no target, stands for `class_id`.

    Args:
        y_true: in any layout of `label_lists`.
        class_id: int.
        num_classes: int.
    """

    def replaced(ids):
        ids = _ids(ids)
        return tf.where(ids == tf.cast(class_id, ids.dtype), tf.constant(-1, ids.dtype), ids)

    if isinstance(y_true, tf.RaggedTensor):
        return y_true.with_flat_values(replaced(y_true.flat_values))
    if not isinstance(y_true, tf.SparseTensor):
        return replaced(tf.convert_to_tensor(y_true))
    if y_true.dtype.is_integer and y_true.shape[-1] != num_classes:
        return y_true.with_values(replaced(y_true.values))
    other = y_true.indices[:, 1] != class_id
    return y_true.with_values(tf.where(other, y_true.values, tf.zeros([], y_true.dtype)))


def _from_sparse(y_true, tokens, num_classes):
    row, column = y_true.indices[:, 0], y_true.indices[:, 1]
    splits = tf.searchsorted(row, tf.range(tf.cast(tokens, tf.int64) + 1), out_type=tf.int64)
    if y_true.dtype.is_integer and y_true.shape[-1] != num_classes:
        if y_true.shape[-1] is None:
            tf.debugging.assert_none_equal(
                y_true.dense_shape[1],
                tf.constant(num_classes, tf.int64),
                message="`y_true` must have a static width where it is a multi-hot matrix of integers (or be "
                "one of floats). Received: a SparseTensor of label ids, of num_classes columns",
            )
        return LabelLists(_ids(y_true.values), splits)
    weights = tf.cast(y_true.values, tf.float32)
    return LabelLists(tf.where(weights != 0, column, -1), splits, weights)


def _ids(ids):
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int64)


def _require(fits, y_true, lead):
    if not fits:
        raise ValueError(
            "`y_true` must be label ids of the shape of the hidden vectors without their last axis, with or "
            "without an axis of labels; ragged or sparse ones [batch, labels]. "
            f"Received: {type(y_true).__name__} of shape {y_true.shape}, for tokens of shape {lead}"
        )
