"""A cluster of real processes: servers that can be killed, stopped, started again; scripts as its chief."""

import contextlib
import ctypes
import fcntl
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
from _forked import Forked

from keras_largeout.distribute.processes.config import Cluster
from keras_largeout.distribute.processes.listening import free_ports

_LIBC = ctypes.CDLL(None)
# Long: what is waited for comes in a second or so, on a machine that does nothing else.
PATIENCE = 180.0
SERVER = ("-m", "keras_largeout.distribute.server")


class Running:
    """A process whose output is read as it comes.

    Args:
        command: what follows `python`.
        environment: dict, all of its environment.
        forked: whether it begins with the package of this process imported, which saves time.
    """

    def __init__(self, command, environment, forked=False):
        self.process = Forked(command, environment) if forked else _started(command, environment)
        self.lines = []
        self._changed = threading.Condition()
        self._open = True
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._open = False
            self._changed.notify_all()

    @property
    def text(self):
        return "\n".join(self.lines)

    def wait_for(self, pattern, times=1):
        """Waits until `times` lines have matched; the last match. Fails when the process ends before."""
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while True:
                found = [m for m in (re.search(pattern, line) for line in self.lines) if m]
                if len(found) >= times:
                    return found[times - 1]
                assert self._open, f"the process ended before it printed {pattern!r}:\n{self.text}"
                assert time.monotonic() < deadline, f"{pattern!r} did not come:\n{self.text}"
                self._changed.wait(1.0)

    def send(self, number):
        os.kill(self.process.pid, number)

    def ended(self):
        """Waits for the end; the exit code."""
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the process did not end:\n{self.text}")
        with self._changed:
            self._changed.wait_for(lambda: not self._open, 10.0)
        return code

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _started(command, environment):
    parent = os.getpid()

    def die_with_parent():
        _LIBC.prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        cwd=tempfile.gettempdir(),  # not where the sources may be, which have no compiled ops
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


class Ports:
    """Ports that no other test gets while this object is open, whichever process runs that test.

    A server binds its port some seconds after the port was chosen. Until then a lock on a file of that name
    keeps the port for this test.
    """

    def __init__(self, count):
        folder = pathlib.Path(tempfile.gettempdir()) / f"keras_largeout_ports_{os.getuid()}"
        folder.mkdir(exist_ok=True)
        self._locks = {}
        while len(self._locks) < count:
            (port,) = free_ports(1)
            lock = open(folder / str(port), "w")  # noqa: SIM115
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
            else:
                self._locks[port] = lock

    def __iter__(self):
        return iter(self._locks)

    def close(self):
        for lock in self._locks.values():
            lock.close()


class LocalCluster:
    """Workers and parameter servers on this machine; `run` runs a script as their chief."""

    def __init__(self, folder, workers=2, ps=2):
        self.folder = pathlib.Path(folder)
        count = {"chief": 1, "worker": workers, "ps": ps}
        self._ports = Ports(sum(count.values()))
        ports = iter(self._ports)
        self.cluster = Cluster(
            {job: tuple(f"127.0.0.1:{next(ports)}" for _ in range(n)) for job, n in count.items()}
        )
        self.servers = {}
        self.scripts = []

    def start(self, *only, command=None, forked=True, **environment):
        """Starts servers (`("worker", 0), ...`; without any: all) and waits until they are up."""
        started = only or [(job, index) for job, index, _ in self.cluster.servers()]
        for job, index in started:
            own = environment_of(self.cluster.task(job, index)) | environment
            self.servers[job, index] = Running(command or SERVER, own, forked=forked)
        for server in started:
            self.servers[server].wait_for("^(keras_largeout|bare): .*is ready")

    def kill(self, job, index):
        server = self.servers.pop((job, index))
        server.close()

    def address(self, job, index):
        return self.cluster.addresses[job][index]

    def run(self, script, **environment):
        """Starts `script` (source) as the chief."""
        path = self.folder / f"script_{len(self.scripts)}.py"
        path.write_text(script)
        own = environment_of(self.cluster) | environment
        self.scripts.append(Running([str(path)], own, forked=True))
        return self.scripts[-1]

    def close(self):
        for process in (*self.scripts, *self.servers.values()):
            process.close()
        self._ports.close()


def environment_of(cluster):
    return {
        **os.environ,
        "TF_CONFIG": cluster.to_tf_config(),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
