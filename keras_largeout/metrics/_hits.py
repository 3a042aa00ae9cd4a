"""The predicted ids that are labels of their row, found without an array over all labels."""

from typing import NamedTuple

import tensorflow as tf

from keras_largeout.ops.embedding.kinds import values_of, with_values
from keras_largeout.ops.labels import label_lists


class Hits(NamedTuple):
    """The hits of a batch of n rows.

    `hit`: bool `[n, k]`, whether a prediction is a label of its row. `ids`: int64 `[n, k]`, the predictions.
    `row`, `label`: int64 `[pairs]`, every (row, label) once, ordered by row.
    """

    hit: tf.Tensor
    ids: tf.Tensor
    row: tf.Tensor
    label: tf.Tensor

    def labels_per_row(self):
        """Return int64 `[n]`."""
        return tf.math.unsorted_segment_sum(tf.ones_like(self.row), self.row, tf.shape(self.ids)[0])


def find_hits(y_true, y_pred, k, num_classes=None):
    """Return the `Hits` of labels and predictions.

    Args:
        y_true: labels as `label_lists` takes them, the rows being the tokens.
        y_pred: int `[..., >= k]`, the best first; or a dict with it at "ids". Strings where labels are
            strings, "" being none.
        k: int.
        num_classes: int, or None: not known.

    Raises:
        ValueError: `y_pred` are not ids, or fewer than k, or shapes that do not belong together.
    """
    ids = tf.convert_to_tensor(y_pred["ids"] if isinstance(y_pred, dict) else y_pred)
    if ids.dtype == tf.string:
        y_true, ids = _hashed(y_true), _hashed(ids)
    if not ids.dtype.is_integer or ids.shape.rank is None or ids.shape.rank < 2 or (ids.shape[-1] or k) < k:
        raise ValueError(
            f"`y_pred` must be ids [..., n], n at least k={k}, as the predictor of a head gives them. "
            f"Received: y_pred of shape {ids.shape} and dtype {ids.dtype.name}"
        )
    lead = ids.shape[:-1], tf.shape(ids)[:-1]
    ids = tf.cast(tf.reshape(ids[..., :k], [-1, k]), tf.int64)
    lists = label_lists(y_true, lead, num_classes)
    row, label, _ = lists._replace(labels=tf.maximum(lists.labels, -1)).pairs()  # others may be ignored
    # tf.unique keeps the order of first occurrence. Ids may be as large as int64, so places stand for them.
    labels, place = tf.unique(label, tf.int64)
    count = tf.maximum(tf.size(labels, tf.int64), 1)
    keys = tf.unique(row * count + place).y
    row, label = keys // count, tf.gather(labels, keys % count)
    same = tf.gather(ids, row) == label[:, None]
    hit = tf.math.unsorted_segment_max(tf.cast(same, tf.int32), row, tf.shape(ids)[0]) > 0
    return Hits(hit, ids, row, label)


def _hashed(strings):
    """Return strings of any kind as int64 numbers: "" as -1."""
    if not isinstance(strings, (tf.RaggedTensor, tf.SparseTensor)):
        strings = tf.convert_to_tensor(strings)
    values = values_of(strings)
    numbers = tf.strings.to_hash_bucket_fast(values, 2**63 - 1)
    return with_values(strings, tf.where(values == "", tf.constant(-1, tf.int64), numbers))
