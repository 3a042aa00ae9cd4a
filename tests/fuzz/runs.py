"""Starts the children, and a new one after each that has died: what killed it is a defect that is counted."""

import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TAIL = 4000


def run(start, stop, seed=0, known=False, options=(), nice=0):
    """Makes the calls `start .. stop` in child processes, one after the other.

    Args:
        start, stop, seed: ints.
        known: whether the first child makes the calls of `known.py` too.
        options: more arguments of the child.
        nice: int, how far the children stand back.

    Returns:
        dict: `defects`, a list of dicts (`index`, `call`, `what`); `counts`; `answers` of the known calls;
        `children`; `cpu_seconds` and `peak_megabytes` of those that ended well.
    """
    total = {"defects": [], "counts": collections.Counter(), "answers": {}, "ops": [], "children": 0}
    total |= {"cpu_seconds": 0.0, "peak_megabytes": 0}
    while start < stop or known:
        index, report = _child(start, stop, seed, known, options, nice, total)
        if report is not None:
            total["counts"].update(report["counts"])
            total["defects"] += report["defects"]
            total["ops"] = report["ops"]
            total["cpu_seconds"] += report["cpu_seconds"]
            total["peak_megabytes"] = max(total["peak_megabytes"], report["peak_megabytes"])
            break
        known = False
        start = max(start, index + 1)
    return total


def _child(start, stop, seed, known, options, nice, total):
    """One child: where it ended, and its report, or None where it died."""
    total["children"] += 1
    # Without oneDNN's allocator, which keeps what it has got, and waits 10 s where it gets nothing. Each
    # tensor is then a piece of malloc's, between which sanitizers see.
    environment = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        **os.environ,
    }
    paths = [str(ROOT), environment.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.TemporaryDirectory() as folder:
        progress = pathlib.Path(folder, "progress")
        command = [sys.executable, "-m", "tests.fuzz.child", "--progress", progress, "--seed", seed]
        command += ["--start", start, "--stop", stop, *(["--known"] if known else []), *options]
        ended = subprocess.run(
            [*(["nice", "-n", str(nice)] if nice else []), *map(str, command)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        total["answers"].update(lines[0]["answers"] if lines else {})
        if ended.returncode == 0 and len(lines) == 2:
            return stop, lines[1]
        said = progress.read_text().rstrip() if progress.exists() else f"{start - 1} before the first call"
    index, call = said.split(" ", 1)
    what = f"the process ended with code {ended.returncode}\n{ended.stderr[-TAIL:]}"
    total["defects"].append({"index": int(index), "call": call, "what": what})
    if total["children"] > 200 or "before the first call" in call:
        return stop, None
    return int(index), None
