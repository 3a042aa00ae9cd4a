"""The steps of a run, each as the programs that it starts."""

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu import _registers
from benchmarks.gpu._jobs import FAILED, OK, SKIPPED, Job

DEFAULT = ("configure", "build", "bench-quick", "ctest", "bench", "torch", "ncu", "report")
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
# What is worth most comes first, in case that the rest is cut off.
_FIRST = ("embedding", "row_update_step", "tree_softmax", "fan_in", "full_softmax")
_LONG = {"tree_softmax": 60}  # seconds that a bench takes at the least, where it is more than usual
_NO_SANITIZER = (
    ("Device not supported", "compute-sanitizer: device not supported on this host"),
    ("Unable to find injection", "compute-sanitizer is not fully installed"),
)
_NO_COUNTERS = (
    ("ERR_NVGPUCTRPERM", "ncu may not read the counters here"),
    ("LibraryNotLoaded", "ncu cannot load its library here"),
    ("Failed to initialize the profiler", "ncu does not run here"),
    ("No metrics to collect", "ncu knows no metrics of this card"),
)


@dataclass(frozen=True)
class Folders:
    """root: the clone. build, binaries: where programs are built, and found. work: raw results."""

    root: Path
    build: Path
    binaries: Path
    work: Path
    out: Path
    prebuilt: bool

    @property
    def raw(self):
        return self.work / "raw"

    @property
    def logs(self):
        return self.work / "logs"

    def programs(self, kind):
        """Return those of a kind, "test" or "bench"; the most important ones first."""

        def order(path):
            name = path.name.removesuffix(f"_{kind}_cuda")
            return _FIRST.index(name) if name in _FIRST else len(_FIRST), name

        found = [p for p in self.binaries.glob(f"*_{kind}_cuda") if os.access(p, os.X_OK)]
        return sorted(found, key=order)


class Steps:
    """`run(name)` runs one. `card`: the compute capability, "9.0". `at_once`: programs on the GPU at once."""

    def __init__(self, folders, runner, note, card, at_once):
        self._folders, self._runner, self._note = folders, runner, note
        self._card, self._at_once = card, at_once

    NAMES = ("configure", "build", "bench-quick", "ctest", "bench", "torch", "sanitizers", "ncu", "report")

    def run(self, name):
        getattr(self, name.replace("-", "_"))()

    def _missing(self, step, *tools):
        """Return whether a tool is not on the PATH, which is recorded as a failure."""
        absent = [tool for tool in tools if shutil.which(tool) is None]
        if absent:
            self._note(step, step, FAILED, f"{', '.join(absent)} not on the PATH")
        return bool(absent)

    def _programs(self, step, kind):
        found = self._folders.programs(kind)
        if not found:
            self._note(step, step, FAILED, f"there are no *_{kind}_cuda in {self._folders.binaries}")
        return found

    def configure(self):
        folders = self._folders
        if folders.prebuilt:
            return self._note("configure", "configure", SKIPPED, "BIN has the programs")
        if self._missing("configure", "nvcc", "cmake"):
            return None
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        command = ["cmake", "-S", folders.root / "custom_ops", "-B", folders.build, *generator]
        command += ["-DLARGEOUT_TF=OFF", "-DLARGEOUT_CUDA=ON", "-DCMAKE_CUDA_FLAGS=-Xptxas=-v -lineinfo"]
        command += [f"-DLARGEOUT_CUDA_ARCHITECTURES={os.environ.get('ARCH') or self._card.replace('.', '')}"]
        return self._runner.run(Job("configure", "configure", tuple(command), limit=120, needs=5))

    def build(self):
        folders = self._folders
        if folders.prebuilt:
            return self._note("build", "build", SKIPPED, "BIN has the programs")
        if self._missing("build", "cmake"):
            return None
        sources = folders.root.glob("custom_ops/*/test/*.cu")
        targets = sorted(f"{p.stem}_cuda" for p in sources if p.stem.endswith(("_test", "_bench")))
        # A program that does not compile does not cost us the others.
        ninja = (folders.build / "build.ninja").exists()
        go_on = ["-k", "0"] if ninja else ["-k"]
        command = ["cmake", "--build", folders.build, "--parallel", os.cpu_count() or 1, "--target", *targets]
        job = Job("build", "build", (*command, "--", *go_on), limit=1500, needs=30)
        self._runner.run(job)
        if self._runner.log(job).exists():
            kernels = _registers.parse(self._runner.log(job).read_text(errors="replace"))
            if kernels:  # nothing was compiled: the table of the last build stands
                (folders.work / "registers.txt").write_text(_registers.text(kernels))
        return None

    def ctest(self):
        """Return every test of a CUDA kernel. One that finds no GPU has failed: there is one."""
        folders, step = self._folders, "ctest"
        if not (folders.build / "CTestTestfile.cmake").exists() or folders.prebuilt:
            jobs = [Job(step, p.name, (p,), limit=300, needs=5) for p in self._programs(step, "test")]
            return self._runner.run(*jobs, at_once=self._at_once)
        if self._missing(step, "ctest"):
            return None
        command = ("ctest", "--test-dir", folders.build, "-R", "_cuda$", "-j", self._at_once)
        command += ("--no-tests=error", "--output-on-failure", "--timeout", "300")
        job = Job(step, step, command, limit=600, needs=10)
        (record,) = self._runner.run(job)
        if record["status"] == SKIPPED:
            return None
        text = self._runner.log(job).read_text(errors="replace")
        for name, rest in re.findall(r"^ *\d+/\d+ Test +#\d+: (\S+) \.*(.*)$", text, re.MULTILINE):
            seconds = float((re.findall(r"([\d.]+) sec", rest) or [0])[0])
            cause = rest.replace("*", " ").rpartition(" sec")[0].rpartition("  ")[0].strip()
            status = OK if "Passed" in rest else FAILED
            if cause == "Skipped":
                cause = "it found no GPU"
            self._note(step, name, status, "" if status == OK else cause or "failed", seconds)
        return None

    def _benches(self, step, quick, limit, needs):
        for program in self._programs(step, "bench"):
            rows = self._folders.raw / f"{program.name}.{'quick' if quick else 'full'}.jsonl"
            rows.unlink(missing_ok=True)
            command = (program, "--json", rows, *(["--quick"] if quick else []))
            least = needs if quick else _LONG.get(program.name.removesuffix("_bench_cuda"), needs)
            self._runner.run(Job(step, program.name, command, limit=limit, needs=least))

    def bench_quick(self):
        self._benches("bench-quick", quick=True, limit=60, needs=3)

    def bench(self):
        self._benches("bench", quick=False, limit=240, needs=15)

    def torch(self):
        rows = self._folders.raw / "torch.full.jsonl"
        rows.unlink(missing_ok=True)
        command = (sys.executable, "-m", "benchmarks.gpu.compare_torch", "--json", rows)
        skips = ((77, "no PyTorch that sees the GPU"),)
        self._runner.run(Job("torch", "torch", command, limit=400, needs=30, skips=skips))

    def sanitizers(self):
        """Return the first program tells whether the tool runs on this host at all."""
        step = "sanitizers"
        if shutil.which("compute-sanitizer") is None:
            return self._note(step, step, SKIPPED, "compute-sanitizer is not on the PATH")
        programs = sorted(self._programs(step, "test"), key=lambda p: p.stat().st_size)
        jobs = [
            Job(
                step,
                f"{tool}-{program.name}",
                ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9", program),
                limit=240,
                needs=10,
                unless=_NO_SANITIZER,
            )
            for tool in TOOLS
            for program in programs
        ]
        return self._probed(jobs)

    def _probed(self, jobs):
        if jobs:
            (first,) = self._runner.run(jobs[0])
            if first["status"] != SKIPPED or first["note"].startswith("needs about"):
                self._runner.run(*jobs[1:], at_once=self._at_once)

    def ncu(self):
        """Return each call of a bench once, at full size; of all of its kernels the first hundred."""
        step = "ncu"
        if shutil.which("ncu") is None:
            return self._note(step, step, SKIPPED, "ncu is not on the PATH")
        options = ("--set", "basic", "--clock-control", "none", "--profile-from-start", "off")
        command = ("ncu", *options, "--launch-count", "100", "--csv", "--page", "raw")
        for program in self._programs(step, "bench"):
            job = Job(step, program.name, (*command, program, "--once"), 150, 15, unless=_NO_COUNTERS)
            (record,) = self._runner.run(job)
            if record["status"] == SKIPPED:
                break
        return None

    def report(self):
        """Return the report is renewed after every program anyway."""
