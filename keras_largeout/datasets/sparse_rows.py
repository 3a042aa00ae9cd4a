"""`SparseRows`: a wide sparse matrix in memory with a target for each row, and batches of it."""

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout._checks import check_one_of, positive_int

LAYOUTS = ("sparse", "ragged")


class SparseRows:
    """Rows of a sparse matrix that are batched as they are: no batch is ever made dense.

    Args:
        features: a SciPy sparse matrix `[rows, num_features]` (such as of `scipy.sparse.hstack`, or of
            scikit-learn's FeatureHasher), or the parts of one in CSR: `(indptr, indices, data, shape)`.
        targets: None, or an array `[rows, ...]`: what goes with each row. Defaults to `None`.

    Attributes:
        splits: int64 `[rows + 1]`: row i has the elements `splits[i] : splits[i + 1]`.
        ids: int64 `[n]`, the columns of the elements.
        values: float32 `[n]`.
        targets: as given, an array, or None.
        shape: `(rows, num_features)`.

    Raises:
        ValueError: row pointers that decrease, or do not go from 0 to the number of elements; columns outside
            `[0, num_features)`; columns and values, or rows and targets, of different numbers.

    Example:

    ```python
    x = sklearn.feature_extraction.FeatureHasher(2**24).transform(samples)
    inputs = keras.Input((2**24,), sparse=True)
    model = kl.Model(inputs, kl.layers.SparseDense(1, activation="sigmoid")(inputs))
    model.compile(kl.optimizers.Ftrl(0.1), "binary_crossentropy")
    model.fit(kl.datasets.SparseRows(x, clicked).dataset(4096, shuffle=True))
    ```
    """

    def __init__(self, features: Any, targets: ArrayLike | None = None) -> None:
        if hasattr(features, "tocsr"):
            matrix = features.tocsr()
            features = matrix.indptr, matrix.indices, matrix.data, matrix.shape
        indptr, indices, data, shape = features
        self.splits, self.ids = np.asarray(indptr, np.int64), np.asarray(indices, np.int64)
        self.values, self.shape = np.asarray(data, np.float32), tuple(int(n) for n in shape)
        self.targets = None if targets is None else np.asarray(targets)
        self._check()

    def _check(self):
        rows, columns = self.shape
        if len(self.splits) != rows + 1:
            raise ValueError(
                f"`indptr` must have one number more than there are rows, {rows + 1}. "
                f"Received: {len(self.splits)}"
            )
        if len(self.values) != len(self.ids):
            raise ValueError(
                f"`indices` and `data` must be of one length. Received: {len(self.ids)} and "
                f"{len(self.values)}"
            )
        down = np.flatnonzero(np.diff(self.splits) < 0)
        if len(down):
            i = int(down[0])
            raise ValueError(
                f"`indptr` must not decrease. Received: indptr[{i}]={self.splits[i]}, "
                f"indptr[{i + 1}]={self.splits[i + 1]}"
            )
        if self.splits[0] != 0 or self.splits[-1] != len(self.ids):
            raise ValueError(
                f"`indptr` must go from 0 to the number of elements, {len(self.ids)}. "
                f"Received: from {self.splits[0]} to {self.splits[-1]}"
            )
        bad = np.flatnonzero((self.ids < 0) | (self.ids >= columns))
        if len(bad):
            at = int(bad[0])
            row = int(np.searchsorted(self.splits, at, side="right")) - 1
            raise ValueError(
                f"`indices` must lie in [0, {columns}), the columns. Received: {self.ids[at]} in row {row}"
            )
        if self.targets is not None and len(self.targets) != rows:
            raise ValueError(
                f"`targets` must have one entry for each of the {rows} rows. Received: {len(self.targets)}"
            )

    def __len__(self) -> int:
        return self.shape[0]

    def dataset(
        self, batch_size: int, shuffle: bool = False, seed: int | None = None, layout: str = "sparse"
    ) -> tf.data.Dataset:
        """Return a `tf.data.Dataset` of batches `(x, targets)`, or of `x` alone where there are no targets.

        Args:
            batch_size: int, the rows of a batch; the last one may be smaller.
            shuffle: bool, whether all rows are shuffled, again at each pass. Defaults to `False`.
            seed: int, of the shuffle. Defaults to `None`.
            layout: "sparse": `x` is a float32 `tf.SparseTensor` `[batch, num_features]`. "ragged": a
                dictionary of the int64 `ids` and float32 `values`, `[batch, (n)]` each. Defaults to
                `"sparse"`.

        Raises:
            ValueError: another layout, or a `batch_size` that is no positive integer.
        """
        batch_size = positive_int("batch_size", batch_size)
        check_one_of("layout", layout, LAYOUTS)
        splits, width = tf.constant(self.splits), self.shape[1]
        with tf.device("CPU:0"):
            ids, values = tf.constant(self.ids), tf.constant(self.values)
            targets = None if self.targets is None else tf.constant(self.targets)
        rows = tf.data.Dataset.range(len(self))
        if shuffle:
            rows = rows.shuffle(max(1, len(self)), seed=seed)

        def gather(chosen):
            if shuffle:
                lengths = tf.gather(splits, chosen + 1) - tf.gather(splits, chosen)
                local = tf.concat([[0], tf.cumsum(lengths)], 0)
                shift = tf.repeat(tf.gather(splits, chosen) - local[:-1], lengths)
                at = shift + tf.range(local[-1])
                of_batch = tf.gather(ids, at), tf.gather(values, at)
            else:  # rows in a row
                first, last = splits[chosen[0]], splits[chosen[-1] + 1]
                local = splits[chosen[0] : chosen[-1] + 2] - first
                of_batch = ids[first:last], values[first:last]
            x = _laid_out(layout, local, *of_batch, width)
            return x if targets is None else (x, tf.gather(targets, chosen))

        return rows.batch(batch_size).map(gather, num_parallel_calls=2).prefetch(4)


def _laid_out(layout, splits, ids, values, width):
    if layout == "ragged":
        parts = {"ids": ids, "values": values}
        return {key: tf.RaggedTensor.from_row_splits(p, splits, validate=False) for key, p in parts.items()}
    count = tf.shape(splits, tf.int64)[0] - 1
    row = tf.repeat(tf.range(count), splits[1:] - splits[:-1])
    x = tf.SparseTensor(tf.stack([row, ids], 1), values, tf.stack([count, width]))
    return tf.sparse.SparseTensor(x.indices, x.values, tf.ensure_shape(x.dense_shape, [2]))
