"""`Launcher`: runs a script and the workers and parameter servers of a cluster as processes of this machine.

`HostLauncher` runs it on synchronous hosts. What the processes print is shown under their names and kept in
one file each; a process that dies is named, and may be started again. When the script ends, everything ends.
"""

import os
import pathlib
import signal
import sys
import time

from keras_largeout.distribute.processes.config import Cluster
from keras_largeout.distribute.processes.exit_codes import FAILED, LOST, SIGNAL, SUCCESS, of_process
from keras_largeout.distribute.processes.heartbeat import Heartbeat, answers
from keras_largeout.distribute.processes.listening import free_ports
from keras_largeout.distribute.processes.log_lines import FORMS
from keras_largeout.distribute.processes.metrics_page import LauncherMetrics
from keras_largeout.distribute.processes.supervise import Child, Console

LOG_BYTES = 100_000_000
_READY = b" is ready"
_NEVER = b"\0"  # in no line
_GRACE = 20.0  # seconds from SIGTERM to SIGKILL
_SCRIPT_GRACE = 120.0  # seconds that a script has to notice that a parameter server died
_ANSWER = 5.0  # seconds in which a server answers


class Launcher:
    """Runs a script as the chief of a local cluster.

    Args:
        script: list of str, the script and its arguments.
        workers, ps: int, how many of them.
        logs: path of the folder for the files of output.
        max_restarts: int, how often in total processes that died are started again. The script counts as one
            when it was killed, and when it ended because a parameter server died.
        log_bytes: int, the size at which a file of output is rotated; 0 for no limit.
        log_format: "text" or "json".
        metrics: None, or the port and the address of a page of metrics.
        heartbeat_timeout: float, seconds after which a script that stands still is killed.
    """

    def __init__(
        self,
        script,
        workers=2,
        ps=2,
        logs="cluster_logs",
        max_restarts=0,
        log_bytes=LOG_BYTES,
        log_format="text",
        metrics=None,
        heartbeat_timeout=60.0,
    ):
        self.script = list(script)
        self.logs = pathlib.Path(logs)
        self.restarts, self.restarted = max_restarts, 0
        self.log_bytes, self.form, self.metrics = log_bytes, FORMS[log_format], metrics
        self.heartbeat_timeout, self._heartbeat = heartbeat_timeout, None
        self.children = {}
        self._signals, self._told = [], set()
        self._lost_ps_at = None
        self.cluster = self._new_cluster(workers, ps)

    def _new_cluster(self, workers, ps):
        count = {"chief": 1, "worker": workers, "ps": ps}
        ports = iter(free_ports(sum(count.values())))
        return Cluster({job: tuple(f"127.0.0.1:{next(ports)}" for _ in range(n)) for job, n in count.items()})

    def run(self):
        """Runs until the script ends; its exit code, or one of `processes.exit_codes`."""
        self.logs.mkdir(parents=True, exist_ok=True)
        self.console = Console(self.form)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda got, _: self._signals.append(got))
        if self.metrics is not None:
            self.console.say(f"metrics on port {LauncherMetrics(self, *self.metrics).port}")
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

    def _watch_over(self, tasks):
        """Kill these processes when they stand still, from now on, and no others."""
        if self._heartbeat is not None:
            self._heartbeat.close()
        self._heartbeat = Heartbeat(
            self.cluster,
            [(job, index, self.cluster.addresses[job][index]) for job, index in tasks],
            self.heartbeat_timeout,
            self._kill_silent,
            lambda text, *values: self.console.say(text % values, "WARNING"),
            lambda *task: task in self.children and self.children[task].stopped,
        )

    def _kill_silent(self, *task):
        child = self.children.get(task)
        if child is not None and not child.stood_still:
            child.stood_still = True
            self.console.say(f"{self.cluster.name(*task)} is killed", "WARNING")
            child.send(signal.SIGKILL)

    @staticmethod
    def _code_of(child):
        return LOST if child.stood_still else of_process(child.process.returncode)

    def _watch(self):
        while not all(child.ready for child in self.children.values()):
            self.console.wait(0.5)
            if self._signals:
                return self._stop()
            if self._reap() and not self.restarts:
                return self._stop(FAILED)
        self._start("chief", 0)
        while True:
            self.console.wait(0.5)
            if self._signals:
                return self._stop()
            for (job, _), child in self._reap():
                if job == "chief":
                    code = self._code_of(child)
                    lost = code and (code == LOST or self._lost_ps_at is not None)
                    if lost and self.restarts:
                        self._end_silent()
                    if not self._again(job, 0, child.process.returncode < 0 or lost):
                        return self._stop(code)
            if not any(job == "worker" for job, _ in self.children):
                self.console.say("no worker is left", "ERROR")
                return self._stop(LOST)
            if self._lost_ps_at is not None:
                self._end_after([self.children["chief", 0]], self._lost_ps_at + _SCRIPT_GRACE)

    def _start(self, job, index):
        # Weights of parameter servers are in main memory.
        no_gpu = {} if job == "worker" else {"CUDA_VISIBLE_DEVICES": ""}
        if job == "chief":
            self._lost_ps_at = None
            self._watch_over([(job, index)])
            self._start_child(job, index, job, self.script, **no_gpu)
        else:
            patience = f"{2 * self.heartbeat_timeout:g}"  # this process gives the script up first
            server = ["-m", "keras_largeout.distribute.server", "--heartbeat-timeout", patience]
            self._start_child(job, index, f"{job} {index}", server, hidden_until=_READY, **no_gpu)

    def _start_child(self, job, index, name, arguments, hidden_until=None, **environment):
        """Start a Python process with these arguments as `index` of `job` in the cluster."""
        own = self.cluster.task(job, index)
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, **environment}
        environment |= {"TF_CONFIG": own.to_tf_config(), "PYTHONUNBUFFERED": "1"}
        log = self.logs / f"{name.replace(' ', '_')}.log"
        command = [sys.executable, *arguments]
        child = Child(name, command, environment, log, hidden_until, self.log_bytes, self.form)
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
            self._say_how_it_ended(job, index, child)
            if job == "ps":
                self._lost_ps_at = time.monotonic()
            self._again(job, index)
        return ended

    def _say_how_it_ended(self, job, index, child):
        title = self.cluster.name(job, index)
        self.console.say(f"{title} {child.how_it_ended()}; its output is in {child.log}", "WARNING")
        if not child.ready:
            self.console.say("\n".join(child.last_lines), "ERROR")

    def _again(self, job, index, wanted=True):
        if not wanted or not self.restarts:
            return False
        self._count("the script is" if job == "chief" else f"{self.cluster.name(job, index)} is")
        self._start(job, index)
        return True

    def _count(self, what):
        self.restarts, self.restarted = self.restarts - 1, self.restarted + 1
        self.console.say(f"{what} started again ({self.restarts} more restarts)", "WARNING")

    def _end_silent(self):
        """Kill servers that stand still: the script, started again, would wait for them."""
        for (job, index), child in self.children.items():
            if answers(self.cluster.addresses[job][index], _ANSWER) is None:
                child.send(signal.SIGKILL)
                child.process.wait()
        self._reap()

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
            code = SIGNAL + self._signals[0]
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
    """Runs a script on synchronous hosts, each a process of this machine.

    The console shows what the first one prints, and the last lines of one that ended by an error. When one
    ends by an error, the others notice, and end too. Restarts are then counted for all together.

    Args:
        script: list of str, the script and its arguments.
        hosts: int, how many.
        **kwargs: the other arguments of `Launcher`.
    """

    def __init__(self, script, hosts=2, **kwargs):
        super().__init__(script, hosts, 0, **kwargs)

    def _new_cluster(self, workers, ps):
        return Cluster({"worker": tuple(f"127.0.0.1:{port}" for port in free_ports(workers))}, "worker")

    def _start_first(self):
        self._watch_over([(job, index) for job, index, _ in self.cluster.hosts()])
        for job, index, _ in self.cluster.hosts():
            shown = None if index == 0 else _NEVER  # all hosts say much the same
            self._start_child(job, index, f"host {index}", self.script, hidden_until=shown)

    def _watch(self):
        code, deadline = SUCCESS, None
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
                    self._say_how_it_ended(job, index, child)
                    code = code or self._code_of(child)
                    deadline = deadline or time.monotonic() + _SCRIPT_GRACE
            if deadline is not None:
                self._end_after(self.children.values(), deadline)
            if not self.children and code and self.restarts:
                self._count("all hosts are")
                code, deadline = SUCCESS, None
                self.cluster = self._new_cluster(len(self.cluster.hosts()), 0)
                self._start_first()
        return code
