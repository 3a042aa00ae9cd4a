"""A watch that notices workers and parameter servers that no longer answer."""

import logging
import threading

from keras_largeout.distribute.processes.following import follow
from keras_largeout.distribute.processes.heartbeat import Heartbeat, disconnect

_LOG = logging.getLogger("keras_largeout")


class ServerWatch:
    """Notices workers and parameter servers that stand still, and parameter servers that end.

    What a worker that stands still was to compute goes to another one: the connections of this process to it
    are ended, which TensorFlow takes for the end of the worker. It takes part again when it answers.

    Most often TensorFlow finds out by itself that a server ended, in a step that needs the server. But a step
    may also wait for an answer that never comes.

    Args:
        cluster: `Cluster`, of which this process is the chief.
        seconds: float, how long a process may be silent.
    """

    def __init__(self, cluster, seconds):
        self._cluster, self._ended = cluster, []
        _LOG.warning("A worker or server is given up after %g s without an answer.", seconds)
        self._heartbeat = Heartbeat(cluster, cluster.servers(), seconds, self._give_up)
        for index in range(len(cluster.addresses["ps"])):
            threading.Thread(target=self._follow, args=(index,), name="largeout_ps", daemon=True).start()

    def _give_up(self, job, index):
        disconnect(self._cluster.addresses[job][index])

    def _follow(self, index):
        follow(self._cluster.addresses["ps"][index], lambda: None)
        self._ended.append(index)

    @property
    def up(self):
        """A dict of the `(job, index)` of workers and servers to whether they answered when last asked."""
        return self._heartbeat.up

    @property
    def lost(self):
        """The index of a parameter server that ended or stands still, or None."""
        silent = [index for job, index in list(self._heartbeat.silent) if job == "ps"]
        return next(iter([*self._ended, *silent]), None)

    @property
    def silent_workers(self):
        """The names of the workers, if all of them stand still; else an empty list."""
        silent = [name for (job, _), name in list(self._heartbeat.silent.items()) if job == "worker"]
        return silent if len(silent) == len(self._cluster.addresses["worker"]) else []
