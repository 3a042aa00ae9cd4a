"""The port on which a process of a cluster listens: a free one, which answers on the given address alone.

TensorFlow's gRPC server listens on every interface, whatever address it was given, and runs whatever anyone
sends who can reach it. If all addresses of a cluster are loopback, its sockets are bound to that interface.
Other machines cannot connect then; other users of the same machine can. In any other cluster a filter in the
kernel drops packets that were sent to another address of the machine than the one that `TF_CONFIG` gives.
"""

import contextlib
import ctypes
import ipaddress
import logging
import os
import random
import socket
import struct
import threading

from keras_largeout.distribute.processes.config import host_and_port, is_loopback

_LOG = logging.getLogger("keras_largeout")
_LOOK = 5e-4  # seconds between two looks for a socket that is about to listen


def free_ports(count):
    """Return `count` different ports that nothing listens on now.

    They are below the range that the system takes for outgoing connections (from 32768 on, where nobody
    changed it), so that none of those takes one before its server does.
    """
    sockets = []
    try:
        for port in random.SystemRandom().sample(range(12000, 32000), 1000):
            candidate = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
            try:
                candidate.bind(("", port))
            except OSError:
                candidate.close()
                continue
            sockets.append(candidate)
            if len(sockets) == count:
                return [s.getsockname()[1] for s in sockets]
        raise OSError(f"{count} free ports between 12000 and 32000 were not found")
    finally:
        for candidate in sockets:
            candidate.close()


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
def kept_to_address(cluster):
    """A context to start a server in, which then answers on the address of this process alone.

    A thread watches for the socket: TensorFlow has no moment between listening and answering. A connection
    that came in before, within a millisecond, is ended.

    Args:
        cluster: `Cluster`.

    Raises:
        RuntimeError: the port of a loopback cluster could not be restricted.
    """
    found, ended = [], threading.Event()

    def watch():
        while not ended.wait(0.1 if found else _LOOK):
            with contextlib.suppress(OSError):  # `require_address` reports it
                found.extend([True] * _restrict(cluster))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    require_address(cluster)


def require_address(cluster):
    """Restrict the port of this process to its address, which is loopback or one of this machine.

    Raises:
        RuntimeError: the port of a loopback cluster could not be restricted. (Elsewhere a warning says so:
            an address may be that of a gateway, which forwards it.)
    """
    try:
        restricted, why = _restrict(cluster), "no socket of this process listens on it"
    except OSError as error:
        restricted, why = 0, error
    if restricted:
        return
    name = cluster.name(cluster.job, cluster.index)
    if cluster.is_loopback:
        raise RuntimeError(
            f"The port of {name} could not be kept to the loopback interface, and whoever reaches it can run "
            f"code in this process: {why}"
        )
    _LOG.warning(
        "The port of %s answers on every interface of this machine, and whoever reaches it can run code in "
        "this process: %s",
        name,
        why,
    )


def _restrict(cluster):
    """Return how many listening sockets of this process were restricted to its address."""
    if cluster.is_loopback:
        return keep_to_loopback(cluster.port)
    host = host_and_port(cluster.address)[0]
    # A machine may know its own name as 127.0.1.1, and others reach it at another address.
    addresses = [address for address in addresses_here(host) if not address.is_loopback]
    if not addresses:
        raise OSError(f"{host!r} is not the name of an interface of this machine")
    return keep_to_addresses(cluster.port, addresses)


def keep_to_loopback(port):
    """Bind this process's listening sockets on `port` to the loopback interface.

    Connections that came over another interface are ended.

    Returns:
        int, how many sockets were restricted.
    """
    restricted = 0
    for one, listens in _sockets_on(port):
        if listens:
            if not one.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).startswith(b"lo\0"):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
            restricted += 1
        elif not is_loopback(_address(one.getpeername)):
            _end(one)
    return restricted


def keep_to_addresses(port, addresses):
    """Have this process's listening sockets on `port` drop packets for other addresses of the machine.

    Connections that came to another address are ended.

    Args:
        port: int.
        addresses: list of `ipaddress` addresses, not mapped ones.

    Returns:
        int, how many sockets were restricted.
    """
    instructions = _filter(addresses)
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    memory = ctypes.create_string_buffer(program, len(program))
    restricted = 0
    for one, listens in _sockets_on(port):
        if listens:
            pointer = struct.pack("@HP", len(instructions), ctypes.addressof(memory))
            one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)
            restricted += 1
        elif ipaddress.ip_address(_address(one.getsockname)) not in addresses:
            _end(one)
    return restricted


def addresses_here(host):
    """Return the addresses of a host name that are of this machine: list of `ipaddress` addresses."""
    found = []
    with contextlib.suppress(socket.gaierror):
        for family, *_, place in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family) as probe:
                probe.bind(place)  # only an address of this machine can be bound
                found.append(ipaddress.ip_address(place[0].partition("%")[0]))
    return found


# The numbers are those of <linux/filter.h> and <asm/socket.h>. A jump skips as many instructions as it says.
_SO_ATTACH_FILTER = 26
_BYTE, _WORD, _SHIFT, _EQUAL, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x06
_HEADER = 0xFFF00000  # an offset from here on counts from the header of the network layer
_PASS, _DROP = (_RETURN, 0, 0, 0xFFFFFFFF), (_RETURN, 0, 0, 0)


def _filter(addresses):
    """Return a classic BPF program that passes packets to `addresses`: list of (code, if, else, number)."""
    version_4, version_6 = [(_WORD, 0, 0, _HEADER + 16)], []  # the destination of IPv4
    for address in addresses:
        if address.version == 4:
            version_4 += [(_EQUAL, 0, 1, int(address)), _PASS]
            continue
        for word, number in enumerate(struct.unpack("!4I", address.packed)):
            to_the_next = 2 * (3 - word) + 1
            version_6 += [(_WORD, 0, 0, _HEADER + 24 + 4 * word), (_EQUAL, 0, to_the_next, number)]
        version_6.append(_PASS)
    version_4.append(_DROP)
    version = [(_BYTE, 0, 0, _HEADER), (_SHIFT, 0, 0, 4), (_EQUAL, 0, len(version_4), 4)]
    return [*version, *version_4, *version_6, _DROP]


def _sockets_on(port):
    """Yield `(socket, whether it listens)` of this process's TCP sockets on `port`."""
    for one in own_sockets():
        if one.type == socket.SOCK_STREAM and one.getsockname()[1] == port:
            yield one, bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def own_sockets():
    """Yield each internet socket of this process, as a duplicate that is closed afterwards."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            one = socket.socket(fileno=os.dup(int(name)))
        except FileNotFoundError:  # closed since it was listed
            continue
        with one:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                yield one


def _address(end):
    """Return the address of one end of a connection as text; of a mapped one the IPv4 address."""
    try:
        address = ipaddress.ip_address(end()[0].partition("%")[0])
    except OSError:  # it has ended by itself
        return "127.0.0.1"
    return str(getattr(address, "ipv4_mapped", None) or address)


def _end(connection):
    with contextlib.suppress(OSError):  # it has ended by itself
        connection.shutdown(socket.SHUT_RDWR)
