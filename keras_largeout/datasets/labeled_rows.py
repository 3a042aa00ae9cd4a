"""`LabeledRows`: sparse rows with their labels in memory, and what comes out of them as batches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout._checks import check_one_of, positive_int

LAYOUTS = ("ragged", "padded")


class LabeledRows:
    """Rows of sparse features, each with any number of labels. All arguments are attributes.

    Args:
        label_splits: int `[rows + 1]`: row i has the labels `labels[label_splits[i] : label_splits[i + 1]]`.
        labels: int `[n]`, label ids.
        feature_splits: int `[rows + 1]`, likewise.
        features: int `[m]`, feature ids.
        values: float `[m]`, their values.
        num_features: int, the feature ids are `0 .. num_features - 1`.
        num_labels: int, the label ids are `0 .. num_labels - 1`.

    Example:

    ```python
    # A bag of words of scikit-learn.
    bags = TfidfVectorizer().fit_transform(texts)
    labels = MultiLabelBinarizer(sparse_output=True).fit_transform(tags)
    rows = kl.datasets.LabeledRows.from_scipy(bags, labels)
    model.fit(rows.dataset(64, shuffle=True))
    ```
    """

    def __init__(
        self,
        label_splits: ArrayLike,
        labels: ArrayLike,
        feature_splits: ArrayLike,
        features: ArrayLike,
        values: ArrayLike,
        num_features: int,
        num_labels: int,
    ) -> None:
        self.label_splits, self.labels = np.asarray(label_splits, np.int64), _ids(labels, num_labels)
        self.feature_splits, self.features = (
            np.asarray(feature_splits, np.int64),
            _ids(features, num_features),
        )
        self.values = np.asarray(values, np.float32)
        self.num_features, self.num_labels = int(num_features), int(num_labels)

    @classmethod
    def from_scipy(cls, features: Any, labels: Any) -> "LabeledRows":
        """Return the rows of SciPy sparse matrices `[rows, num_features]` and `[rows, num_labels]`.

        Args:
            features: a SciPy sparse matrix of numbers.
            labels: a SciPy sparse matrix: a row has the labels that are not 0.

        Raises:
            ValueError: they have different numbers of rows.
        """
        features, labels = features.tocsr(), labels.tocsr()
        if features.shape[0] != labels.shape[0]:
            raise ValueError(
                "`features` and `labels` must have the same rows. "
                f"Received: features.shape={features.shape}, labels.shape={labels.shape}"
            )
        if np.any(labels.data == 0):
            labels = labels.copy()
            labels.eliminate_zeros()
        num_features, num_labels = features.shape[1], labels.shape[1]
        return cls(
            labels.indptr,
            labels.indices,
            features.indptr,
            features.indices,
            features.data,
            num_features,
            num_labels,
        )

    @classmethod
    def concatenate(cls, blocks: Sequence["LabeledRows"]) -> "LabeledRows":
        """Return the rows of several `LabeledRows`, in order.

        Args:
            blocks: list of `LabeledRows`, at least one.
        """
        blocks = list(blocks)
        return cls(
            _concat_splits([b.label_splits for b in blocks]),
            np.concatenate([b.labels for b in blocks]),
            _concat_splits([b.feature_splits for b in blocks]),
            np.concatenate([b.features for b in blocks]),
            np.concatenate([b.values for b in blocks]),
            blocks[0].num_features,
            blocks[0].num_labels,
        )

    def __len__(self) -> int:
        return len(self.label_splits) - 1

    def take(self, rows: ArrayLike) -> "LabeledRows":
        """Return some of the rows.

        Args:
            rows: int array, the numbers of the rows, in the order of the result.
        """
        rows = np.asarray(rows)
        label_splits, labels = _picked(self.label_splits, rows)
        feature_splits, features = _picked(self.feature_splits, rows)
        return LabeledRows(
            label_splits,
            self.labels[labels],
            feature_splits,
            self.features[features],
            self.values[features],
            self.num_features,
            self.num_labels,
        )

    def label_counts(self) -> np.ndarray:
        """Return how many rows have each label: int64 `[num_labels]`. (A label given twice in a row counts
        once.)
        """
        row = np.repeat(np.arange(len(self)), np.diff(self.label_splits))
        pairs = np.unique(row * self.num_labels + self.labels)
        return np.bincount(pairs % max(1, self.num_labels), minlength=self.num_labels)

    def batch(
        self, layout: str = "ragged"
    ) -> tuple[dict[str, tf.Tensor | tf.RaggedTensor], tf.Tensor | tf.RaggedTensor]:
        """Return all rows as one batch: `({"ids", "values"}, labels)`, see `dataset`.

        Args:
            layout: as for `dataset`. Defaults to `"ragged"`.
        """
        ids = tf.RaggedTensor.from_row_splits(self.features, self.feature_splits)
        values = tf.RaggedTensor.from_row_splits(self.values, self.feature_splits)
        labels = tf.RaggedTensor.from_row_splits(self.labels, self.label_splits)
        return in_layout(layout)({"ids": ids, "values": values}, labels)

    def dataset(
        self, batch_size: int, shuffle: bool = False, seed: int | None = None, layout: str = "ragged"
    ) -> tf.data.Dataset:
        """Return a `tf.data.Dataset` of batches `({"ids": features, "values": values}, labels)`.

        Args:
            batch_size: int, rows in a batch; the last one may be smaller.
            shuffle: bool, whether all rows are shuffled, again at each pass. Defaults to `False`.
            seed: int, of the shuffle. Defaults to `None`.
            layout: `"ragged"`, or `"padded"` to the longest row of a batch: features with id 0 and value 0,
                labels with -1. Defaults to `"ragged"`.

        Returns:
            A dataset of int32 ids, float32 values and int32 labels, each `[batch, ragged]` (or `[batch, n]`);
            int64 where ids need it.
        """
        batch_size = positive_int("batch_size", batch_size)
        finish = in_layout(layout)
        (inputs, labels) = self.batch()
        rows = tf.data.Dataset.range(len(self))
        if shuffle:
            rows = rows.shuffle(max(1, len(self)), seed=seed)

        def gather(chosen):
            return finish(
                {key: tf.gather(part, chosen) for key, part in inputs.items()}, tf.gather(labels, chosen)
            )

        return rows.batch(batch_size).map(gather, num_parallel_calls=2).prefetch(4)


def in_layout(layout):
    """Return the function that brings a ragged batch into a layout.

    Raises:
        ValueError: there is no such layout.
    """
    check_one_of("layout", layout, LAYOUTS)

    def padded(inputs, labels):
        return {key: part.to_tensor(0) for key, part in inputs.items()}, labels.to_tensor(-1)

    return padded if layout == "padded" else lambda inputs, labels: (inputs, labels)


def _ids(ids, count):
    return np.asarray(ids, np.int32 if count <= 2**31 else np.int64)


def _concat_splits(splits):
    """Return row splits of several blocks after each other."""
    return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(s) for s in splits]))])


def _picked(splits, rows):
    """Return the row splits of some rows, and where their elements are."""
    lengths = np.diff(splits)[rows]
    picked = np.concatenate([[0], np.cumsum(lengths)])
    return picked, np.repeat(splits[rows] - picked[:-1], lengths) + np.arange(picked[-1])
