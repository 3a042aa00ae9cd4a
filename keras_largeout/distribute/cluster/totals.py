"""Metrics on the chief: the sums of what the steps of all workers have added."""

import threading
import time

import keras
import numpy as np

_AGE = 0.5  # seconds until running results are computed again, which takes as long as handing out a call


class Totals:
    """The state of a model's metrics, added up from the answers of workers.

    Every metric of Keras and of this package keeps sums, so that the sum over the steps is its state. (A
    maximum, for example, cannot be added up over workers.)

    Args:
        model: `keras.Model`, whose metrics are built.
    """

    def __init__(self, model):
        self._model = model
        self.variables = [v for metric in model.metrics for v in metric.variables]
        self._lock = threading.Lock()
        self.clear()

    def clear(self):
        with self._lock:
            self._sums = [np.zeros(v.shape, np.float64) for v in self.variables]
            self._logs, self._known, self._asked = {}, {}, -np.inf

    def add(self, states, logs):
        """Adds what one call of a step function has given: its metrics' states and its last logs."""
        with self._lock:
            for total, state in zip(self._sums, states):
                total += state
            self._logs = logs

    def running(self):
        """Return the results so far, or as they were a moment ago: a dict of floats, empty before the
        first step.
        """
        now = time.monotonic()
        if now - self._asked < _AGE:
            return self._known
        with self._lock:
            state = [(v, total.astype(v.dtype)) for v, total in zip(self.variables, self._sums)]
            logs = self._logs
        if not logs:
            return {}
        with keras.StatelessScope(state):
            results = self._model.get_metrics_result()
        # A train step of the user's own may log other things; the last step's are then as good as any.
        self._known = results if set(results) == set(logs) or not logs else logs
        self._asked = now
        return self._known

    def write(self):
        """Gives the metrics of the model the sums as their state; the last logs."""
        with self._lock:
            for variable, total in zip(self.variables, self._sums):
                variable.assign(total.astype(variable.dtype))
            return self._logs
