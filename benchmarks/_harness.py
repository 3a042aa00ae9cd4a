"""Runs cases in fresh processes, in turn, and keeps what they report.

A case is one library on one problem. Rounds go over all cases of a problem before the next round starts, so
that a slow minute of the machine hits all of them alike; the median is taken over the steps of all rounds.
"""

import fnmatch
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import _worker

ROOT = Path(__file__).resolve().parents[1]
NOT_INSTALLED = "not installed (pip install keras-largeout[benchmarks])"


@dataclass(frozen=True)
class Case:
    """One library on one problem.

    Args:
        problem: What is computed, e.g. `"10M LazyAdam"`. Cases of a problem are compared with each other.
        library: Who computes it.
        target: `"package.module:function"`, called in the worker as `function(config, data)`.
        config: JSON-able arguments.
        data: Files of arrays, `{name: path}`, made once by the parent and shared by all.
        notes: Numbers known beforehand (bytes, flops or rows of a step); those of the worker are added.
        needs: Packages without which the row says "not installed".
        ours: Ours must run; a peer may fail, visibly.
        environment: Variables of the worker's environment.
        rounds, seconds, min_steps, max_steps: How long to measure.
    """

    problem: str
    library: str
    target: str
    config: dict
    data: dict = field(default_factory=dict)
    needs: tuple = ()
    notes: dict = field(default_factory=dict)
    ours: bool = False
    environment: dict = field(default_factory=dict)
    rounds: int = 3
    seconds: float = 4.0
    min_steps: int = 3
    max_steps: int = 200

    @property
    def name(self):
        return f"{self.problem}/{self.library}"

    def but(self, **changes):
        """Return a copy with some fields changed."""
        return replace(self, **changes)


@dataclass
class Result:
    """What the rounds of one case gave."""

    case: Case
    times: list = field(default_factory=list)
    cpu: list = field(default_factory=list)
    losses: list = field(default_factory=list)
    peak_bytes: int = 0
    anonymous_bytes: int = 0
    build_seconds: float = 0.0
    notes: dict = field(default_factory=dict)
    error: str = ""

    @property
    def median(self):
        return statistics.median(self.times) if self.times else None

    def add(self, report):
        self.error = self.error or report.get("error", "")
        if "error" in report:
            return
        self.times += report["times"]
        self.cpu.append(report["cpu_seconds"])
        self.losses = report["losses"]
        self.peak_bytes = max(self.peak_bytes, report["peak_bytes"])
        self.anonymous_bytes = max(self.anonymous_bytes, report["anonymous_bytes"])
        self.build_seconds = report["build_seconds"]
        self.notes = {**self.case.notes, **report["notes"]}

    def to_json(self):
        spread = (
            statistics.quantiles(self.times, n=10, method="inclusive")
            if len(self.times) > 1
            else self.times * 9
        )
        return {
            "problem": self.case.problem,
            "library": self.case.library,
            "ours": self.case.ours,
            "error": self.error or None,
            "median_ms": 1e3 * self.median if self.times else None,
            "p10_ms": 1e3 * spread[0] if self.times else None,
            "p90_ms": 1e3 * spread[-1] if self.times else None,
            "cpu_ms": 1e3 * min(self.cpu) if self.cpu else None,
            "steps": len(self.times),
            "first_losses": self.losses,
            "peak_bytes": self.peak_bytes,
            "anonymous_bytes": self.anonymous_bytes,
            "build_seconds": self.build_seconds,
            **self.notes,
        }


def matches(case, patterns):
    """Return whether a case is asked for: without patterns all are, else those in whose name one of them
    occurs.
    """
    name = case.name.lower()
    return not patterns or any(fnmatch.fnmatch(name, f"*{pattern.lower()}*") for pattern in patterns)


def run_worker(
    target,
    config,
    data,
    seconds=4.0,
    min_steps=3,
    max_steps=200,
    verbose=False,
    environment=None,
    forked=False,
):
    """Runs `target` in a fresh process. Returns the worker's report, or `{"error": ...}`.

    `forked`: the process has the package imported when it begins. That saves seconds, and its memory says
    nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        spec, out = Path(folder, "spec.json"), Path(folder, "result.json")
        limits = {"seconds": seconds, "min_steps": min_steps, "max_steps": max_steps}
        spec.write_text(json.dumps({"target": target, "config": config, "data": data, **limits}))
        # The processor is what is measured here, also on a machine with a GPU.
        env = {"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow", **os.environ}
        env = {**env, "CUDA_VISIBLE_DEVICES": "", **(environment or {})}
        if forked:
            log = Path(folder, "log")
            code = _worker.forked(spec, out, env, log)
            said = log.read_text()
        else:
            command = [sys.executable, "-m", "benchmarks._worker", str(spec), str(out)]
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
            code, said = done.returncode, done.stderr
        if verbose and said.strip():
            print(said, file=sys.stderr)
        if out.exists():
            return json.loads(out.read_text())
        reason = "killed, out of memory?" if code == -9 else f"exit status {code}"
        return {"error": f"the process ended without a result ({reason})"}


def run_cases(cases, verbose=False, forked=False):
    """Runs all cases, problem by problem and round by round. Returns one Result per case, in order.

    `forked`: our own cases, as `run_worker` has it.
    """
    results = {case.name: Result(case) for case in cases}
    for problem in dict.fromkeys(case.problem for case in cases):
        group = [case for case in cases if case.problem == problem]
        for case in group:
            if any(importlib.util.find_spec(package) is None for package in case.needs):
                results[case.name].error = NOT_INSTALLED
        for turn in range(max(case.rounds for case in group)):
            for case in group:
                result = results[case.name]
                if turn >= case.rounds or result.error:
                    continue
                print(f"  round {turn + 1}/{case.rounds}: {case.name} ...", file=sys.stderr, flush=True)
                result.add(
                    run_worker(
                        case.target,
                        case.config,
                        case.data,
                        case.seconds,
                        case.min_steps,
                        case.max_steps,
                        verbose,
                        case.environment,
                        forked and case.ours,
                    )
                )
    return list(results.values())
