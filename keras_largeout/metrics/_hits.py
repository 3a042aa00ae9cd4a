"""Which of the predicted ids are labels of their row, without an array over all labels."""

from typing import NamedTuple

import tensorflow as tf


class Hits(NamedTuple):
    """What is known of a batch of n rows.

    `hit`: bool `[n, k]`, whether a prediction is a label of its row. `ids`: int64 `[n, k]`, the predictions.
    `row`, `label`: int64 `[pairs]`, every (row, label) once, ordered by row.
    """

    hit: tf.Tensor
    ids: tf.Tensor
    row: tf.Tensor
    label: tf.Tensor

    def labels_per_row(self):
        """int64 `[n]`."""
        return tf.math.bincount(tf.cast(self.row, tf.int32), minlength=tf.shape(self.ids)[0], dtype=tf.int64)


def find_hits(y_true, y_pred, k, num_classes=None):
    """The `Hits` of labels and predictions.

    Args:
        y_true: label ids: `[..., n]` padded with -1, a `tf.RaggedTensor` or `tf.SparseTensor` `[batch, n]`,
            or one label per row, `[...]`. A `tf.SparseTensor` that is `[batch, num_classes]`, or whose values
            are no integers, is a multi-hot matrix: its columns are the labels.
        y_pred: int `[..., >= k]`, the best first; or a dict with it at "ids".
        k: int.
        num_classes: int, or None: no matrix of integers is multi-hot.

    Raises:
        ValueError: `y_pred` are not ids, or fewer than k, or shapes that do not belong together.
    """
    ids = tf.convert_to_tensor(y_pred["ids"] if isinstance(y_pred, dict) else y_pred)
    if not ids.dtype.is_integer or ids.shape.rank is None or ids.shape.rank < 2 or (ids.shape[-1] or k) < k:
        raise ValueError(
            f"`y_pred` must be ids [..., n], n at least k={k}, as the predictor of a head gives them. "
            f"Received: y_pred of shape {ids.shape} and dtype {ids.dtype.name}"
        )
    rank = ids.shape.rank
    ids = tf.cast(tf.reshape(ids[..., :k], [-1, k]), tf.int64)
    row, label = _pairs(y_true, rank, num_classes)
    # tf.unique keeps the order of first occurrence.
    key_size = tf.maximum(tf.reduce_max(tf.concat([label, tf.zeros([1], tf.int64)], 0)) + 1, 1)
    keys = tf.unique(row * key_size + label).y
    row, label = keys // key_size, keys % key_size
    same = tf.gather(ids, row) == label[:, None]
    hit = tf.math.unsorted_segment_max(tf.cast(same, tf.int32), row, tf.shape(ids)[0]) > 0
    return Hits(hit, ids, row, label)


def _pairs(y_true, rank, num_classes):
    """The rows and labels that are there, int64 `[pairs]` each, ordered by row."""
    if isinstance(y_true, tf.RaggedTensor):
        if y_true.shape.rank != 2 or rank != 2:
            _refuse(y_true, rank)
        row, label = y_true.value_rowids(), y_true.flat_values
    elif isinstance(y_true, tf.SparseTensor):
        if y_true.shape.rank != 2 or rank != 2:
            _refuse(y_true, rank)
        row, label = y_true.indices[:, 0], y_true.values
        if not label.dtype.is_integer or y_true.shape[1] == (num_classes or -1):
            label = tf.where(tf.cast(label, tf.float32) != 0, y_true.indices[:, 1], -1)
    else:
        y_true = tf.convert_to_tensor(y_true)
        if y_true.shape.rank == rank - 1:
            y_true = y_true[..., None]
        if y_true.shape.rank != rank:
            _refuse(y_true, rank)
        y_true = tf.reshape(y_true, [-1, tf.shape(y_true)[-1]])
        row = tf.broadcast_to(tf.range(tf.shape(y_true, tf.int64)[0])[:, None], tf.shape(y_true))
        row, label = tf.reshape(row, [-1]), tf.reshape(y_true, [-1])
    there = label >= 0
    return (tf.cast(tf.boolean_mask(part, there), tf.int64) for part in (row, label))


def _refuse(y_true, rank):
    raise ValueError(
        "`y_true` must be label ids [batch, n] (padded with -1, ragged or sparse), or one id per row. "
        f"Received: {type(y_true).__name__} of shape {y_true.shape}, with y_pred of rank {rank}"
    )
