"""A training function that counts while callbacks want it to: for `LoadBalance` and `FeatureReport`."""

import contextlib

import tensorflow as tf


def counted_training(model):
    """Return the `CountedTraining` of a model, one for all its callbacks."""
    if not hasattr(model, "_counted_training"):
        model._counted_training = CountedTraining(model)
    return model._counted_training


class CountedTraining:
    """Gives a model a training function in which counters count, and the old one back.

    A counter has `counting()`, a context in which what is traced is counted, and `end_step()`, which is
    called once per step outside of replicas.

    Args:
        model: `keras.Model`.
    """

    def __init__(self, model):
        self._model = model
        self._counters, self._made_for = [], None
        self._plain = self._counting = None

    def add(self, counters):
        """Add counters, which count from the next `ensure` on."""
        self._counters += [counter for counter in counters if counter not in self._counters]

    def remove(self, counters):
        """Remove counters."""
        self._counters = [counter for counter in self._counters if counter not in counters]
        if not self._counters and self._model.train_function is self._counting:
            self._model.train_function = self._plain

    def ensure(self):
        """Make the function at the beginning of an epoch, unless there is one for these counters."""
        if not self._counters:
            return
        model, now = self._model, self._model.train_function
        if self._made_for != self._counters or (now is not self._counting and now is not self._plain):
            if now is not self._counting:
                self._plain = now
            step = model.train_step
            model.train_step = _counted(step, self._counters)
            model.make_train_function(force=True)
            if hasattr(step, "__func__"):
                del model.train_step  # the method of the class again
            else:
                model.train_step = step
            self._counting, self._made_for = model.train_function, list(self._counters)
        model.train_function = self._counting


def _counted(step, counters):
    """Return the training step `step` of one replica, with `counters` counting."""
    counters = list(counters)

    def end_step(strategy):
        for counter in counters:
            counter.end_step()

    def counted_step(data):
        with contextlib.ExitStack() as stack:
            for counter in counters:
                stack.enter_context(counter.counting())
            logs = step(data)
        tf.distribute.get_replica_context().merge_call(end_step)
        return logs

    return counted_step
