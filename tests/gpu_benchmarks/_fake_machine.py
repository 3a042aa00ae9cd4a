"""A machine with a GPU, made of tiny scripts: what `benchmarks/gpu/run.sh` finds on its PATH."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

RUN = Path(__file__).resolve().parents[2] / "benchmarks/gpu/run.sh"

_TOOLS = {
    "nvidia-smi": """
        case "$1" in
          -L) echo "GPU 0: NVIDIA H100 80GB HBM3" ;;
          *) echo "NVIDIA H100 80GB HBM3, 580.1, 81559 MiB, 9.0, 1980 MHz, 2619 MHz, 700.00 W" ;;
        esac""",
    "nvcc": 'echo "Cuda compilation tools, release 13.0, V13.0.88"',
    # Makes what a build makes: the programs in $FAKE/programs.
    "cmake": """
        echo "$@" >> "$FAKE/cmake.txt"
        if [ "$1" = --build ]; then
          cat "$FAKE/ptxas.txt" 2>/dev/null
          cp "$FAKE"/programs/* "$2"
        else
          touch "$4/CTestTestfile.cmake"
        fi""",
    "ctest": """
        echo "$@" > "$FAKE/ctest.txt"
        echo " 1/2 Test #7: embedding_test_cuda ..............   Passed    0.51 sec"
        echo " 2/2 Test #9: exchange_test_cuda ...............***${CTEST_ENDS:-Skipped}   0.02 sec"
        exit "${CTEST_CODE:-0}" """,
    "compute-sanitizer": """
        echo "$@" >> "$FAKE/sanitizer.txt"
        [ -z "${NO_SANITIZER:-}" ] || { echo "========= Error: Device not supported."; exit 1; }
        tool=$2; shift 4; "$@" || exit $?
        [ "$tool" != "${BAD_TOOL:-}" ] || exit 9""",
    "ncu": """
        echo '"ID","Kernel Name","gpu__time_duration.sum","launch__registers_per_thread"'
        echo '"","","us","register/thread"'
        echo '"0","Lookup(const float *)","120.5","40"'""",
}


def row(bench, case, part, ms, library="ours", **more):
    return {"bench": bench, "case": case, "part": part, "library": library, "ms": ms, **more}


def limits(copy=3e12, fma=60e12):
    return {"bench": "b", "case": "machine", "copy_bytes_per_s": copy, "fma_flops_per_s": fma}


def script(path, text):
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


class Machine:
    """`run(STEPS=...)` runs run.sh there. `folder`/out has the report, `folder`/programs the programs."""

    def __init__(self, folder):
        self.folder, self.out = folder, folder / "out"
        self.tools, self.programs = folder / "tools", folder / "programs"
        for made in (self.tools, self.programs):
            made.mkdir()
        for name, text in _TOOLS.items():
            script(self.tools / name, text)
        self.bench("embedding_bench_cuda", [limits(), row("embedding", "small", "lookup", 0.5, bytes=3e8)])
        script(self.programs / "embedding_test_cuda", "echo ok")

    def bench(self, name, rows, then=""):
        """A bench that writes rows where --json says; then more of its script."""
        lines = "\n".join(json.dumps(one) for one in rows)
        text = 'while [ $# -gt 0 ]; do [ "$1" != --json ] || json=$2; shift; done\n'
        text += f"[ -z \"${{json:-}}\" ] || cat >> $json <<'rows'\n{lines}\nrows\n"
        script(self.programs / name, text + then)

    def environment(self, **variables):
        path = f"{self.tools}:/usr/bin:/bin"
        build, fake = self.folder / "build", self.folder
        made = {"PATH": path, "PYTHON": sys.executable, "BUILD": build, "OUT": self.out, "FAKE": fake}
        return {"HOME": os.environ.get("HOME", "/"), **{k: str(v) for k, v in {**made, **variables}.items()}}

    def start(self, **variables):
        return subprocess.Popen(
            [RUN],
            env=self.environment(**variables),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, **variables):
        """Exit code and output."""
        process = self.start(**variables)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    @property
    def results(self):
        return json.loads((self.out / "results.json").read_text())

    def statuses(self):
        return {(s["step"], s["name"]): s["status"] for s in self.results["steps"]}

    def files(self):
        return sorted(path.name for path in self.out.iterdir())

    def archived(self):
        with tarfile.open(self.out / "logs.tar.gz") as tar:
            return sorted(tar.getnames())
