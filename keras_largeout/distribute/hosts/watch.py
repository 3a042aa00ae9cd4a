"""A watch that notices hosts that no longer answer: a step would wait for them forever."""

import contextlib
import ctypes
import logging
import re
import sys
import threading
import time
from collections.abc import Sequence

import tensorflow as tf

from keras_largeout.replicas._tensorflow import abort_collectives, peer_answers

_LOG = logging.getLogger("keras_largeout")
_SECONDS = 1.0  # between two questions
_PATIENCE = 10.0  # for a host that is there and does not answer: TensorFlow has as much
_REFUSALS = 2  # questions in a row that nobody was there to answer: its process has ended
# What TensorFlow raises where another host is gone.
_OF_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)


def _keep(error):
    """Keep an error alive, and the data iterator that its frames hold, until this process ends.

    The end of an iterator waits for the thread that tunes its pipeline, and in TensorFlow 2.21 the call that
    wakes that thread may come a moment too early. It then sleeps on for up to 60 seconds.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(error))


class HostLostError(RuntimeError):
    """Another synchronous host ended, or stood still for too long.

    Attributes:
        names: list of str, the hosts that were lost.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        super().__init__(
            f"{' and '.join(self.names)} {'was' if len(self.names) == 1 else 'were'} lost. Start the script "
            "again on the hosts that there are: with kl.callbacks.BackupAndRestore training goes on from the "
            "last backup."
        )


class HostWatch:
    """Asks every other host again and again whether it is there, each in its own thread.

    When one is lost, what this process waits for together with others ends in an error. TensorFlow notices
    too, after 10 seconds without a sign of a host, but not which host was the first: those that end because
    of it are as silent.

    Args:
        cluster: `Cluster` without parameter servers, whose hosts have all come.
        patience: float, seconds that a host may be silent. TensorFlow itself has no more than 10.

    Attributes:
        lost: list of the names of the hosts that were lost, in that order.
    """

    def __init__(self, cluster, patience=_PATIENCE):
        self.lost, self._patience = [], min(patience, _PATIENCE)
        _LOG.warning("A host is given up after %g s without an answer.", self._patience)
        self._cluster, self._noticed, self._ending = cluster, threading.Condition(), threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(job, index), name="keras_largeout_hosts", daemon=True)
            for job, index, _ in cluster.others()
        ]
        for thread in self._threads:
            thread.start()

    def _watch(self, job, index):
        answered, refused = time.monotonic(), 0
        while not self._ending.wait(_SECONDS):
            answer = peer_answers(job, index, min(5 * _SECONDS, self._patience))
            if answer:
                answered, refused = time.monotonic(), 0
                continue
            refused += answer is False
            if refused >= _REFUSALS or time.monotonic() - answered > self._patience:
                self._lost(job, index)
                return

    def _lost(self, job, index):
        with self._noticed:
            self.lost.append(self._cluster.name(job, index))
            self._noticed.notify_all()
        abort_collectives(str(HostLostError(self.lost[:1])))

    def end(self, seconds):
        """Asks no more. The `seconds` pass while questions come back: TensorFlow goes with this process."""
        deadline = time.monotonic() + seconds
        self._ending.set()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        time.sleep(max(0.0, deadline - time.monotonic()))

    def who(self, error):
        """Return the names of the hosts that were lost, after a moment in which this is noticed everywhere.

        Args:
            error: what TensorFlow raised. It names hosts that gave no sign of themselves.
        """
        _keep(error)
        deadline = time.monotonic() + 8 * _SECONDS
        with self._noticed:
            self._noticed.wait_for(lambda: self.lost, timeout=8 * _SECONDS)
            lost = self.lost[:1] or self._silent(str(error))
        # Who ends now is no longer taken for the one that was lost first.
        time.sleep(min(4 * _SECONDS, max(0.0, deadline - time.monotonic())) if lost else 0.0)
        return lost

    @contextlib.contextmanager
    def naming(self):
        """Turns what TensorFlow raises when a host was lost into one `HostLostError`."""
        try:
            yield
        except _OF_LOST as error:
            lost = self.who(error)
            if not lost:
                raise
            raise HostLostError(lost) from None  # TensorFlow has logged what it saw

    def was_lost(self, error):
        """Return whether a lost host caused the error that ends this process; print its name if TensorFlow
        has not.
        """
        lost = self.who(error) if isinstance(error, _OF_LOST) else []
        if lost:
            print(f"{HostLostError.__name__}: {HostLostError(lost)}", file=sys.stderr, flush=True)
        return bool(lost) or isinstance(error, HostLostError)

    def _silent(self, text):
        """Return the names of the hosts that an error of TensorFlow says are unhealthy."""
        found = re.findall(r"/job:(\w+)/replica:0/task:(\d+)", text) if "unhealthy" in text else []
        others = {(job, index) for job, index, _ in self._cluster.others()}
        named = dict.fromkeys((job, int(index)) for job, index in found)
        return [self._cluster.name(*task) for task in named if task in others]
