"""`Counting`: what counts in the graph of a training step, where the step is traced for it."""

import contextlib


class Counting:
    """A base of counters: what is traced inside `counting()` is counted."""

    _contexts = 0

    @property
    def active(self):
        """True inside `counting`."""
        return self._contexts > 0

    @contextlib.contextmanager
    def counting(self):
        """A context in which everything traced is counted. (All replicas are inside it at the same time.)"""
        self._contexts += 1
        try:
            yield
        finally:
            self._contexts -= 1

    def end_step(self):
        """Finish a step. Call it once per step, when all replicas are done."""
