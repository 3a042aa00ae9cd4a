"""`ExtremeClassification`: a file in the Extreme Classification Repository's text format."""

import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from keras_largeout._checks import positive_int
from keras_largeout.datasets import _passes, _xmc_text
from keras_largeout.datasets.labeled_rows import LabeledRows, in_layout


class ExtremeClassification:
    """A data set in the sparse text format of the Extreme Classification Repository.

    A file is a header `rows features labels` and a line for every row, `l1,l2,... f:v f:v ...`: label ids,
    then feature ids with their values, ids counting from 0. A row without labels begins with a blank.

    Args:
        path: the file, plain text or `.gz`.

    Attributes:
        num_rows, num_features, num_labels: ints, what the header says.

    Raises:
        ValueError: the file has no header; while reading, a line is malformed (its number is named, the
            header being line 1) or the header promises another number of rows.

    Example:

    ```python
    train = kl.datasets.ExtremeClassification("train.txt.gz")
    model.fit(train.dataset(64, shuffle=100_000))  # streamed; or train.load().dataset(64, shuffle=True)
    ```

    References:
        - Bhatia et al., "The extreme classification repository: multi-label datasets and code", 2016.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = path
        self.num_rows, self.num_features, self.num_labels = _xmc_text.read_header(path)

    def blocks(self) -> Iterator[LabeledRows]:
        """Yields the rows in order as `LabeledRows` of a few megabytes of text each."""
        for block in _xmc_text.read_blocks(self.path):
            yield LabeledRows(*block, num_features=self.num_features, num_labels=self.num_labels)

    def load(self) -> LabeledRows:
        """Return all rows in memory: `LabeledRows`."""
        return LabeledRows.concatenate([self._no_rows(), *self.blocks()])

    def _no_rows(self):
        return LabeledRows([0], [], [0], [], [], self.num_features, self.num_labels)

    def dataset(
        self, batch_size: int, shuffle: int = 0, seed: int | None = None, layout: str = "ragged"
    ) -> tf.data.Dataset:
        """Return a `tf.data.Dataset` of batches `({"ids", "values"}, labels)`, read from the file in every
        pass.

        Args:
            batch_size: int, rows in a batch; the last one may be smaller.
            shuffle: int, so many rows are held in memory and shuffled among each other, then the next so
                many, again at each pass. 0 keeps the order of the file. Defaults to `0`.
            seed: int, of the shuffle. Defaults to `None`.
            layout: `"ragged"` or `"padded"`. Defaults to `"ragged"`.

        Returns:
            As `LabeledRows.dataset`.
        """
        batch_size = positive_int("batch_size", batch_size)
        finish = in_layout(layout)
        rng = np.random.default_rng(seed)
        empty = self._no_rows()
        ids, values, labels = (
            tf.RaggedTensorSpec([None, None], part.dtype, 1)
            for part in (empty.features, empty.values, empty.labels)
        )

        def batches():
            window = max(shuffle, batch_size) // batch_size * batch_size
            for rows in _passes.regroup(self.blocks(), window, len, _part, LabeledRows.concatenate):
                order = rng.permutation(len(rows)) if shuffle else np.arange(len(rows))
                for start in range(0, len(rows), batch_size):
                    yield rows.take(order[start : start + batch_size]).batch()

        dataset = tf.data.Dataset.from_generator(
            batches, output_signature=({"ids": ids, "values": values}, labels)
        )
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(-(-self.num_rows // batch_size)))
        return dataset.map(finish).prefetch(4)


def _part(rows, part):
    return rows.take(np.arange(part.start, part.stop))
