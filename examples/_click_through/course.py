"""What is read and how fast: the batches of a table, and a line now and then."""

import time

import keras
from _ranking.course import Predictions

import keras_largeout as kl

_HELD_OUT = 10  # each tenth row, where there are no files for the test


class Batches:
    """The batches of a table, read as they are asked for.

    Args:
        table: a `tables.Table`.
        batch: int, rows.
        shuffle: int, rows that are mixed.
        seed: int.
        skip: bool, whether malformed rows are skipped.
    """

    def __init__(self, table, batch, shuffle, seed, skip=False):
        uses = {"categories": table.categories, "numbers": table.numbers, "target": table.label}
        uses["on_malformed"] = "skip" if skip else "error"
        self.files = kl.datasets.TabularFiles(table.train, **uses)
        self._test = kl.datasets.TabularFiles(table.test, **uses) if table.test else None
        self._batch, self._shuffle, self._seed = batch, shuffle, seed

    @property
    def trained(self):
        """How many of the rows that the pass has read are for training."""
        read = self.files.rows_read
        return read if self._test else read - -(-read // _HELD_OUT)

    def train(self, mixed=True):
        keep = None if self._test else lambda row: row % _HELD_OUT != 0
        return self.files.dataset(self._batch, self._shuffle if mixed else 0, self._seed, keep=keep)

    def test(self):
        if self._test:
            return self._test.dataset(self._batch)
        return self.files.dataset(self._batch, keep=lambda row: row % _HELD_OUT == 0)


class Speed(keras.callbacks.Callback):
    """Counts rows while a model trains, and says so now and then.

    The first step of an epoch is not timed: it traces, and waits for the first block of rows.

    Args:
        batches: the `Batches` that are read.
        every: seconds between two lines.

    Attributes:
        rows: all rows trained on; seconds: of the clock.
    """

    def __init__(self, batches, every=10):
        super().__init__()
        self.batches, self.files, self.every, self.rows, self.seconds = batches, batches.files, every, 0, 0.0

    @property
    def rate(self):
        return self.rows / max(self.seconds, 1e-9)

    def on_epoch_begin(self, epoch, logs=None):
        self._begun = self._said = None

    def on_train_batch_end(self, batch, logs=None):
        now, read = time.perf_counter(), self.batches.trained
        if self._begun is None:
            self._begun = self._said = now
            self._first = read
        if now - self._said >= self.every:
            self._said = now
            share = self.files.bytes_read / self.files.bytes
            rate = (read - self._first) / (now - self._begun)
            print(
                f"   {share:4.0%} read, {rate:,.0f} rows per second, loss {float(logs['loss']):.4f}",
                flush=True,
            )

    def on_epoch_end(self, epoch, logs=None):
        self.rows += self.batches.trained
        self.seconds += time.perf_counter() - self._begun
        print(
            f"   epoch {epoch + 1}: loss {logs['loss']:.4f} of the rows before they were learned", flush=True
        )


def predict(model, hashed, batches):
    """Return `(labels, probabilities)` of all rows."""
    labels, probabilities, _ = Predictions(model)(_hashed(hashed, batches))
    return labels[:, 0], probabilities


def _hashed(hashed, batches):
    return batches.map(hashed, num_parallel_calls=2).prefetch(4)
