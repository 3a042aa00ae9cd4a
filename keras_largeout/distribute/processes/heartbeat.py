"""Noticing processes that stand still: stopped, on a frozen machine, behind a cut cable.

Such a process keeps its connections, so TensorFlow waits for its answers without a time limit. But gRPC
greets each new connection from its own threads: a process that computes, compiles or holds Python's lock
answers too.
"""

import argparse
import contextlib
import logging
import math
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

    Time in which the polling process itself stood still does not count.

    Args:
        cluster: `Cluster`.
        tasks: list of `(job, index, address)`.
        seconds: float, how long a process may be silent.
        on_silent: function of `(job, index)`, called again and again while a process is silent.
        say: function of a `logging` format and its arguments, for what users should know.
        stopped: function of `(job, index)`; returns True for a process of which it is known without asking
            that it stands still.

    Attributes:
        silent: dict of `(job, index)` to the name of each process that is silent now.
        up: dict of `(job, index)` to whether the process answered when it was last asked.
    """

    def __init__(self, cluster, tasks, seconds, on_silent, say=_LOG.warning, stopped=lambda *_: False):
        self.silent, self.up = {}, {(job, index): True for job, index, _ in tasks}
        self._cluster, self._seconds, self._on_silent = cluster, seconds, on_silent
        self._say, self._stopped, self._closed = say, stopped, threading.Event()
        for task in tasks:
            threading.Thread(target=self._watch, args=task, name="keras_largeout_heart", daemon=True).start()

    def _watch(self, job, index, address):
        silent, looked, pause, task = 0.0, time.monotonic(), self._seconds / 20, (job, index)
        while not self._closed.wait(pause):
            answer = None if self._stopped(*task) else answers(address, 5 * pause)
            self.up[task] = bool(answer)
            before, looked = looked, time.monotonic()
            silent += min(looked - before, 12 * pause)
            if answer is not None:
                silent = 0.0
                if self.silent.pop(task, None) and answer:
                    self._say("%s answers again.", self._cluster.name(job, index))
            elif silent > self._seconds - 2 * pause and not self._closed.is_set():
                if task not in self.silent:
                    self.silent[task] = self._cluster.name(job, index)
                    self._say("%s did not answer for %g s.", self.silent[task], self._seconds)
                self._on_silent(job, index)

    def close(self):
        """Poll no more."""
        self._closed.set()


def add_heartbeat_option(parser):
    """Add `--heartbeat-timeout` to an `argparse.ArgumentParser`."""
    parser.add_argument(
        "--heartbeat-timeout",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long the script may stand still before this process gives it up (default: %(default)g)",
    )


def _seconds(text):
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds. Received: {text}")
    return seconds


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
