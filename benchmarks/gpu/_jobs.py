"""Runs programs, one after another or several at once: each has a limit, a log and a record."""

import collections
import contextlib
import ctypes
import os
import signal
import subprocess
import time
from dataclasses import dataclass

# STOPPED: at a limit, or with the whole run. That is no success, and says nothing of the program.
OK, FAILED, STOPPED, SKIPPED = "ok", "FAILED", "STOPPED", "skipped"
_PAUSE = 0.02  # between two looks at the programs that run
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_GRACE = 3.0  # from "please end" to "end"
_RESERVE = 5.0  # seconds of the budget that are kept for the last report


class CutOff(BaseException):
    """The run was told to stop: by a signal, from a user or a scheduler."""


class Budget:
    """Seconds that a run may take; None: as many as it likes."""

    def __init__(self, seconds=None):
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self):
        return float("inf") if self._end is None else self._end - time.monotonic() - _RESERVE


@dataclass(frozen=True)
class Job:
    """One program.

    Args:
        step: The step that it belongs to.
        name: Names its log and its record; unique within the step.
        command: The program and its arguments.
        limit: Seconds after which it is stopped.
        needs: Seconds that it takes at the least: it isn't begun with less left.
        skips: `(exit code, why the program had nothing to do)`, of several codes.
        unless: `(text, what it means)`, of several texts. A failed job whose log has the text was skipped.
    """

    step: str
    name: str
    command: tuple
    limit: float
    needs: float = 0.0
    skips: tuple = ()
    unless: tuple = ()


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen
    began: float
    until: float


def _own_group():
    """Start a new process group: it can be ended as a whole, and it ends with us, even if we are killed."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _stop(process):
    """Ends a program and what it has started."""
    for signal_number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            continue


class Runner:
    """Runs jobs.

    Args:
        logs: Folder for the logs: STEP-NAME.log.
        budget: A `Budget`.
        done: Called with the record of each job: a dict of step, name, status, seconds, note.
        environment: Variables of the programs.
    """

    def __init__(self, logs, budget, done, environment):
        self._logs, self._budget, self._done, self._environment = logs, budget, done, environment

    def log(self, job):
        return self._logs / f"{job.step}-{job.name}.log"

    def run(self, *jobs, at_once=1):
        """Return their records, as they end."""
        waiting, running, records = collections.deque(jobs), [], []
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    job, left = waiting.popleft(), self._budget.left()
                    if job.needs > left:
                        note = f"needs about {job.needs:.0f} s, {max(0, left):.0f} s of the budget are left"
                        records.append(self._record(job, SKIPPED, 0, note))
                        continue
                    try:
                        running.append(self._begin(job, left))
                    except OSError as error:
                        records.append(self._record(job, FAILED, 0, str(error)))
                for one in list(running):
                    record = self._look(one)
                    if record:
                        running.remove(one)
                        records.append(record)
                if running:
                    time.sleep(_PAUSE)
        except CutOff:
            for one in running:
                _stop(one.process)
                self._record(one.job, STOPPED, time.monotonic() - one.began, "cut off")
            raise
        return records

    def _begin(self, job, left):
        with open(self.log(job), "wb") as log:
            process = subprocess.Popen(
                [str(part) for part in job.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_own_group,
                env=self._environment,
            )
        now = time.monotonic()
        return _Running(job, process, now, now + min(job.limit, left))

    def _look(self, one):
        """Return the record of a job that has ended, or None."""
        job, code = one.job, one.process.poll()
        took = time.monotonic() - one.began
        if code is None and time.monotonic() < one.until:
            return None
        if code is None:
            _stop(one.process)
            return self._record(job, STOPPED, took, f"not done after {took:.0f} s")
        if code == 0:
            return self._record(job, OK, took)
        skips = dict(job.skips)
        if code in skips:
            return self._record(job, SKIPPED, took, skips[code])
        text = self.log(job).read_text(errors="replace")
        for part, meaning in job.unless:
            if part in text:
                return self._record(job, SKIPPED, took, meaning)
        cause = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
        return self._record(job, FAILED, took, cause)

    def _record(self, job, status, seconds, note=""):
        seconds = round(seconds, 2)
        record = {"step": job.step, "name": job.name, "status": status, "seconds": seconds, "note": note}
        self._done(record)
        return record
