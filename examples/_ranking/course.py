"""What is measured while a ranking model trains, and its predictions."""

import time

import keras
import numpy as np
import tensorflow as tf
from _ranking import measures


class Predictions:
    """Calling it with a dataset returns `(labels, probabilities, truth)`, float32; truth may be None.

    Args:
        model: from a dict of inputs to probabilities `[batch, 1]`.
    """

    def __init__(self, model):
        signature = {
            name: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype, name)
            for name, tensor in model.input.items()
        }
        self._predict = tf.function(
            lambda inputs: model(inputs, training=False)[:, 0], input_signature=[signature]
        )

    def __call__(self, dataset):
        found = [[part.numpy() for part in (y, self._predict(x), *truth)] for x, y, *truth in dataset]
        labels, probabilities, *truth = map(np.concatenate, zip(*found))
        return labels, probabilities, truth[0] if truth else None


class Course(keras.callbacks.Callback):
    """Measures AUC and log loss on a part of the test rows whenever twice as many rows have been trained.

    The clock stands still while it measures, and begins after the first step, which traces the model.

    Args:
        predictions: a `Predictions`.
        sample: dataset of the rows to measure.
        batch: int, rows in a step.
        total: int or None, rows of the whole training where they are known.
        first: int, rows before the first measurement.

    Attributes:
        rows: trained on so far.
        seconds: trained so far, of the clock; processor: of the processor, all cores together.
        points: for each measurement a dict: rows, seconds, auc, log_loss, and best, the AUC of the true
            probabilities, where these are known.
    """

    def __init__(self, predictions, sample, batch, total=None, first=50_000):
        super().__init__()
        self.predictions = predictions
        self.sample, self.batch, self.total, self.next = sample, batch, total, first
        self.rows, self.points = 0, []
        self.seconds = self.processor = 0.0
        self._timed = 0  # rows while the clock was running

    @property
    def speed(self):
        """`(rows per second of the clock, of the processor)`."""
        return tuple(self._timed / max(spent, 1e-9) for spent in (self.seconds, self.processor))

    def on_train_batch_end(self, batch, logs=None):
        rows = self.batch if self.total is None else min(self.batch, self.total - self.rows)
        if self.rows:
            self.seconds += time.perf_counter() - self._since[0]
            self.processor += time.process_time() - self._since[1]
            self._timed += rows
        self.rows += rows
        if self.rows >= self.next:
            self.measure()
            while self.next <= self.rows:
                self.next *= 2
        self._start()

    def on_train_end(self, logs=None):
        if not self.points or self.points[-1]["rows"] < self.rows:
            self.measure()

    def measure(self):
        labels, found, truth = self.predictions(self.sample)
        point = {"auc": measures.auc(labels, found), "log_loss": measures.log_loss(labels, found)}
        if truth is not None:
            point["best"] = measures.auc(labels, truth)
        self.points.append({"rows": self.rows, "seconds": self.seconds, **point})
        said = f"AUC {point['auc']:.4f}, log loss {point['log_loss']:.4f}"
        print(f"   {self.rows:,} rows, {self.seconds:.0f} s: {said}", flush=True)

    def _start(self):
        self._since = time.perf_counter(), time.process_time()
