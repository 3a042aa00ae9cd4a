"""Targets of which a token may have any number: one list of labels after the other."""

import contextlib
from typing import NamedTuple

import tensorflow as tf


def on_the_host():
    """Return a context for what is made of labels: the ops that take them read them in host memory.

    Made on a GPU they would be waited for. Without a GPU the context changes nothing.
    """
    return tf.device("CPU:0") if tf.config.list_logical_devices("GPU") else contextlib.nullcontext()


def is_on_gpu(device):
    """Return whether `device`, the name that a tensor or an op has, is a GPU."""
    if not device:
        return False
    gpus = (gpu.name for gpu in tf.config.list_logical_devices("GPU"))
    specs = [tf.DeviceSpec.from_string(name) for name in (device, *gpus)]
    (kind, *others) = [(spec.device_type, spec.device_index) for spec in specs]
    return kind in others


class LabelLists(NamedTuple):
    """The labels of n tokens.

    `labels`: int32 or int64 `[L]`, -1 being none. `row_splits`: int64 `[n + 1]`: token i has the labels
    `labels[row_splits[i] : row_splits[i + 1]]`. `weights`: float32 `[L]`, or None for ones.
    """

    labels: tf.Tensor
    row_splits: tf.Tensor
    weights: tf.Tensor = None

    def of_tokens(self, active):
        """Drop the labels of tokens at which `active` (bool, n in all) is False."""
        with on_the_host():
            kept = tf.gather(tf.reshape(active, [-1]), self._tokens())
            return self._replace(labels=tf.where(kept, self.labels, -1))

    def present(self, like):
        """Return which tokens have a label, bool of the shape of `like`."""
        shape = tf.shape(like)  # where `like` is: a GPU need not send it
        with on_the_host():
            labels = tf.cumsum(tf.cast(self.labels != -1, tf.int64))
            before = tf.gather(tf.pad(labels, [[1, 0]]), self.row_splits)
            return tf.reshape(before[1:] > before[:-1], shape)

    def pairs(self):
        """Return each label with its token, int64 `[pairs]` both, ordered by token, and the weights or
        None.
        """
        with on_the_host():
            there = tf.squeeze(tf.where(self.labels != -1), 1)
            found = (self._tokens(), tf.cast(self.labels, tf.int64), self.weights)
            return tuple(None if part is None else tf.gather(part, there) for part in found)

    def weighed(self, weights):
        """Return these lists with `weights`, float `[L]`, and their sum for each token, float32 `[n]`."""
        with on_the_host():
            weights = tf.where(self.labels == -1, 0.0, tf.cast(weights, tf.float32))
            sums = tf.math.unsorted_segment_sum(weights, self._tokens(), tf.size(self.row_splits) - 1)
            return self._replace(weights=weights), sums

    def _tokens(self):
        """Return the token of each label, int64 `[L]`.

        (`tf.repeat` adds 59 nodes to a graph, `tf.searchsorted` 23.)
        """
        ends = tf.expand_dims(self.row_splits[1:], 0)
        places = tf.expand_dims(tf.range(tf.size(self.labels, tf.int64)), 0)
        return tf.squeeze(tf.raw_ops.UpperBound(sorted_inputs=ends, values=places, out_type=tf.int64), 0)


def are_lists(y_true, lead):
    """Return whether a token may have several targets, by their type and shape.

    Args:
        y_true: targets in any layout of `label_lists`.
        lead: `tf.TensorShape` of the tokens.
    """
    if isinstance(y_true, (tf.RaggedTensor, tf.SparseTensor)):
        return True
    shape = tf.convert_to_tensor(y_true).shape
    if shape.rank is None or lead.rank is None:  # of the targets: batches of several ranks were seen
        return lead.rank is not None
    return shape.rank == lead.rank + 1 and shape[-1] != 1 and shape[:-1].is_compatible_with(lead)


def label_lists(y_true, lead, num_classes=None, ignore_class=None):
    """Return the `LabelLists` of targets in any of the layouts.

    Args:
        y_true: label ids: int `[..., m]`, -1 being none; `[...]`, one label per token; a `tf.RaggedTensor`
            `[batch, m]`; a `tf.SparseTensor` `[batch, m]` of ids. Or a multi-hot matrix: its columns are the
            labels, its values their weights (0: no label). That is a `tf.SparseTensor` that is
            `[batch, num_classes]`, or whose values are no integers; and a dense `[..., num_classes]` of
            bools, of integers that are all 0 or 1, or of floats from 0 on.
        lead: `tf.TensorShape` of the tokens, `[...]`, of known rank; and its dynamic value, int `[rank]`.
        num_classes: int, or None: not known.
        ignore_class: int or None, a label that is left out.

    Raises:
        ValueError: the shapes do not belong together.
        ValueError, in a graph tf.errors.InvalidArgumentError: a multi-hot matrix of other columns.
    """
    with on_the_host():
        lists = _label_lists(y_true, *lead, num_classes)
        if ignore_class is None:
            return lists
        ignored = tf.cast(lists.labels, tf.int64) == ignore_class
        return lists._replace(labels=tf.where(ignored, -1, lists.labels))


def _label_lists(y_true, static, dynamic, num_classes):
    if isinstance(y_true, tf.SparseTensor):
        _require(y_true.shape.rank == 2 and static.rank == 1, y_true, static)
        return _from_sparse(tf.sparse.reorder(y_true), dynamic[0], num_classes)
    if isinstance(y_true, tf.RaggedTensor):
        _require(y_true.shape.rank == 2 and y_true.ragged_rank == 1 and static.rank == 1, y_true, static)
        return LabelLists(as_ids(y_true.flat_values), tf.cast(y_true.row_splits, tf.int64))
    y_true = tf.convert_to_tensor(y_true)
    shape = y_true.shape
    if shape.rank is not None:
        one_each = shape.rank == static.rank and shape.is_compatible_with(static)
        several = shape.rank == static.rank + 1 and shape[:-1].is_compatible_with(static)
        _require(one_each or several, y_true, static)
    # Written so that it holds for both, and without any tokens.
    tokens = tf.reduce_prod(tf.cast(dynamic, tf.int64))
    width = tf.size(y_true, tf.int64) // tf.maximum(tokens, 1)
    values, splits = tf.reshape(y_true, [-1]), tf.range(tokens + 1) * width
    if shape.rank == static.rank:
        return LabelLists(as_ids(values), splits)
    if shape.rank is not None and shape[-1] not in (num_classes, None):
        num_classes = None  # it is no multi-hot matrix, unless a wrong one
    labels, weights = _from_dense(values, tokens, width, num_classes)
    return LabelLists(labels, splits, weights)


def _from_dense(values, tokens, width, num_classes):
    """Return labels and weights (or None) of `tokens` times `width` values: ids, or a multi-hot matrix."""
    bools, floats = values.dtype == tf.bool, values.dtype.is_floating
    values = tf.cast(values, tf.int32) if bools else values
    zeros_and_ones = (values == 0) | (values == 1)
    multi_hot = tf.constant(False)
    if num_classes is not None:
        fits = (width == num_classes) & (bools or width > 1)
        multi_hot = fits & tf.reduce_all(values >= 0 if floats else zeros_and_ones)
    # Zeros and ones in three columns: ids would have one twice in every row.
    ids = tf.constant(False) if bools else ~tf.reduce_all(zeros_and_ones) | (width < 3)
    if floats:
        ids &= tf.reduce_all(values == tf.round(values))
    _require_ids(multi_hot | ids | (tokens == 0), width)
    labels = as_ids(values)
    if num_classes is None:
        return labels, None
    columns = tf.tile(tf.range(width), [tokens])
    labels = tf.where(multi_hot, tf.where(values != 0, columns, -1), tf.cast(labels, tf.int64))
    return labels, tf.where(multi_hot, tf.cast(values, tf.float32), 1.0) if floats else None


def _from_sparse(y_true, tokens, num_classes):
    row, column = y_true.indices[:, 0], y_true.indices[:, 1]
    splits = tf.searchsorted(row, tf.range(tf.cast(tokens, tf.int64) + 1), out_type=tf.int64)
    if y_true.dtype.is_integer and (num_classes is None or y_true.shape[-1] != num_classes):
        labels = as_ids(y_true.values)
        if num_classes is not None and y_true.shape[-1] is None:
            tf.debugging.assert_none_equal(
                y_true.dense_shape[1],
                tf.constant(num_classes, tf.int64),
                message="`y_true` must have a static width where it is a multi-hot matrix of integers (or be "
                "one of floats). Received: a SparseTensor of label ids, of num_classes columns",
            )
        # Ones alone that are not all in the first column: ids would have one twice in a row.
        _require_ids(tf.reduce_any(labels != 1) | tf.reduce_all(column == 0), y_true.dense_shape[1])
        return LabelLists(labels, splits)
    weights = tf.cast(y_true.values, tf.float32)
    return LabelLists(tf.where(weights != 0, column, -1), splits, weights)


def as_ids(ids):
    """Return class ids of any type as int32 or int64."""
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int64)


def _require_ids(fits, width):
    message = (
        "`y_true` must be label ids padded with -1, or a multi-hot matrix [..., num_classes] (a metric on "
        "ids must be given `num_classes` then). Received: zeros and ones, or fractions; columns:"
    )
    if tf.executing_eagerly() and not fits:
        raise ValueError(f"{message} {width}")
    tf.debugging.Assert(fits, [message, width])


def _require(fits, y_true, lead):
    if not fits:
        raise ValueError(
            "`y_true` must be label ids [batch, n], ragged, sparse or padded with -1; for tokens of more "
            "axes [..., n], padded; or one id for each token. "
            f"Received: {type(y_true).__name__} of shape {y_true.shape}, for tokens of shape {lead}"
        )
