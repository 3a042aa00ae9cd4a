"""Records which rows of which tables a model looks up, inside the context `recording`."""

import contextvars

import numpy as np
import tensorflow as tf

from keras_largeout._context import setting
from keras_largeout.ops.embedding.kinds import values_of

_recorder = contextvars.ContextVar("keras_largeout_recorder", default=None)


class Recorder:
    """Counts how often each id is looked up, for each table."""

    def __init__(self):
        self._parts = {}

    def add(self, name, ids):
        """Counts `ids` (integers of any shape) of the table `name`; those below 0 are padding."""
        found, times = np.unique(np.asarray(ids).reshape(-1), return_counts=True)
        self._parts.setdefault(name, []).append((found[found >= 0], times[found >= 0]))

    def counts(self, name, rows):
        """Return float64 `[rows]`: how often each row was looked up; None where the table was not used at
        all.
        """
        total = np.zeros(rows)
        for found, times in self._parts.get(name, ()):
            inside = found < rows
            total[found[inside]] += times[inside]
        return total if total.any() else None


def recording(recorder):
    """Return a context in which eager calls of layers in this thread report the ids that they look up."""
    return setting(_recorder, recorder)


def record(name, ids):
    """Reports the ids that the layer `name` looks up. Does nothing outside `recording`, or in a graph."""
    recorder = _recorder.get()
    if recorder is not None and tf.executing_eagerly():
        recorder.add(name, values_of(ids))
