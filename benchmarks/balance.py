"""What if all targets of a batch belong to one device? Work and bytes of 8 devices, counted.

A two-level output of 3000 classes of 3000 words each (9 million words) over 8 devices, and an embedding table
of a million rows. Each with targets (ids) that are drawn by Zipf's law, and with such that are, all those of
a batch, in what one device has of the contiguous placement: the same device in all batches, or another one in
each. For the placements there are, before and after `rebalance`: pairs (rows) of each device in a step, the
work of the busiest device over the mean, bytes between devices beside the bound (the hidden vectors and
unique rows that have to travel, there and back), and the time of a step.

Work and bytes are counted by `LoadBalance`, not timed; the pairs are checked against the arithmetic of the
tree. The devices are logical CPUs that share this machine's cores, so the times say nothing about balance:
whoever waits lends its core to the others.

python -m benchmarks.balance [--quick]
"""

import argparse
import sys

from benchmarks import _table
from benchmarks._harness import run_worker

DEVICES = 8
FULL = {"classes": 3000, "dim": 64, "tokens": 1024, "steps": 6, "rows": 1_000_000, "ids": 4096}
QUICK = {"classes": 300, "dim": 64, "tokens": 512, "steps": 4, "rows": 20_000, "ids": 1024}

ZIPF, SAME, OTHER = "zipf 1.1", "one device, the same in all batches", "one device, another in each batch"
TREE, TABLE = "output", "embedding"
CONTIGUOUS, MODULO, PERMUTATION, PLANNED = "contiguous", "modulo", "permutation", "planned"
REBALANCED = "contiguous, rebalanced"
#: What is placed, and how: one process each.
CASES = [
    *((TREE, placement) for placement in (CONTIGUOUS, MODULO, PLANNED)),
    *((TABLE, placement) for placement in (CONTIGUOUS, MODULO, PERMUTATION, PLANNED)),
]
#: (text, what, problem, placement, bound, whether it is the least and not the most)
REACHES = [
    ("zipf, contiguous: max/mean", TREE, ZIPF, CONTIGUOUS, 3.0, True),
    ("zipf, planned: max/mean", TREE, ZIPF, PLANNED, 1.10, False),
    ("one device, rebalanced: max/mean", TREE, SAME, REBALANCED, 1.25, False),
    ("another device in each batch, rebalanced: max/mean", TREE, OTHER, REBALANCED, 1.25, False),
]
BYTES_OVER_BOUND = 1.05


def measure(quick, only=(), verbose=False):
    """Return one dict a line of the table, or with an "error" a case."""
    lines = []
    for what, placement in CASES:
        if only and not any(pattern in f"{what}/{placement}" for pattern in only):
            continue
        print(f"  {what}, {placement} ...", file=sys.stderr, flush=True)
        config = {**(QUICK if quick else FULL), "devices": DEVICES, "what": what, "placement": placement}
        target = "benchmarks.peers.ours_balance:counted"
        report = run_worker(target, config, {}, 0.0, 1, 1, verbose, forked=quick)
        if "error" in report:
            lines.append({"what": what, "placement": placement, "error": report["error"]})
        else:
            lines += report["notes"]["lines"]
    return lines


def table(lines):
    """Return header and rows."""
    header = ["", "placement", "max/mean", "MB between", "of bound", "ms", "work of each device in a step"]
    rows = []
    for line in lines:
        if "error" in line:
            rows.append([line["what"], line["placement"], line["error"]])
            continue
        rows.append(
            [
                f"{line['what']}, {line['problem']}",
                line["placement"],
                f"{line['imbalance']:.2f}",
                f"{line['bytes'] / 1e6:.2f}",
                f"{line['bytes'] / line['bound']:.3f}",
                _table.milliseconds(line["seconds"]),
                " ".join(f"{n:.0f}" for n in line["work"]),
            ]
        )
    return header, rows


def reaches(lines):
    """Return `(text, wanted, found, reached)` of every goal whose case was run."""
    found = {(line["what"], line.get("problem"), line["placement"]): line for line in lines}
    goals = []
    for text, what, problem, placement, bound, least in REACHES:
        line = found.get((what, problem, placement))
        if line is not None:
            value = line["imbalance"]
            reached = value > bound if least else value <= bound
            goals.append((text, f"{'above' if least else 'at most'} {bound:g}", f"{value:.2f}", reached))
    counted = [line["bytes"] / line["bound"] for line in lines if "error" not in line]
    if counted:
        worst = max(counted)
        wanted = f"at most {BYTES_OVER_BOUND:g}"
        goals.append(
            ("bytes between devices over the bound", wanted, f"{worst:.3f}", worst <= BYTES_OVER_BOUND)
        )
    return goals


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="300 classes of 300 words, 20 thousand rows")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="e.g. output/planned")
    parser.add_argument("--json", metavar="FILE", help="also write everything as JSON")
    parser.add_argument("--markdown", metavar="FILE", help="also write the table as Markdown")
    parser.add_argument("--verbose", action="store_true", help="show the stderr of the processes")
    options = parser.parse_args(argv)
    lines = measure(options.quick, options.only, options.verbose)
    goals = reaches(lines)
    goal_rows = [[text, wanted, found, "reached" if ok else "MISSED"] for text, wanted, found, ok in goals]
    print(_table.aligned(*table(lines)))
    print("\n" + _table.aligned(["goal", "wanted", "found", ""], goal_rows))
    if options.markdown:
        text = _table.markdown(*table(lines))
        _table.write_markdown(options.markdown, "balance", text)
    if options.json:
        _table.write_json(options.json, quick=options.quick, lines=lines, reach=goals)
    failed = any("error" in line for line in lines) or not all(ok for *_, ok in goals)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
