"""Running functions on whichever worker is free: few are in flight at a time, and none is lost."""

import collections
import contextlib
import queue
import threading
import time
import weakref
from concurrent.futures import Future, wait

import tensorflow as tf

from keras_largeout.distribute.cluster.errors import ServerLostError, WorkersSilentError, naming_lost_servers
from keras_largeout.replicas._tensorflow import never_wait_for_other_workers
from keras_largeout.replicas.devices import processes

# Steps in flight per worker: one runs while the batch of the next one travels.
_PER_WORKER = 2
# Seconds that running steps get to end after an error. A lost server never answers.
_GRACE = 5.0

# Seconds between two checks for a lost server while an answer is awaited.
_LOOK = 1.0

_LOST_ANSWER = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)

_dispatchers = weakref.WeakKeyDictionary()  # strategy -> Dispatcher


def dispatcher_of(strategy):
    """Return the `Dispatcher` of a `tf.distribute.ParameterServerStrategy`: there is one."""
    if strategy not in _dispatchers:
        _dispatchers[strategy] = Dispatcher(strategy)
    return _dispatchers[strategy]


class Dispatcher:
    """Hands functions to workers through TensorFlow's `ClusterCoordinator`.

    A function whose worker dies before it has answered runs again on another worker. What it did to weights
    until then is done twice: at most one step per worker that dies. A worker that comes back takes part
    again.

    Args:
        strategy: `tf.distribute.ParameterServerStrategy`.
    """

    def __init__(self, strategy):
        never_wait_for_other_workers()
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self.workers = len(processes("worker"))
        self.limit = _PER_WORKER * max(1, self.workers)
        self._free = threading.Semaphore(self.limit)
        # A thread waits for each answer. They don't wait in order: one worker may stand still.
        self._waiting = _DaemonThreads(self.limit)
        self._answers = collections.deque()

    def submit(self, function, args, receive=None):
        """Schedules `function(*args)`; waits while enough functions are in flight.

        Args:
            function: `tf.function`.
            args: tuple of its arguments: structures of tensors, or per-worker values.
            receive: called with the answer, in some thread, as soon as it is here.

        Returns:
            A `concurrent.futures.Future` of the answer, tensors on this process.

        Raises:
            What an earlier function raised; `distribute.ServerLostError` where a parameter server died;
            `WorkersSilentError` where every worker stands still.
        """
        self._until(lambda: self._free.acquire(timeout=_LOOK))
        try:
            with self._translated_errors():
                remote = self.coordinator.schedule(function, args=args)
        except BaseException:
            self._free.release()
            raise
        answer = self._waiting.submit(self._receive, remote, receive)
        self._answers.append(answer)
        while self._answers[0].done() and self._answers[0] is not answer:
            self._check(self._answers.popleft())
        return answer

    def _receive(self, remote, receive):
        try:
            value = remote.get()
            if receive is not None:
                receive(value)
            return value
        finally:
            self._free.release()

    def join(self):
        """Waits until everything submitted has been answered.

        Raises:
            As `submit`.
        """
        for answer in self._answers:
            self._until_done(answer)
        with self._translated_errors():
            self.coordinator.join()
        while self._answers:
            self._check(self._answers.popleft())

    def result(self, answer):
        """Waits for the answer of a future that `submit` returned. Raises as `submit`."""
        self._until_done(answer)
        with self._translated_errors():
            return answer.result()

    def _until_done(self, answer):
        self._until(lambda: wait([answer], _LOOK).done)

    def _until(self, happened):
        """Waits until `happened()`. (TensorFlow alone may wait forever for a server that is gone.)"""
        while not happened():
            self.check_answering()

    def check_answering(self):
        """Raise an error if a parameter server is lost, or if every worker stands still."""
        strategy = self.coordinator.strategy
        watch = getattr(strategy, "watch", None)  # TensorFlow's own strategy has none
        if watch is None:
            return
        if (lost := watch.lost) is not None:
            raise ServerLostError(strategy, lost)
        if silent := watch.silent_workers:
            raise WorkersSilentError(silent)

    def _check(self, answer):
        error = answer.exception()
        # The worker died between its last op and its answer: the step counts, its metrics are lost.
        if error is not None and not isinstance(error, _LOST_ANSWER):
            raise error

    def forget(self):
        """Gives up what is in flight after an error; further errors repeat the first."""
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                if self.coordinator.done():
                    break
            time.sleep(0.05)
        self._answers.clear()

    @contextlib.contextmanager
    def _translated_errors(self):
        try:
            with naming_lost_servers(self.coordinator.strategy):
                yield
        except Exception:
            self._answers.clear()
            raise


class _DaemonThreads:
    """Threads that call functions, and that do not keep a process from ending while they wait."""

    def __init__(self, count):
        self._calls = queue.SimpleQueue()
        for _ in range(count):
            threading.Thread(target=self._run, name="keras_largeout_answers", daemon=True).start()

    def submit(self, function, *args):
        """Return a `concurrent.futures.Future` of `function(*args)`."""
        future = Future()
        self._calls.put((future, function, args))
        return future

    def _run(self):
        while True:
            future, function, args = self._calls.get()
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)
            del future, function, args  # not kept until the next call
