"""A cluster on this machine: `python -m keras_largeout.distribute.launch --workers 2 --ps 2 script.py
[args]`.

It starts workers and parameter servers as processes of their own, on free ports of the loopback interface,
and runs the script as the chief, with `TF_CONFIG` set as it would be on a real cluster. What they print is
shown under their names and kept in one file each; a process that dies is named. When the script ends,
everything ends; nothing is left running, however this process ends itself.

Without `--ps` the workers are hosts that train in step: each of them runs the script.

TensorFlow's gRPC does what anyone tells it who reaches a port. Loopback keeps the network out, not the other
users of this machine.
"""

import argparse
import os
import pathlib
import random
import signal
import socket
import sys
import time

from keras_largeout.distribute.processes.config import Cluster
from keras_largeout.distribute.processes.supervise import Child, Console

_READY = b" is ready"
_NEVER = b"\0"  # in no line
_LOG_BYTES = 100_000_000
_GRACE = 20.0  # seconds from SIGTERM to SIGKILL
_SCRIPT_GRACE = 120.0  # seconds that a script has to notice that a parameter server died


class Launcher:
    """Runs a script as the chief of a local cluster.

    Args:
        script: list of str, the script and its arguments.
        workers, ps: int, how many of them.
        logs: path of the folder for the files of output.
        restarts: int, how often in total processes that died are started again. The script counts as one when
            it was killed, and when it ended because a parameter server died.
    """

    def __init__(self, script, workers=2, ps=2, logs="cluster_logs", restarts=0, log_bytes=_LOG_BYTES):
        self.script = list(script)
        self.logs = pathlib.Path(logs)
        self.restarts, self.log_bytes = restarts, log_bytes
        self.children = {}
        self._signals, self._told = [], set()
        self._lost_ps_at = None
        self.cluster = self._new_cluster(workers, ps)

    def _new_cluster(self, workers, ps):
        count = {"chief": 1, "worker": workers, "ps": ps}
        ports = iter(free_ports(sum(count.values())))
        return Cluster({job: tuple(f"127.0.0.1:{next(ports)}" for _ in range(n)) for job, n in count.items()})

    def run(self):
        """Runs until the script ends; its exit code, or 128 + the signal that ended it or this process."""
        self.logs.mkdir(parents=True, exist_ok=True)
        self.console = Console()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda got, _: self._signals.append(got))
        try:
            self._start_first()
            self.console.say(f"logs: {self.logs}")
            return self._watch()
        finally:
            for child in self.children.values():
                self.console.remove(child)
                child.close()

    def _start_first(self):
        for job, index, _ in self.cluster.servers():
            self._start(job, index)

    def _watch(self):
        while not all(child.ready for child in self.children.values()):
            self.console.wait(0.5)
            if self._signals:
                return self._stop()
            if self._reap() and not self.restarts:
                return self._stop(1)
        self._start("chief", 0)
        while True:
            self.console.wait(0.5)
            if self._signals:
                return self._stop()
            for (job, _), child in self._reap():
                if job == "chief":
                    code = child.process.returncode
                    if not self._again(job, 0, child, code < 0 or (code and self._lost_ps_at is not None)):
                        return self._stop(128 - code if code < 0 else code)
            if not any(job == "worker" for job, _ in self.children):
                self.console.say("no worker is left")
                return self._stop(1)
            if self._lost_ps_at is not None:
                self._end_after([self.children["chief", 0]], self._lost_ps_at + _SCRIPT_GRACE)

    def _start(self, job, index):
        # Weights of parameter servers are in main memory.
        no_gpu = {} if job == "worker" else {"CUDA_VISIBLE_DEVICES": ""}
        if job == "chief":
            self._lost_ps_at = None
            self._start_child(job, index, job, self.script, **no_gpu)
        else:
            server = ["-m", "keras_largeout.distribute.server"]
            self._start_child(job, index, f"{job} {index}", server, hidden_until=_READY, **no_gpu)

    def _start_child(self, job, index, name, arguments, hidden_until=None, **environment):
        """Start a Python process with these arguments as `index` of `job` in the cluster."""
        own = self.cluster.task(job, index)
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, **environment}
        environment |= {"TF_CONFIG": own.to_tf_config(), "PYTHONUNBUFFERED": "1"}
        log = self.logs / f"{name.replace(' ', '_')}.log"
        command = [sys.executable, *arguments]
        child = Child(name, command, environment, log, hidden_until, self.log_bytes)
        self.children[job, index] = child
        self.console.add(child)

    def _reap(self):
        """Return the children that ended since, each named; servers are started again where that is asked."""
        ended = [item for item in self.children.items() if item[1].process.poll() is not None]
        for (job, index), child in ended:
            self.console.remove(child)
            child.close()
            del self.children[job, index]
            if job == "chief":
                continue
            self.console.say(
                f"{self.cluster.name(job, index)} {child.how_it_ended()}; its output is in {child.log}"
            )
            if not child.ready:
                self.console.say("\n".join(child.last_lines))
            if job == "ps":
                self._lost_ps_at = time.monotonic()
            self._again(job, index, child, True)
        return ended

    def _again(self, job, index, child, wanted):
        if not wanted or not self.restarts:
            return False
        self.restarts -= 1
        title = "the script" if job == "chief" else self.cluster.name(job, index)
        self.console.say(f"{title} is started again ({self.restarts} more restarts)")
        self._start(job, index)
        return True

    def _end_after(self, children, deadline):
        """Send SIGTERM to children after a deadline, and SIGKILL to those left a grace time later."""
        late = time.monotonic() - deadline
        for child in children if late > 0 else ():
            if late > _GRACE:
                child.send(signal.SIGKILL)
            elif child not in self._told:  # a second SIGTERM would interrupt how it leaves
                self._told.add(child)
                child.send(signal.SIGTERM)

    def _stop(self, code=None):
        """Ends everything, the script first: it may be saving. Returns the exit code."""
        if code is None:
            code = 128 + self._signals[0]
        for jobs in (("chief",), ("worker", "ps")):
            group = [child for (job, _), child in self.children.items() if job in jobs]
            for child in group:
                child.send(signal.SIGINT if signal.SIGINT in self._signals else signal.SIGTERM)
            asked, deadline = len(self._signals), time.monotonic() + _GRACE
            while any(child.process.poll() is None for child in group):
                self.console.wait(0.2)
                if time.monotonic() > deadline or len(self._signals) > asked:  # the user asks again
                    break
        return code


class HostLauncher(Launcher):
    """Runs a script on hosts that train in step, each a process of this machine.

    The console shows what the first one prints, and the last lines of one that ended by an error. When one
    ends by an error, the others notice, and end too. Restarts are then counted for all together.

    Args:
        script, logs, restarts, log_bytes: as for `Launcher`.
        hosts: int, how many.
    """

    def __init__(self, script, hosts=2, logs="cluster_logs", restarts=0, log_bytes=_LOG_BYTES):
        super().__init__(script, hosts, 0, logs, restarts, log_bytes)

    def _new_cluster(self, workers, ps):
        return Cluster({"worker": tuple(f"127.0.0.1:{port}" for port in free_ports(workers))}, "worker")

    def _start_first(self):
        for job, index, _ in self.cluster.hosts():
            shown = None if index == 0 else _NEVER  # all hosts say much the same
            self._start_child(job, index, f"host {index}", self.script, hidden_until=shown)

    def _watch(self):
        code, deadline = 0, None
        while self.children:
            self.console.wait(0.5)
            if self._signals:
                return self._stop()
            for (job, index), child in list(self.children.items()):
                if child.process.poll() is None:
                    continue
                self.console.remove(child)
                child.close()
                del self.children[job, index]
                ended = child.process.returncode
                if ended:
                    title = self.cluster.name(job, index)
                    self.console.say(f"{title} {child.how_it_ended()}; its output is in {child.log}")
                    if not child.ready:
                        self.console.say("\n".join(child.last_lines))
                    code = code or (128 - ended if ended < 0 else ended)
                    deadline = deadline or time.monotonic() + _SCRIPT_GRACE
            if deadline is not None:
                self._end_after(self.children.values(), deadline)
            if not self.children and code and self.restarts:
                self.restarts -= 1
                self.console.say(f"all hosts are started again ({self.restarts} more restarts)")
                code, deadline = 0, None
                self.cluster = self._new_cluster(len(self.cluster.hosts()), 0)
                self._start_first()
        return code


def free_ports(count):
    """Return `count` different ports that nothing listens on now.

    They lie below the range that the system takes for outgoing connections (from 32768 on, where nobody
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


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m keras_largeout.distribute.launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, default=2, help="beside a chief; without --ps: hosts")
    parser.add_argument("--ps", type=int, default=0, help="parameter servers; 0: none, workers train in step")
    parser.add_argument("--logs", default="cluster_logs", help="folder for the output of every process")
    parser.add_argument(
        "--restarts", type=int, default=0, help="how often in total processes that died are started again"
    )
    parser.add_argument(
        "--log-bytes",
        type=int,
        default=_LOG_BYTES,
        help="size at which a file of output becomes NAME.log.1; 0: no limit (default: %(default)s)",
    )
    parser.add_argument("script", help="runs as the chief")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    options = parser.parse_args(arguments)
    for name, least in (("workers", 1), ("ps", 0), ("log_bytes", 0)):
        if getattr(options, name) < least:
            parser.error(
                f"`--{name.replace('_', '-')}` must be at least {least}. Received: {getattr(options, name)}"
            )
    script = [options.script, *options.arguments]
    if options.ps:
        launcher = Launcher(
            script, options.workers, options.ps, options.logs, options.restarts, options.log_bytes
        )
    else:
        launcher = HostLauncher(script, options.workers, options.logs, options.restarts, options.log_bytes)
    return launcher.run()


if __name__ == "__main__":
    sys.exit(main())
