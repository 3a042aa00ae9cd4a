"""Build, test and measure the CUDA kernels on a GPU: `python3 -m benchmarks.gpu.run a`, see README.md."""

import argparse
import concurrent.futures
import contextlib
import datetime
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

from benchmarks import _table

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^ *#include "((?!cuda_emulator)\w+)/(.+)"', re.MULTILINE)
QUERY = "nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader"
CHANGED = "git diff --quiet HEAD -- custom_ops keras_largeout || echo and changes"
COMMIT = f"exec 2>/dev/null; cd {ROOT}; echo $(git rev-parse --short HEAD && ({CHANGED}))"
NCU = "ncu --set basic --clock-control none --profile-from-start off --launch-count 100"
TOOLS = ("racecheck", "initcheck", "memcheck", "synccheck")
#: Seconds; the kind of the programs, or none; the command, or what stands in front of each program.
STEPS = {
    "build": (220, "", "sh benchmarks/gpu/build.sh"),
    "test": (100, "test", ""),
    "bench": (220, "bench", ""),
    "tensorflow": (330, "", f"{sys.executable} -m benchmarks.gpu.tensorflow_steps"),
    "torch": (210, "", f"{sys.executable} -m benchmarks.gpu.torch_peers"),
    **{tool: (160, "test", f"compute-sanitizer --error-exitcode 9 --tool {tool}") for tool in TOOLS},
    "ncu": (300, "bench", f"{NCU} --print-summary per-kernel"),
}
CALLS = {"a": "build test bench", "b": "tensorflow torch", "c": "build racecheck initcheck"}
LONGEST = 120  # seconds of a program, where a step has several
NOT_HERE = (
    "failed to run command|Device not supported|Unable to find injection|ERR_NVGPUCTRPERM|LibraryNotLoaded"
)


def row_of(line):
    """Return what a line of a program says was measured, a dict, or None."""
    with contextlib.suppress(ValueError):  # text, or half a line
        row = json.loads(line) if line.startswith("{") else {}
        return row if "card" in row or row.keys() >= {"bench", "case", "part", "ms"} else None


def times(rows, recorded):
    """Return a Markdown table of rows, beside the last time of each in the tables of a text."""
    found = re.findall(r"^\| (\w+) \| (.+?) \| (.+?) \| ([\d.]+) \|", recorded, re.MULTILINE)
    before, cells = {tuple(key): ms for *key, ms in found}, []
    for key, row in sorted({(r["bench"], r["case"], r["part"]): r for r in rows if "ms" in r}.items()):
        old = f"{before[key]} ({float(before[key]) / row['ms']:.2f}x)" if key in before else ""
        deciles = f"{row['low']:.3f} .. {row['high']:.3f}" if "low" in row else ""
        cells.append([*key, f"{row['ms']:.3f}", old, deciles, row.get("note", "")])
    return _table.markdown(["bench", "case", "part", "ms", "before", "deciles", "note"], cells)


class Run:
    """Runs programs. What came of them is the last section of RESULTS.md, written again with every result."""

    def __init__(self, title, recorded, folder):
        self.title, self.recorded, self.file = title, recorded, folder / "RESULTS.md"
        self.earlier = self.file.read_text() if self.file.exists() else ""
        self.log = open(folder / "run.log", "a")  # noqa: SIM115 (open for the whole run)
        self.lock, self.stopped = threading.Lock(), False
        self.running, self.rows, self.programs = set(), [], []

    def stop(self, *_):
        self.stopped = True
        for process in tuple(self.running):
            process.terminate()

    def write(self):
        cards = [", ".join(f"{key}: {value}" for key, value in r.items()) for r in self.rows if "card" in r]
        header = ["step", "program", "sources", "result", "seconds", "note"]
        tables = times(self.rows, self.recorded), _table.markdown(header, self.programs)
        fresh = self.file.with_name("RESULTS.new")
        fresh.write_text("\n\n".join([f"{self.earlier}\n## {self.title}", *cards[:1], *tables]) + "\n")
        os.replace(fresh, self.file)

    def program(self, step, name, command, until, sources="-"):
        """Run a program until then at most, and keep what came of it."""
        began, code, line, not_here = time.monotonic(), None, "no time was left", False
        if not self.stopped and until - began >= 1:
            command = ["timeout", "-k", "3", f"{until - began:.0f}", *map(str, command)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}
            process = subprocess.Popen(command, cwd=ROOT, **pipes)
            self.running.add(process)
            for line in process.stdout:
                not_here = not_here or re.search(NOT_HERE, line)
                with self.lock:
                    print(f"{step} {name}: {line}", end="", file=self.log, flush=True)
                    if row := row_of(line):
                        self.rows.append(row)
                        self.write()
            self.running.discard(process)
            code = process.wait()
        result = {None: "not begun", 0: "ok", 124: "stopped", 137: "stopped"}.get(code, "FAILED")
        if code and (not_here or (code, sources) == (77, "-")):
            result = "left out"  # a program of the kernels that finds no GPU has failed
        result = "stopped" if code and self.stopped else result
        note = "" if result in ("ok", "stopped") else line.strip()[:80].replace("|", "/")
        seconds = f"{time.monotonic() - began:.1f}"
        with self.lock:
            self.programs.append([step, name, sources, result, seconds, note])
            print("{:11} {:30} {:9} {:9} {:>6} s  {}".format(*self.programs[-1]), flush=True)
            self.write()


def sources_of(program):
    """Return the files of a program: what it includes, transitively, and the kernels of those families."""
    found, unread = set(), set(ROOT.glob(f"custom_ops/*/test/{program.rpartition('_')[0]}.cu"))
    while unread:
        found.add(path := unread.pop())
        for family, name in INCLUDE.findall(path.read_text()):
            folder = ROOT / "custom_ops" / family
            kernels = [*folder.glob("*.cc"), *folder.glob("cuda/*.c[cu]")]
            unread |= {folder / name, *kernels} - found
    return sorted(found)


def digest(files):
    """Return a digest of the contents of files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]


def changed_lines(text):
    """Return how many lines each file has changed by since the newest commit in a text's titles and cells.

    Nothing where there is no Git, or no such commit.
    """
    commits = set(re.findall(r"(?:, commit|\|) ([0-9a-f]{7,40})\b", text))

    def git(*arguments):
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, check=False, text=True).stdout.split()

    newest = git("log", "-1", "--no-walk", "--ignore-missing", "--format=%h", *commits) if commits else []
    cells = iter(git("diff", "--numstat", "--no-renames", *newest, "--", "custom_ops") if newest else [])
    return {
        ROOT / name: int(added) + int(gone)
        for added, gone, name in zip(cells, cells, cells)
        if added.isdigit()  # "-": of a binary file
    }


def take(run, step, until, options):
    """Take a step. Programs that passed with these sources come last, those that changed most first."""
    _, kind, command = STEPS[step]
    quick = ["--quick"] * (options.quick and step not in ("build", "test", *TOOLS))
    if not kind:
        return run.program(step, step, [*command.split(), *quick], until)
    built = options.build.glob(f"*_{kind}_{'emulated' if options.emulated else 'cuda'}")
    found = [path for path in built if options.only in path.name]
    programs, changed = {}, changed_lines((ROOT / "benchmarks/gpu/RESULTS.md").read_text())
    for path in found:
        files = sources_of(path.name)
        passed = f"| {step} | {path.name} | {digest(files)} | ok |" in run.recorded
        order = passed, -sum(changed.get(file, 0) for file in files), path.name
        programs[order] = path.name, digest(files), [*command.split(), path, *quick]
    programs = [programs[order] for order in sorted(programs)]

    def one(name, sources, command):
        end = min(until, time.monotonic() + LONGEST * options.longer)
        run.program(step, name, [*command, *["--once"] * (step == "ncu")], end, sources)

    with concurrent.futures.ThreadPoolExecutor(1 if kind == "bench" else 8) as pool:
        list(pool.map(one, *zip(*programs)))
    return programs or run.program(step, "no program was built", ["false"], until)


def main(argv=None):
    """Return the exit code: 1 if a program failed or was stopped, 77 without a GPU."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.gpu.run", description=__doc__)
    parser.add_argument("steps", nargs="+", choices=[*CALLS, *STEPS])
    parser.add_argument("--only", default="", metavar="TEXT", help="programs whose name has TEXT")
    parser.add_argument("--longer", type=float, default=1, metavar="TIMES", help="give every step more time")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument("--emulated", action="store_true", help="programs of the emulation of a GPU")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-gpu", help="has the programs")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "benchmarks/gpu", help="has RESULTS.md")
    options = parser.parse_args(argv)
    code, gpu = (0, "emulation, 9.0, none") if options.emulated else subprocess.getstatusoutput(QUERY)
    if code or not gpu:
        print(f"no GPU, so that nothing was built, tested or measured: {gpu}")
        return 77
    card, capability, driver = gpu.splitlines()[0].split(", ")
    os.environ |= {"BUILD": str(options.build.resolve()), "ARCH": capability.replace(".", "")}
    commit = os.environ.get("COMMIT") or subprocess.getoutput(COMMIT) or "unknown"
    title = f"{card}, {datetime.datetime.now():%d %B %Y %H:%M}, commit {commit}, driver {driver}"
    options.build, options.out = options.build.resolve(), options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    sections = (ROOT / "benchmarks/gpu/RESULTS.md").read_text().split("\n## ")
    run = Run(title, "\n".join(s for s in sections if s.startswith(card)), options.out)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, run.stop)
    until = time.monotonic()
    for step in " ".join(CALLS.get(step, step) for step in options.steps).split():
        until += STEPS[step][0] * options.longer  # what a step leaves, the next one has
        take(run, step, until, options)
    print(run.file.read_text()[len(run.earlier) :])
    failed = [" ".join(program[:2]) for program in run.programs if program[3] in ("FAILED", "stopped")]
    print("failed or stopped:", ", ".join(failed) or "none")
    return 1 if failed or run.stopped else 0


if __name__ == "__main__":
    sys.exit(main())
