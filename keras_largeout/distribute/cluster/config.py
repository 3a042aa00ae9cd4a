"""A cluster as `TF_CONFIG` describes it: who takes part, where, and which of them this process is."""

import dataclasses
import ipaddress
import json
import os
import socket

SERVER_JOBS = ("worker", "ps")
_TITLES = {"chief": "chief", "worker": "worker", "ps": "parameter server"}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of one training run.

    Args:
        addresses: dict of job (`"chief"`, `"worker"`, `"ps"`) to a tuple of `"host:port"`.
        job: the job of this process.
        index: its number within the job.
    """

    addresses: dict
    job: str = "chief"
    index: int = 0

    def __post_init__(self):
        for job in ("chief", *SERVER_JOBS):
            if not self.addresses.get(job):
                raise ValueError(
                    f"The cluster must have at least one {job!r}. Received: {dict(self.addresses)}"
                )
        if len(self.addresses["chief"]) != 1:
            raise ValueError(f"The cluster must have one chief. Received: {self.addresses['chief']}")
        if self.job not in self.addresses or not 0 <= self.index < len(self.addresses[self.job]):
            raise ValueError(
                f"The task must be one of the cluster's. Received: {self.job} {self.index} in a cluster of "
                + ", ".join(f"{len(hosts)} {job}" for job, hosts in self.addresses.items())
            )

    @property
    def is_server(self):
        """True in a worker or parameter server, False in the chief."""
        return self.job in SERVER_JOBS

    @property
    def address(self):
        return self.addresses[self.job][self.index]

    @property
    def is_loopback(self):
        """True where every address is one of this machine alone."""
        return all(_is_loopback(host) for hosts in self.addresses.values() for host in hosts)

    def servers(self):
        """`(job, index, address)` of every worker and parameter server."""
        return [(j, i, a) for j in SERVER_JOBS for i, a in enumerate(self.addresses[j])]

    def name(self, job, index):
        """What messages call a process: `"parameter server 1 (10.0.0.7:2222)"`."""
        return f"{_TITLES.get(job, job)} {index} ({self.addresses[job][index]})"

    def task(self, job, index):
        """The same cluster, seen by another of its processes."""
        return dataclasses.replace(self, job=job, index=index)

    def to_tf_config(self):
        """The value of `TF_CONFIG` for this process."""
        jobs = {job: list(hosts) for job, hosts in self.addresses.items()}
        return json.dumps({"cluster": jobs, "task": {"type": self.job, "index": self.index}})


def from_environment(environ=os.environ):
    """The `Cluster` of the environment variable `TF_CONFIG`, or None where it names no parameter servers.

    Raises:
        ValueError: `TF_CONFIG` is no JSON of the form
            `{"cluster": {"chief": [..], "worker": [..], "ps": [..]}, "task": {"type": "worker", "index":
            0}}`.
    """
    text = environ.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
        addresses = {job: tuple(hosts) for job, hosts in config.get("cluster", {}).items()}
        if "ps" not in addresses:  # one machine, or all workers in step: not a cluster of this kind
            return None
        task = config["task"]
        # "master" is what the first versions called the chief, and some schedulers still do.
        if "master" in addresses:
            addresses["chief"] = addresses.pop("master")
        job = "chief" if task["type"] == "master" else task["type"]
        return Cluster(addresses, job, int(task.get("index", 0)))
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            'TF_CONFIG must be JSON: {"cluster": {"chief": ["host:port"], "worker": [..], "ps": [..]}, '
            f'"task": {{"type": "worker", "index": 0}}}}. Received: {text} ({error!r})'
        ) from None


def accepts(address, timeout=1.0):
    """True where something listens at `"host:port"`. Only to say who is missing."""
    return _connect(address, timeout) is None


def refuses(address, timeout=1.0):
    """True where the machine of `"host:port"` answers that nothing listens there."""
    return isinstance(_connect(address, timeout), ConnectionRefusedError)


def _connect(address, timeout):
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except OSError as error:
        return error
    return None


def keep_to_loopback(port):
    """Restricts this process's listening sockets on `port` to the loopback interface.

    TensorFlow's gRPC server listens on every interface, whatever address it was given, and does what anyone
    tells it who can reach it.

    Returns:
        int, how many sockets were restricted.
    """
    restricted = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as listener:
                accepting = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                inet = listener.family in (socket.AF_INET, socket.AF_INET6)
                if accepting and inet and listener.getsockname()[1] == port:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
                    restricted += 1
        except FileNotFoundError:  # closed since it was listed
            continue
    return restricted


def _is_loopback(address):
    host = address.rsplit(":", 1)[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
