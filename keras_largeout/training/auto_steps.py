"""`AutoSteps`: how many steps a call of the training function takes, with `steps_per_execution="auto"`."""

from time import perf_counter

import keras

_CALL = 0.02  # seconds that a call should take
_WATCHED = 2.0  # seconds of steps that are timed before the number is chosen
_MOST = 1000
_TRACED = 2  # calls after which a function is certainly traced
_OF_BATCHES = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


class AutoSteps:
    """The number of steps per call in one `fit`.

    A call from Python costs some tenths of a millisecond. So steps of less than 10 ms are taken several per
    call, such that a call takes some 20 ms. They are timed one by one first, for two seconds. Training is the
    same, to the bit.

    Attributes:
        count: int, the steps of the next call.
        called: bool, whether a function has taken them. Another function in its place takes one per call.
        begun: bool, whether a loop takes its calls from here.
    """

    def __init__(self):
        self.count, self._most = 1, 1
        self.begun = self.called = False
        self._watch()

    def _watch(self):
        self._calls = self._steps = self._seconds = 0

    def calls(self, steps, total):
        """Yield `(first step, last step, iterator)` of each call of an epoch.

        Args:
            steps: iterator of the same of single steps.
            total: int, how many steps the epoch has; None where that is unknown: then calls have one step.
        """
        for first, last, iterator in steps:
            began, self.count, self.called = perf_counter(), 1, False
            while self.count < min(self._most, (total or 0) - first):
                following = next(steps, None)
                if following is None:
                    break
                last, self.count = following[1], self.count + 1
            try:
                yield first, last, iterator
                if self.called:
                    self._took(perf_counter() - began)
            finally:
                self.count = 1

    def _took(self, seconds):
        """Choose the number again, once enough steps were timed."""
        self._calls += 1
        if self._calls <= _TRACED:
            return
        self._steps, self._seconds = self._steps + self.count, self._seconds + seconds
        if self._seconds < _WATCHED:
            return
        self._most = min(_MOST, max(1, int(_CALL * self._steps / self._seconds)))
        self._watch()


def wants_every_batch(callback):
    """Return whether a callback does something between two steps."""
    if isinstance(callback, keras.callbacks.ProgbarLogger):
        return False
    if isinstance(callback, (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)):
        return callback.save_freq != "epoch"
    plain = keras.callbacks.Callback
    return any(
        getattr(getattr(callback, name), "__func__", None) is not getattr(plain, name) for name in _OF_BATCHES
    )
