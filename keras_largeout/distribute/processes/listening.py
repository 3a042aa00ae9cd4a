"""The port on which a process of a cluster listens: that it is free, and that it is this machine's alone.

TensorFlow's gRPC server listens on every interface, whatever address it was given, and does what anyone tells
it who can reach it. Where all addresses of a cluster are loopback, its sockets are kept to that interface.
This keeps the network out. It does not keep out other users of the same machine: they reach loopback too.
"""

import contextlib
import os
import socket
import threading

from keras_largeout.distribute.processes.config import is_loopback

_LOOK = 5e-4  # seconds between two looks for a socket that is about to listen


def require_free_port(cluster):
    """Raises OSError where this process cannot listen on its port: TensorFlow would share it, or not say why.

    Args:
        cluster: `Cluster`.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as probe:
        # As servers do: what is left of closed connections is no reason.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", cluster.port))
        except OSError as error:
            raise OSError(
                error.errno,
                f"{cluster.name(cluster.job, cluster.index)} cannot listen on its port: {error.strerror}. "
                "End the process that has it, or give this one another address",
            ) from None


@contextlib.contextmanager
def kept_to_loopback(cluster):
    """Within it a server starts, which answers loopback alone where the cluster's addresses are loopback.

    A thread watches for the socket: TensorFlow has no moment between listening and answering. Who got in
    before it was restricted, within a millisecond, is cut off.

    Args:
        cluster: `Cluster`.

    Raises:
        RuntimeError: the port could not be restricted.
    """
    if not cluster.is_loopback:
        yield
        return
    found, ended = [], threading.Event()

    def watch():
        while not ended.wait(0.1 if found else _LOOK):
            with contextlib.suppress(OSError):  # said below
                found.extend([True] * keep_to_loopback(cluster.port))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    require_loopback(cluster)


def require_loopback(cluster):
    """Keeps the port of this process to loopback, where all addresses of the cluster are loopback.

    Raises:
        RuntimeError: it could not be done.
    """
    if not cluster.is_loopback:
        return
    try:
        restricted, why = keep_to_loopback(cluster.port), "no socket of this process listens on it"
    except OSError as error:
        restricted, why = 0, error
    if not restricted:
        raise RuntimeError(
            f"The port of {cluster.name(cluster.job, cluster.index)} could not be kept to the loopback "
            f"interface, and whoever reaches it can run code in this process: {why}"
        )


def keep_to_loopback(port):
    """Restricts this process's listening sockets on `port` to the loopback interface.

    Connections that came over another interface are ended.

    Returns:
        int, how many sockets were restricted.
    """
    restricted = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family not in (socket.AF_INET, socket.AF_INET6) or one.getsockname()[1] != port:
                    continue
                if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    if not one.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).startswith(b"lo\0"):
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
                    restricted += 1
                elif one.type == socket.SOCK_STREAM:
                    _end_unless_loopback(one)
        except FileNotFoundError:  # closed since it was listed
            continue
    return restricted


def _end_unless_loopback(connection):
    with contextlib.suppress(OSError):  # it has ended by itself
        if not is_loopback(connection.getpeername()[0]):
            connection.shutdown(socket.SHUT_RDWR)
