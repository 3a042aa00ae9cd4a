"""A way to notice at once that another process has ended."""

import contextlib
import socket
import time

from keras_largeout.distribute.processes.config import host_and_port

_LOOK = 0.2  # seconds between two looks for who is not there yet
_SOON = 0.001  # seconds: no process could have been started meanwhile
_TIMEOUT = 1.0  # seconds until a machine that does not answer is asked again


def follow(address, seen):
    """Waits for the process that listens at `address`, then for its end, and returns.

    It holds a connection on which nothing is said. The system ends it with the process. (With a look now and
    then at whether somebody listens, a process that is started at once would be taken for the one before.)

    A connection that ends says little by itself, since gRPC ends one that is silent for two minutes. The
    process has ended where nothing listens right after. A machine that does not answer says nothing.

    Args:
        address: `"host:port"`.
        seen: function, called when the process is first there.
    """
    there, soon = False, _SOON
    while True:
        began, pause = time.monotonic(), _LOOK
        try:
            line = socket.create_connection(host_and_port(address), _TIMEOUT)
        except ConnectionRefusedError:
            if there:
                return
        except OSError:
            pass
        else:
            if not there:
                there = True
                seen()
            with line:
                _until_it_ends(line)
            # Soon, and soon once more: a process may close its connections before it stops listening.
            lasted = time.monotonic() - began
            pause = soon = _SOON if lasted > _LOOK else min(2 * soon, _LOOK)
        time.sleep(pause)


def _until_it_ends(line):
    """Read from the socket `line` and drop what comes, until the other end closes it."""
    line.settimeout(None)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(OSError):
        while line.recv(4096):
            pass
