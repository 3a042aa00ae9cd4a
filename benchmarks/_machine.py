"""The machine's own limits: copy bandwidth, random rows, matrix multiply."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks._harness import run_worker
from benchmarks._step import Step


def _compiled(buffer_mib, row_floats, gather_rows):
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        return {"error": "no C++ compiler"}
    source = Path(__file__).with_name("machine.cc")
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder, "machine"))
        command = [compiler, "-O3", "-march=native", "-std=c++17", "-pthread", str(source), "-o", program]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
            numbers = map(str, (buffer_mib, row_floats, gather_rows))
            out = subprocess.run([program, *numbers], check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            return {"error": f"{error.cmd[0]} failed: {error.stderr.strip()[:200]}"}
    return json.loads(out.stdout)


def matmul(config, data):
    """The worker's side of the GEMM rate: `tf.matmul` of two square float32 matrices."""
    import tensorflow as tf

    size = config["size"]
    a, b = tf.random.normal([size, size], seed=1), tf.random.normal([size, size], seed=2)
    return Step(lambda i: float(tf.matmul(a, b)[0, 0]), {"flops": 2 * size**3})


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def limits(row_floats, quick=False, gather_rows=0):
    """A dict of rates in GB/s, GFLOP/s and ns a row of `row_floats` float32, all measured here.

    With `gather_rows`, also of gathers from a small table of as many rows.
    """
    found = {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "time": time.strftime("%Y-%m-%d")}
    found.update(_compiled(64 if quick else 1024, row_floats, gather_rows))
    report = run_worker(
        "benchmarks._machine:matmul", {"size": 512 if quick else 2048}, {}, 0.5 if quick else 3.0
    )
    if "error" not in report:
        found["gemm_gflop_s"] = report["notes"]["flops"] / min(report["times"]) * 1e-9
    return found


def describe(found):
    """One line for people."""
    parts = [f"{found['cpu']}, {found['cores']} cores"]
    if "copy_all_gb_s" in found:
        parts += [
            f"copy {found['copy_one_gb_s']:.1f} GB/s on one thread, {found['copy_all_gb_s']:.1f} on all",
            f"random rows of {4 * found['row_floats']} bytes: read {found['row_read_one_ns']:.1f} ns on one "
            f"thread, {found['row_read_all_ns']:.1f} on all, update {found['row_update_all_ns']:.1f}",
        ]
        if found["gather_rows"]:
            parts.append(
                f"gathers from {found['gather_rows']} such rows {found['gather_all_gb_s']:.1f} GB/s, "
                f"adding to them {found['gather_add_all_gb_s']:.1f}"
            )
    else:
        parts.append(f"copy bandwidth not measured ({found.get('error', 'unknown')})")
    if "gemm_gflop_s" in found:
        parts.append(f"matmul {found['gemm_gflop_s']:.0f} GFLOP/s")
    return "; ".join(parts)
