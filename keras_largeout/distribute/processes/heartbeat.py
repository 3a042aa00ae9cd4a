"""Noticing processes that stand still: stopped, on a frozen machine, behind a cut cable.

Such a process keeps its connections, so TensorFlow waits for its answers without a time limit. But gRPC
greets each new connection from its own threads: a process that computes, compiles or holds Python's lock
answers too.
"""

import contextlib
import logging
import socket
import threading
import time

from keras_largeout.distribute.processes.config import host_and_port
from keras_largeout.distribute.processes.listening import own_sockets

_LOG = logging.getLogger("keras_largeout")
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty settings


def answers(address, seconds):
    """Return whether the gRPC server at an address greets a new connection within some seconds.

    Args:
        address: str, `"host:port"`.
        seconds: float.

    Returns:
        True; False if no process listens there; None if there is no answer.
    """
    try:
        with socket.create_connection(host_and_port(address), seconds) as connection:
            connection.sendall(_PREFACE)
            return bool(connection.recv(9)) or None
    except ConnectionRefusedError:
        return False
    except OSError:
        return None


class Heartbeat:
    """Polls processes, each from its own thread, and reports each that stands still.

    Args:
        cluster: `Cluster`.
        tasks: list of `(job, index, address)`.
        seconds: float, how long a process may be silent.
        on_silent: function of `(job, index)`, called again and again while a process is silent.

    Attributes:
        silent: dict of `(job, index)` to the name of each process that is silent now.
    """

    def __init__(self, cluster, tasks, seconds, on_silent):
        self.silent = {}
        self._cluster, self._seconds, self._on_silent = cluster, seconds, on_silent
        _LOG.warning("A worker or server is given up after %g s without an answer.", seconds)
        for task in tasks:
            threading.Thread(target=self._watch, args=task, name="keras_largeout_heart", daemon=True).start()

    def _watch(self, job, index, address):
        answered, pause, task = time.monotonic(), self._seconds / 20, (job, index)
        while True:
            if answers(address, 5 * pause) is not None:
                answered = time.monotonic()
                if self.silent.pop(task, None):
                    _LOG.warning("%s answers again.", self._cluster.name(job, index))
            elif time.monotonic() - answered > self._seconds - 2 * pause:
                if task not in self.silent:
                    self.silent[task] = self._cluster.name(job, index)
                    _LOG.warning("%s did not answer for %g s.", self.silent[task], self._seconds)
                self._on_silent(job, index)
            time.sleep(pause)


def disconnect(address):
    """End the connections of this process to an address: what waits for an answer from there fails.

    Args:
        address: str, `"host:port"`.
    """
    host, port = host_and_port(address)
    with contextlib.suppress(OSError):  # the name is no longer known
        hosts = {info[4][0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        for connection in own_sockets():
            with contextlib.suppress(OSError):  # it is not connected
                peer, its_port = connection.getpeername()[:2]
                if its_port == port and peer.removeprefix("::ffff:") in hosts:
                    connection.shutdown(socket.SHUT_RDWR)
