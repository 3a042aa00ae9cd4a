"""What the processes of a cluster on this machine have used so far: processor time, bytes on the wire."""

import json
import os
import pathlib
import socket
import struct

_JOBS = ("chief", "worker", "ps")
# Of linux/netlink.h, inet_diag.h and tcp.h.
_BY_FAMILY, _DUMP, _TCP_INFO, _ERROR, _DONE = 20, 0x301, 2, 2, 3
_ACKED = 120  # where `tcpi_bytes_acked` stands in `struct tcp_info`


def processor_seconds():
    """Return processor time of each process of this one's cluster: a dict of job to a list of seconds."""
    found = {job: [] for job in _JOBS}
    own = json.loads(os.environ["TF_CONFIG"])["cluster"]
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        text = next((e[10:] for e in environment if e.startswith(b"TF_CONFIG=")), None)
        config = json.loads(text) if text else {}
        if config.get("cluster") == own:
            ticks = int(fields[11]) + int(fields[12])
            found[config["task"]["type"]].append(ticks / os.sysconf("SC_CLK_TCK"))
    return found


def bytes_sent(ports):
    """Return bytes that TCP connections of this machine to or from the ports have carried, both ways.

    The payload alone, of the connections that are open. What other processes send is not in it.
    """
    ports, sent = set(ports), 0
    for family in (socket.AF_INET, socket.AF_INET6):
        for own, other, info in _connections(family):
            if ports & {own, other} and len(info) >= _ACKED + 8:
                sent += struct.unpack_from("=Q", info, _ACKED)[0]
    return sent


def _connections(family):
    """Yield `(port, port of the other end, struct tcp_info)` of every established connection."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diagnosis:  # NETLINK_SOCK_DIAG
        body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_TCP_INFO - 1), 0, 1 << 1) + bytes(48)
        diagnosis.send(struct.pack("=IHHII", 16 + len(body), _BY_FAMILY, _DUMP, 1, 0) + body)
        while True:
            data, start = diagnosis.recv(1 << 18), 0
            while start < len(data):
                size, kind = struct.unpack_from("=IH", data, start)
                if kind in (_ERROR, _DONE):
                    return
                message = data[start + 16 : start + size]
                ports = struct.unpack_from(">HH", message, 4)
                yield *ports, _attribute(message[72:], _TCP_INFO)
                start += (size + 3) & ~3


def _attribute(data, wanted):
    start = 0
    while start + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, start)
        if kind == wanted:
            return data[start + 4 : start + size]
        start += max(4, (size + 3) & ~3)
    return b""
