"""A cluster as `TF_CONFIG` describes it: who takes part, where, and which of them this process is."""

import dataclasses
import ipaddress
import json
import os

SERVER_JOBS = ("worker", "ps")
_TITLES = {"chief": "chief", "worker": "worker", "ps": "parameter server"}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of one training run: with parameter servers, or synchronous hosts.

    Args:
        addresses: dict of job (`"chief"`, `"worker"`, `"ps"`) to a tuple of `"host:port"`. Without `"ps"` a
            chief, if there is one, is the first of the hosts.
        job: the job of this process.
        index: its number within the job.
    """

    addresses: dict
    job: str = "chief"
    index: int = 0

    def __post_init__(self):
        _check_addresses(self.addresses)
        for job in ("chief", *SERVER_JOBS) if "ps" in self.addresses else ("worker",):
            if not self.addresses.get(job):
                raise ValueError(
                    f"The cluster must have at least one {job!r}. Received: {dict(self.addresses)}"
                )
        if len(self.addresses.get("chief", ("one",))) != 1:
            raise ValueError(f"The cluster must have one chief. Received: {self.addresses['chief']}")
        if self.job not in self.addresses or not 0 <= self.index < len(self.addresses[self.job]):
            raise ValueError(
                f"The task must be one of the cluster's. Received: {self.job} {self.index} in a cluster of "
                + ", ".join(f"{len(hosts)} {job}" for job, hosts in self.addresses.items())
            )

    @property
    def is_server(self):
        """True in a worker or parameter server, False in the chief, and in a synchronous host."""
        return self.job in SERVER_JOBS and not self.is_synchronous

    @property
    def is_synchronous(self):
        """True if there are no parameter servers: the processes are synchronous hosts."""
        return "ps" not in self.addresses

    @property
    def address(self):
        return self.addresses[self.job][self.index]

    @property
    def port(self):
        """The port on which this process listens."""
        return host_and_port(self.address)[1]

    @property
    def is_loopback(self):
        """True where every address is one of this machine alone."""
        hosts = [host_and_port(a)[0] for addresses in self.addresses.values() for a in addresses]
        return all(is_loopback(host) for host in hosts)

    def servers(self):
        """Return `(job, index, address)` of every worker and parameter server."""
        return [(j, i, a) for j in SERVER_JOBS for i, a in enumerate(self.addresses[j])]

    def hosts(self):
        """Return `(job, index, address)` of every synchronous host: a chief, then the workers."""
        return [(j, i, a) for j in ("chief", "worker") for i, a in enumerate(self.addresses.get(j, ()))]

    def others(self):
        """Return `(job, index, address)` of those that this process waits for."""
        if not self.is_synchronous:
            return self.servers()
        return [(j, i, a) for j, i, a in self.hosts() if (j, i) != (self.job, self.index)]

    def name(self, job, index):
        """Return what messages call a process: `"parameter server 1 (10.0.0.7:2222)"`."""
        title, number = _TITLES.get(job, job), index
        if self.is_synchronous:
            title, number = "host", [(j, i) for j, i, _ in self.hosts()].index((job, index))
        return f"{title} {number} ({self.addresses[job][index]})"

    def task(self, job, index):
        """Return the same cluster, seen by another of its processes."""
        return dataclasses.replace(self, job=job, index=index)

    def to_tf_config(self):
        """Return the value of `TF_CONFIG` for this process."""
        jobs = {job: list(hosts) for job, hosts in self.addresses.items()}
        return json.dumps({"cluster": jobs, "task": {"type": self.job, "index": self.index}})


def from_environment(environ=os.environ):
    """Return the `Cluster` of the environment variable `TF_CONFIG`; None where it names one process, or none.

    Raises:
        ValueError: `TF_CONFIG` is no JSON of the form
            `{"cluster": {"chief": [..], "worker": [..], "ps": [..]}, "task": {"type": "worker", "index":
            0}}`, or an address is not valid, or given twice.
    """
    text = environ.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
        addresses = {**config.get("cluster", {})}
        if "ps" not in addresses and sum(map(len, addresses.values())) < 2:
            return None
        addresses.pop("evaluator", None)  # of a time when one process evaluated what the others trained
        task = config["task"]
        # "master" is what the first versions called the chief, and some schedulers still do.
        if "master" in addresses:
            addresses["chief"] = addresses.pop("master")
        job = "chief" if task["type"] == "master" else task["type"]
        return cluster_of(addresses, job, task.get("index", 0))
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            'TF_CONFIG must be JSON: {"cluster": {"chief": ["host:port"], "worker": [..], "ps": [..]}, '
            f'"task": {{"type": "worker", "index": 0}}}}. Received: {text} ({error!r})'
        ) from None


def cluster_of(jobs, job, index):
    """Return the `Cluster` of what JSON says.

    Args:
        jobs: dict of job to a list of `"host:port"`.
        job: str; index: int, or digits.

    Raises:
        ValueError: they describe none.
    """
    if not isinstance(jobs, dict):
        raise ValueError(f"The cluster must be a dict of lists of addresses. Received: {jobs!r}")
    for name, addresses in jobs.items():
        if not isinstance(addresses, (list, tuple)):
            raise ValueError(
                f'The addresses of {name!r} must be a list, ["host:port", ...]. Received: {addresses!r}'
            )
    if isinstance(index, bool) or not str(index).isdecimal():
        raise ValueError(f"The index of a task must be an integer from 0 on. Received: index={index!r}")
    return Cluster({name: tuple(addresses) for name, addresses in jobs.items()}, job, int(index))


def _check_addresses(jobs):
    """Raises ValueError where one is no `"host:port"`, or two are the same."""
    names = {}
    for job, addresses in jobs.items():
        for index, address in enumerate(addresses):
            name = f"{_TITLES.get(job, job)} {index}"
            host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
            if not host or not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
                raise ValueError(
                    f'The address of {name} must be "host:port", the port an integer in 1 .. 65535. '
                    f"Received: {address!r}"
                )
            if address in names:
                raise ValueError(
                    "The processes of a cluster must have different addresses. "
                    f"Received: {address!r} for {names[address]} and for {name}"
                )
            names[address] = name


def host_and_port(address):
    """Return `("host", 2222)` of `"host:2222"`, as sockets want it."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(host):
    """Return whether `host`, a name or an address, is this machine's loopback interface."""
    host = host.strip("[]")
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
