"""What the extreme classification example measures after each epoch."""

import time

import keras


class Epochs(keras.callbacks.Callback):
    """Adds metrics of the predictions for some data to the logs of every epoch, and times the epochs.

    Args:
        predictor: a model from inputs to `{"ids": ...}`.
        data: dataset of (inputs, label ids).
        metrics: list of metrics of (label ids, predictions).

    Attributes:
        seconds: of training, for each epoch.
        scores: a dict of the metrics' values, for each epoch. (In the logs they are in percent.)
    """

    def __init__(self, predictor, data, metrics):
        super().__init__()
        self.predictor, self.data, self.metrics = predictor, data, metrics
        self.seconds, self.scores = [], []

    def on_epoch_begin(self, epoch, logs=None):
        self._begun = time.perf_counter()

    def on_epoch_end(self, epoch, logs):
        self.seconds.append(time.perf_counter() - self._begun)
        for metric in self.metrics:
            metric.reset_state()
        for inputs, labels in self.data:
            found = self.predictor(inputs, training=False)
            for metric in self.metrics:
                metric.update_state(labels, found)
        self.scores.append({metric.name: float(metric.result()) for metric in self.metrics})
        logs.update({f"{name} %": round(100 * score, 2) for name, score in self.scores[-1].items()})
