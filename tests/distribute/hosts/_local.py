"""Hosts that train synchronously, as processes of this machine: all run one script."""

import pathlib

from _cluster import Ports, Running, environment_of

from keras_largeout.distribute.processes.config import Cluster


class LocalHosts:
    """Processes on loopback that run `script`, a path, with the same arguments.

    Args:
        script: path.
        count: int, how many hosts.
        arguments: sequence of str.
        environment: of all of them, beside what they inherit.
    """

    def __init__(self, script, count, arguments=(), **environment):
        self._ports = Ports(count)
        addresses = {"worker": tuple(f"127.0.0.1:{port}" for port in self._ports)}
        self.cluster = Cluster(addresses, "worker")
        self._command = [str(pathlib.Path(script).resolve()), *map(str, arguments)]
        self._environment = environment
        self.hosts = []
        for index in range(count):
            self.start(index)

    def start(self, index):
        environment = environment_of(self.cluster.task("worker", index)) | self._environment
        self.hosts.append(Running(self._command, environment, forked=True))

    def name(self, index):
        """What messages call host `index`."""
        return self.cluster.name("worker", index)

    def ended(self):
        """Waits for the end of all; their exit codes."""
        return [host.ended() for host in self.hosts]

    def text(self):
        """What all have printed."""
        return "\n".join(f"--- {self.name(i)}\n{host.text}" for i, host in enumerate(self.hosts))

    def close(self):
        for host in self.hosts:
            host.close()
        self._ports.close()
