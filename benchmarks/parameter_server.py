"""Training on parameter servers: steps per second, bytes on the wire, and what that says of larger clusters.

Local clusters of 1 and 2 workers and 1 and 2 servers (real processes on this machine) train a language model
without its middle: an embedding and a tree softmax over the same words, targets by Zipf's law. Measured are

- examples a second; on few cores more processes share them, so this says little of real clusters;
- bytes on the wire a step, as the loopback interface counts them, with everything that TensorFlow adds; and,
  beside it, the rows and hidden vectors that `LoadBalance` counts;
- the load of the busiest server over the mean one, planned from the frequencies and, beside it, contiguous;
- processor time a step of a worker, a server and the chief (of the chief without what it does once per `fit`
  and at rest);
- the mean loss of the steps, by which to see what a narrower exchange does to the numbers.

The chief deals batches out, a few per call, or each worker reads its own (a dataset function). From the row
of the latter with 1 worker and 2 servers it predicts 8 to 64 workers. A cluster is as fast as its narrowest
part: workers (their processor time, and waiting for the wire), servers (their processor time and their
network, times the imbalance), the chief, which hands out every call. Bandwidth, cores and latency of the
cluster are options.

python -m benchmarks.parameter_server [--quick]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

from benchmarks import _table
from benchmarks._harness import ROOT

FULL = {"words": 1_000_000, "dim": 64, "batch": 64, "steps": 32, "count": 600}
QUICK = {"words": 20_000, "dim": 16, "batch": 16, "steps": 8, "count": 96}
# Workers, servers, whether workers read their batches, steps per call, in what they exchange rows.
CLUSTERS = [
    (1, 1, False, 4, "float32"),
    (1, 2, False, 4, "float32"),
    (2, 2, False, 4, "float32"),
    (1, 1, True, 50, "float32"),
    (1, 2, True, 50, "float32"),
    (2, 2, True, 50, "float32"),
    (1, 2, True, 50, "bfloat16"),
]
QUICK_CLUSTERS = [(1, 2, True, 8, "float32"), (2, 1, False, 4, "bfloat16")]
CALLS = 48  # at least
MOST_IMBALANCE = 1.15
PREFIX = "[chief] RESULT "


def measure(config, workers, servers):
    """Return what the chief of one cluster reports, or a dict with "error"."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    script = str(ROOT / "benchmarks/peers/ours_cluster.py")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "keras_largeout.distribute.launch", "--logs", folder]
        command += ["--workers", str(workers), "--ps", str(servers), script, json.dumps(config)]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(PREFIX)]
    if done.returncode or not lines:
        return {"error": (done.stdout + done.stderr)[-2000:]}
    return json.loads(lines[-1].removeprefix(PREFIX))


def title(workers, servers, by_workers, per_call, dtype):
    """Return a case in words."""
    source = "workers" if by_workers else "the chief"
    return f"{workers} workers, {servers} servers, batches of {source}, {per_call} per call, {dtype}"


def limits(measured, options, workers, servers):
    """Return steps a second that each part of a cluster allows: a dict."""
    wire = measured["wire_bytes"]
    imbalance = max(measured["planned"].values())
    byte_rate = options.gbit / 8 * 1e9
    waiting = options.round_trips * options.latency_us * 1e-6 + wire / byte_rate
    return {
        "workers": workers / (measured["worker_cpu"] / options.cores + waiting),
        "servers' cores": servers * options.cores / (measured["server_cpu"] * imbalance),
        "servers' network": servers * byte_rate / (wire * imbalance),
        "chief": (1 - measured["chief_at_rest"]) / measured["chief_cpu"],
    }


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="20 thousand words, two clusters, a few steps")
    parser.add_argument("--gbit", type=float, default=25.0, help="network of a machine, Gbit/s (default: 25)")
    parser.add_argument("--cores", type=float, default=8.0, help="of a worker and of a server (default: 8)")
    parser.add_argument("--latency-us", type=float, default=100.0, help="of a round trip (default: 100)")
    parser.add_argument("--round-trips", type=float, default=6.0, help="one after another, in a step")
    parser.add_argument("--workers-per-server", type=float, default=4.0, help="(default: 4)")
    parser.add_argument("--json", metavar="FILE", help="also write everything as JSON")
    parser.add_argument("--markdown", metavar="FILE", help="also write the tables as Markdown")
    options = parser.parse_args(argv)
    config, found = QUICK if options.quick else FULL, {}
    for case in QUICK_CLUSTERS if options.quick else CLUSTERS:
        workers, servers, by_workers, per_call, dtype = case
        print(f"  {title(*case)} ...", file=sys.stderr, flush=True)
        count = max(config["count"], 0 if options.quick else CALLS * per_call)
        own = {"count": count, "by_workers": by_workers, "per_call": per_call, "exchange_dtype": dtype}
        found[case] = measure(config | own, workers, servers)
    header = ["workers", "servers", "batches from", "steps/call", "exchange", "examples/s"]
    header += ["MB/step on the wire", "counted MB", "max/mean planned", "contiguous"]
    header += ["ms of a worker", "of all servers", "of the chief", "loss"]
    rows = []
    for case, one in found.items():
        workers, servers, by_workers, per_call, dtype = case
        first = [str(workers), str(servers), "worker" if by_workers else "chief", str(per_call), dtype]
        if "error" in one:
            rows.append([*first, one["error"]])
            continue
        rows.append(
            [
                *first,
                f"{one['examples_per_second']:.0f}",
                f"{one['wire_bytes'] / 1e6:.2f}",
                f"{one['counted_bytes'] / 1e6:.2f}",
                " ".join(f"{v:.2f}" for v in one["planned"].values()),
                " ".join(f"{v:.2f}" for v in one["contiguous"].values()),
                *(f"{1e3 * one[key]:.3g}" for key in ("worker_cpu", "server_cpu", "chief_cpu")),
                f"{one['loss']:.4f}",
            ]
        )
    print(_table.aligned(header, rows))
    failed = any("error" in one for one in found.values())
    predictions, goals = [], []
    if not failed:
        base = next(one for case, one in found.items() if case[:3] == (1, 2, True))
        for workers in (1, 8, 16, 32, 64):
            servers = max(1, round(workers / options.workers_per_server))
            each = limits(base, options, workers, servers)
            narrowest = min(each, key=each.get)
            predictions.append(
                [str(workers), str(servers), f"{each[narrowest] * config['batch']:,.0f}", narrowest]
                + [f"{value:,.0f}" for value in each.values()]
            )
        above = ["workers", "servers", "examples/s", "narrowest", *(f"steps/s: {part}" for part in each)]
        print(
            f"\nPredicted, with {options.gbit:g} Gbit/s and {options.cores:g} cores a machine, "
            f"{options.round_trips:g} round trips of {options.latency_us:g} us a step; batches of "
            f"{config['batch']} examples; processor time and bytes as measured with 1 worker, which reads "
            "its own batches, and 2 servers:\n"
        )
        print(_table.aligned(above, predictions))
        worst = max(value for one in found.values() for value in one["planned"].values())
        goals = [["planned: max/mean of the servers", f"at most {MOST_IMBALANCE}", f"{worst:.2f}"]]
        goals[0].append("reached" if worst <= MOST_IMBALANCE else "MISSED")
        failed = worst > MOST_IMBALANCE
        wide = [row for row in predictions if row[3] != "chief"]
        reached = bool(wide) and wide[-1] is predictions[-1]
        goals.append(["workers before the chief is the narrowest", "reach 64", wide[-1][0] if wide else "0"])
        goals[1].append("reached" if reached else "MISSED")
        print("\n" + _table.aligned(["goal", "wanted", "found", ""], goals))
    if options.markdown and predictions:
        text = _table.markdown(header, rows) + "\n\n" + _table.markdown(above, predictions)
        _table.write_markdown(options.markdown, "parameter_server", text)
    if options.json:
        named = {title(*case): one for case, one in found.items()}
        _table.write_json(options.json, quick=options.quick, measured=named, predicted=predictions)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
