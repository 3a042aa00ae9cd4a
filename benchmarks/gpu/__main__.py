"""Runs the steps that STEPS names, and renews the report after every program: see run.sh."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from benchmarks.gpu import _machine, report
from benchmarks.gpu._jobs import FAILED, STOPPED, Budget, CutOff, Runner
from benchmarks.gpu._steps import DEFAULT, Folders, Steps

NO_GPU = 77


class Records:
    """What became of each program, in a file of the work folder: a later call adds to it."""

    def __init__(self, path, renew):
        self._path, self._renew = path, renew
        self._all = json.loads(path.read_text()) if path.exists() else []
        self.failed = []

    def add(self, record):
        same = [(one["step"], one["name"]) == (record["step"], record["name"]) for one in self._all]
        self._all = [one for one, replaced in zip(self._all, same) if not replaced] + [record]
        self._path.write_text(json.dumps(self._all, indent=1) + "\n")
        name = f"{record['step']}: {record['name']}" if record["step"] != record["name"] else record["step"]
        print(f"{record['status']:8}{name:44} {record['seconds']:7.1f} s  {record['note']}", flush=True)
        if record["status"] in (FAILED, STOPPED):
            self.failed.append(name)
            self._print_end(f"{record['step']}-{record['name']}.log")
        self._renew()

    def _print_end(self, name, lines=25):
        log = self._path.parent / "logs" / name
        if log.exists():
            print("\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-lines:]))


def _folders(root, environment):
    out = Path(environment.get("OUT") or root / "benchmarks/gpu/out").resolve()
    build = Path(environment.get("BUILD") or root / "build-gpu").resolve()
    binaries = Path(environment["BIN"]).resolve() if environment.get("BIN") else build
    work = Path(environment.get("WORK") or build / "results").resolve()
    return Folders(root, build, binaries, work, out, prebuilt=bool(environment.get("BIN")))


def _prepare(folders, machine):
    """Makes the folders. What an earlier run of other kernels, or on another card, has left is removed."""
    known = folders.work / "machine.json"
    if known.exists() and not _machine.same_run(json.loads(known.read_text()), machine):
        shutil.rmtree(folders.work)
    for folder in (folders.out, folders.raw, folders.logs):
        folder.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps(machine, indent=1) + "\n")


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _cut_off(*_):
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise CutOff


def main(environment=os.environ):
    root = Path(__file__).resolve().parents[2]
    names = (environment.get("STEPS") or " ".join(DEFAULT)).replace(",", " ").split()
    unknown = sorted(set(names) - set(Steps.NAMES))
    if unknown:
        print(f"STEPS has {', '.join(unknown)}. There are: {' '.join(Steps.NAMES)}")
        return 1
    if not _machine.has_gpu():
        print("no GPU: nvidia-smi finds none. Nothing was built, tested or measured.")
        return NO_GPU
    seconds = environment.get("BUDGET")
    budget = Budget(float(seconds) if seconds else None)
    folders, machine = _folders(root, environment), _machine.describe(root)
    _prepare(folders, machine)
    print(_machine.text(machine), flush=True)

    def renew():
        try:
            report.renew(folders.work, folders.out)
        except Exception as error:  # what was measured stays: the next renewal may succeed
            print(f"the report was not renewed: {error!r}", flush=True)
            broken.append(error)

    broken = []
    records = Records(folders.work / "steps.json", renew)

    def note(step, name, status, text, took=0.0):
        records.add({"step": step, "name": name, "status": status, "seconds": took, "note": text})

    variables = {**os.environ, "PYTHONUNBUFFERED": "1"}
    runner = Runner(folders.logs, budget, records.add, variables)
    at_once = int(environment.get("JOBS") or min(8, os.cpu_count() or 1))
    steps = Steps(folders, runner, note, machine["compute capability"], at_once)
    for number in _SIGNALS:
        signal.signal(number, _cut_off)
    renew()
    try:
        for name in names:
            steps.run(name)
    except CutOff:
        print("cut off: the report has what was done until now")
        renew()
        return 1
    if broken:
        return 1
    print("\n" + (folders.out / "results.md").read_text())
    if records.failed:
        print(f"failed or stopped: {', '.join(records.failed)}  (logs in {folders.out}/logs.tar.gz)")
        return 1
    print(f"every step passed or was skipped with a reason; results in {folders.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
