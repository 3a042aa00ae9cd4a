"""The machine's own limits: copy bandwidth, random rows, matrix multiply, pages of the disk."""

import concurrent.futures
import ctypes
import json
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks._harness import run_worker
from benchmarks._step import Step

PAGE = 4096


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
    """Return the worker's side of the GEMM rate: `tf.matmul` of two square float32 matrices."""
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
    """Return a dict of rates in GB/s, GFLOP/s and ns a row of `row_floats` float32, all measured here.

    With `gather_rows`, also of gathers from a small table of as many rows.
    """
    found = {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "time": time.strftime("%Y-%m-%d")}
    found.update(_compiled(64 if quick else 1024, row_floats, gather_rows))
    report = run_worker(
        "benchmarks.machine:matmul", {"size": 512 if quick else 2048}, {}, 0.5 if quick else 3.0
    )
    if "error" not in report:
        found["gemm_gflop_s"] = report["notes"]["flops"] / min(report["times"]) * 1e-9
    return found


def describe(found):
    """Return one line for people."""
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


def page_read_seconds(folder, gigabytes=2.0, reads=20_000, threads=32):
    """Return seconds per page, when many random pages of a file in `folder` are asked for at a time."""
    path, pages = os.path.join(folder, "pages"), int(gigabytes * 2**30) // PAGE
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for _ in range(pages * PAGE // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    chosen = np.random.default_rng(0).integers(0, pages, reads).tolist()
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read(some):
        with mmap.mmap(-1, PAGE) as place:  # direct reads want memory that begins at a page
            for page in some:
                os.preadv(descriptor, [place], page * PAGE)

    try:
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            start = time.perf_counter()
            list(pool.map(read, (chosen[i::threads] for i in range(threads))))
            return (time.perf_counter() - start) / reads
    finally:
        os.close(descriptor)
        os.remove(path)


def forget(path):
    """Writes what is in memory of a file to the disk, and drops it from memory, also where it is mapped."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if line.rstrip().endswith(path):
                begin, end = (int(address, 16) for address in line.split()[0].split("-"))
                libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
