"""Measures, predicts and prints: see the package."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

import numpy as np

import benchmarks.hosts
from benchmarks import _data, _table
from benchmarks._harness import ROOT
from benchmarks.hosts.prediction import Cluster, Work, bytes_between, predicted

FULL = {
    "users": 1_000_000,
    "items": 500_000,
    "dim": 64,
    "history": 16,
    "batch": 1024,
    "batches": 32,
    "steps": 24,
    "rounds": 5,
    "quick": False,
}
QUICK = FULL | {
    "users": 50_000,
    "items": 20_000,
    "dim": 16,
    "history": 8,
    "batches": 4,
    "steps": 4,
    "rounds": 2,
    "quick": True,
}
ZIPF_EXPONENT = 1.1
HOSTS, SERVERS, DEVICES = "synchronous hosts", "parameter servers", "one process"
OF_TWO = "hosts of 2 devices"
#: (what, how many); with as many parameter servers as workers.
CASES = [
    (DEVICES, 1),
    *((what, count) for count in (2, 4) for what in (HOSTS, SERVERS, DEVICES)),
    (SERVERS, 1),
    (OF_TWO, 2),
]
QUICK_CASES = [(HOSTS, 2)]
MOST_PADDING = 0.25
_SECONDS = 600


def measure(what, count, config):
    """Return what the first process of a case reports, or a dict with "error"."""
    own = {"parts": 1, "per_call": 1, **config}
    if what == SERVERS:  # a worker takes a part of the batch, and four of them a call
        own |= {"parts": count, "per_call": 4}
    if what in (DEVICES, OF_TWO):
        own["devices"] = count if what == DEVICES else 2
    script = [str(ROOT / "benchmarks/hosts/script.py"), json.dumps(own)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "PYTHONPATH": path}
    environment.pop("TF_CONFIG", None)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "keras_largeout.distribute.launch", "--logs", folder]
        command += ["--workers", str(count), "--ps", str(count if what == SERVERS else 0), *script]
        if what == DEVICES:
            command = [sys.executable, *script]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            return {"error": f"no end in {_SECONDS} s"}
    found = re.findall(r"^(?:\[[^\]]*\] )?RESULT (.*)$", done.stdout, re.M)
    if done.returncode or not found:
        return {"error": (done.stdout + done.stderr)[-2000:]}
    return json.loads(found[-1])


def work_of(config, hosts, gpus, batch, exchanges):
    """Return the `Work` of a configuration with `batch` examples a GPU, the tree cut as the head cuts it."""
    from keras_largeout import trees
    from keras_largeout.planning.tree_cut import TreeCut
    from keras_largeout.planning.tree_estimator import class_nodes, node_owners
    from keras_largeout.trees.cost import probabilities, probability_touched

    counts = _data.zipf_counts(config["items"], ZIPF_EXPONENT)
    tree, dim = trees.head_tail(counts), config["dim"]
    owner = node_owners(tree, TreeCut.of(tree, counts, dim).place(tree, max(2, hosts * gpus)))
    passed = probabilities(tree, counts)[1]

    def top_rows(examples):
        return float((probability_touched(passed, examples) * tree.node_sizes)[owner < 0].sum())

    below = owner[class_nodes(tree, np.arange(config["items"]))] >= 0
    return Work(
        tables=((config["users"], 1), (config["items"], config["history"])),
        exponent=ZIPF_EXPONENT,
        dim=dim,
        slots=1,
        dense=(2 * dim + 1) * dim,
        top_rows=top_rows(batch * gpus),
        top_rows_of_all=top_rows(batch * gpus * hosts),
        below=float(counts[below].sum() / counts.sum()),
        path_rows=float(passed @ tree.node_sizes),
        exchanges=exchanges,
    )


def padding_of(blocks):
    """Return of the blocks of a report: bytes needed, if all were as large as the largest, and sent:
    `[3]`.
    """
    width = np.array([b[0] * np.dtype(b[1]).itemsize for b in blocks])
    return width @ np.array([b[3:] for b in blocks])


def row_of(what, count, found, config):
    if "error" in found:
        return [what, str(count), found["error"]]
    row = [
        what,
        str(count),
        f"{found['examples_per_second']:,.0f}",
        f"{1e3 * found['processor_seconds']:.0f}",
    ]
    row.append("-" if what == DEVICES else f"{found['wire_bytes'] / 1e6:.2f}")
    if what not in (HOSTS, OF_TWO):
        return [*row, *["-"] * 7]
    needed, largest, sent = padding_of(found["blocks"])
    devices = 2 if what == OF_TWO else 1
    batch = config["batch"] // count // devices
    work = work_of(config, count, devices, batch, 0)
    formula = bytes_between(work, batch, count, devices, padded=False)
    row += [
        f"{needed / 1e6:.2f}",
        f"{count * sum(formula.values()) / 1e6:.2f}",
        f"{100 * (sent / needed - 1):.1f}",
    ]
    row += [f"{100 * (largest / needed - 1):.1f}", f"{100 * (sent / largest - 1):.1f}"]
    exchanges = sum(block[2] for block in found["blocks"])
    return [*row, f"{exchanges:.0f}", f"{1e3 * found['exchange_seconds']:.1f}"]


HEADER = ["", "processes", "examples/s", "cpu ms/step", "MB/step on the wire", "needed MB", "by formula"]
HEADER += ["padding %", "of it: largest", "rounding", "exchanges", "ms of them alone"]
PREDICTED = ["hosts x GPUs", "within, between", "compute", "within", "between", "waits", "all-reduce", "ms"]
PREDICTED += ["of it rows", "top", "padding %", "examples/s", "efficiency"]

_SHARED = """\
{batch} examples a step, however many processes. All of them share {cores} cores, so examples/s and times
are no speedup. Bytes, padding and numbers of exchanges do mean something.
"""
_ASSUMED = """
Predicted for {batch} examples a GPU, by the formulas, with {exchanges} exchanges of {latency_us:g} us a step
(a twentieth more for each host beyond two), {tflops:g} TFLOP/s, 1 TB/s of random rows, {launch_ms:g} ms to
launch a step; NVLink {nvlink:g} GB/s, PCIe {pcie:g} GB/s a GPU; one network link a host. Nothing overlaps.
In ms:
"""


def predictions(config, exchanges, options):
    rows = []
    for gpus, kind, within in ((1, "-", 1.0), (8, "NVLink", options.nvlink), (8, "PCIe", options.pcie)):
        for gbit in (100, 400):
            for hosts in (1, 8, 16, 32, 64):
                work = work_of(config, hosts, gpus, options.batch, exchanges)
                cluster = Cluster(
                    hosts,
                    gpus,
                    gbit * 1e9 / 8,
                    within * 1e9,
                    options.latency_us * 1e-6,
                    flops=options.tflops * 1e12,
                    launch=options.launch_ms * 1e-3,
                )
                found = predicted(work, options.batch, cluster)
                parts = bytes_between(work, options.batch, hosts, gpus)
                ms = [found[k] for k in PREDICTED[2:7]] + [found["seconds"]]
                ms += [parts[k] / cluster.between for k in ("rows", "top")]
                needed = sum(bytes_between(work, options.batch, hosts, gpus, padded=False).values())
                row = [f"{hosts} x {gpus}", f"{kind}, {gbit} Gbit/s", *(f"{1e3 * value:.2f}" for value in ms)]
                row.append(f"{100 * (sum(parts.values()) / needed - 1):.0f}" if needed else "-")
                row += [f"{found['examples_per_second']:,.0f}", f"{100 * found['efficiency']:.0f}%"]
                rows.append(row)
    return rows


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hosts",
        description=benchmarks.hosts.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small tables, two hosts, a few steps")
    parser.add_argument(
        "--batch", type=int, default=4096, help="predicted: examples of a GPU (default: 4096)"
    )
    parser.add_argument("--nvlink", type=float, default=300.0, help="GB/s of a GPU, each way (default: 300)")
    parser.add_argument("--pcie", type=float, default=20.0, help="GB/s of a GPU, each way (default: 20)")
    parser.add_argument("--latency-us", type=float, default=50.0, help="of an exchange (default: 50)")
    parser.add_argument("--tflops", type=float, default=50.0, help="reached by products (default: 50)")
    parser.add_argument("--launch-ms", type=float, default=5.0, help="of a step's kernels (default: 5)")
    parser.add_argument("--json", metavar="FILE", help="also write everything as JSON")
    parser.add_argument("--markdown", metavar="FILE", help="also write the measured table as Markdown")
    options = parser.parse_args(argv)
    config, measured = QUICK if options.quick else FULL, {}
    for what, count in QUICK_CASES if options.quick else CASES:
        print(f"  {what}, {count} ...", file=sys.stderr, flush=True)
        measured[what, count] = measure(what, count, config)
    rows = [row_of(*case, found, config) for case, found in sorted(measured.items())]
    print(_SHARED.format(batch=config["batch"], cores=os.cpu_count()))
    print(_table.aligned(HEADER, rows))
    hosts = [
        found for (what, _), found in measured.items() if what in (HOSTS, OF_TWO) and "error" not in found
    ]
    failed = any("error" in found for found in measured.values())
    predicted_rows = []
    if hosts:
        of_one = [found for (what, _), found in measured.items() if what == HOSTS and "error" not in found]
        exchanges = round(sum(block[2] for block in (of_one or hosts)[-1]["blocks"]))
        predicted_rows = predictions(config, exchanges, options)
        print(_ASSUMED.format(exchanges=exchanges, **vars(options)))
        print(_table.aligned(PREDICTED, predicted_rows))
        worst = max(sent / needed - 1 for needed, _, sent in (padding_of(f["blocks"]) for f in hosts))
        reached = worst <= MOST_PADDING
        goal = ["padding of the blocks", f"at most {MOST_PADDING:.0%}", f"{worst:.1%}"]
        goal.append("reached" if reached else "MISSED")
        print("\n" + _table.aligned(["goal", "wanted", "found", ""], [goal]))
        failed |= not reached
    if options.markdown:
        _table.write_markdown(options.markdown, "hosts", _table.markdown(HEADER, rows))
    if options.json:
        named = {f"{what}, {count}": found for (what, count), found in measured.items()}
        _table.write_json(options.json, quick=options.quick, measured=named, predicted=predicted_rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
