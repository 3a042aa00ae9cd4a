"""Makes one report of what the programs of a run wrote: results.md, results.json, machine.txt and the logs.

`python -m benchmarks.gpu.report OUT [OUT ...]` prints one report of several runs, out of their results.json.
"""

import argparse
import io
import json
import os
import tarfile
from pathlib import Path

from benchmarks import _table
from benchmarks.gpu import _machine, _published, _reach, _results
from benchmarks.gpu._results import OURS

_MOST_LOG_BYTES = 2_000_000  # the end of a log is what the archive has
_KERNELS = 8  # of a bench, in the table of ncu


def _order(rows):
    """Return (bench, case, part) in the order in which they were measured, each once."""
    return list(dict.fromkeys((row["bench"], row["case"], row["part"]) for row in rows))


def _ours(row, limits):
    """Return cells: milliseconds, deciles, share of the copy bandwidth, times the bound."""
    if row is None:
        return ["-", "", "", ""]
    at = limits.of_row(row)
    deciles = f"{row['low']:.3f} .. {row['high']:.3f}" if "low" in row else ""
    share = f"{100 * at['share']:.0f}%" if at["share"] else ""
    over = f"{at['over']:.2f} ({at['by']})" if at["over"] else ""
    return [f"{row['ms']:.3f}", deciles, share, over]


def times(results, quick=False):
    """Return header and rows: our times, those of the peers, and how far ours are from the card's limits.

    A line has one peer, the fastest first; ours stand in the first line of a case.
    """
    measured = results.measured(quick)
    known = [*measured, *(() if quick else _published.ROWS)]
    header = ["bench", "case", "part", "ours, ms", "deciles"]
    header += ["peer", "peer, ms", "peer / ours", "of copy", "x bound"]
    rows = []
    for key in _order(measured):
        same = [row for row in known if (row["bench"], row["case"], row["part"]) == key]
        ours = next((row for row in same if row["library"] == OURS), None)
        peers = sorted((row for row in same if row["library"] != OURS), key=lambda row: row["ms"])
        cells = _ours(ours, results.limits)
        for peer in peers or [None]:
            theirs = ["", "", ""]
            if peer:
                ratio = _table.ratio(peer["ms"] / ours["ms"]) if ours else ""
                theirs = [peer["library"], f"{peer['ms']:.3f}", ratio]
            rows.append([*key, *cells[:2], *theirs, *cells[2:]])
            cells = ["", "", "", ""]
    return header, rows


def _percent(value):
    return "" if value is None else f"{value:.0f}%"


def _profile_table(profile):
    header = ["bench", "kernel", "launches", "ms", "registers", "compute", "memory", "DRAM", "warps"]
    rows = []
    for bench, kernels in profile.items():
        for one in kernels[:_KERNELS]:
            registers = "" if one["registers"] is None else f"{one['registers']:.0f}"
            shares = [_percent(one[key]) for key in ("compute", "memory", "dram", "warps")]
            rows.append([bench, one["kernel"], one["launches"], f"{one['ms']:.3f}", registers, *shares])
    return header, rows


def _steps_table(steps):
    rows = [[s["step"], s["name"], s["status"], f"{s['seconds']:.1f}", s["note"]] for s in steps]
    return ["step", "program", "result", "seconds", "note"], rows


def _goals_table(results):
    goals = _reach.judge(results)
    rows = [[goal["goal"], goal["wanted"], goal["measured"] or "-", goal["verdict"]] for goal in goals]
    return ["goal", "wanted", "measured", "verdict"], rows


def markdown(results):
    machine = results.machine
    parts = [f"# {machine.get('card', 'unknown card')}, {machine.get('date', 'unknown date')}"]
    told = [f"- {key}: {value}" for key, value in machine.items() if key not in ("card", "date")]
    parts += ["\n".join(told), "## Goals", _table.markdown(*_goals_table(results))]
    limits = results.limits.lines()
    if limits or results.measured():
        parts.append("## Times")
    if limits:
        parts.append(f"The card's own limits, measured here: {'; '.join(limits)}.")
    if results.measured():
        parts.append(_table.markdown(*times(results)))
    if any(row["case"] == _published.CASE for row in results.measured()):
        parts.append(f"{_published.LIBRARY}: {_published.SOURCE}")
    if results.measured(quick=True):
        parts.append("## Tiny sizes: that everything runs, not how fast")
        parts.append(_table.markdown(*times(results, quick=True)))
    if results.profile:
        parts += ["## ncu: the kernels that take longest", _table.markdown(*_profile_table(results.profile))]
    if results.spills:
        parts += ["## Kernels that spill registers", "```\n" + "\n".join(results.spills) + "\n```"]
    if results.steps:
        parts += ["## Programs", _table.markdown(*_steps_table(results.steps))]
    return "\n\n".join(parts) + "\n"


def _write(path, content):
    """Write a file atomically: a kill during the write leaves the old one."""
    fresh = path.with_name(f".{path.name}")
    fresh.write_bytes(content)
    os.replace(fresh, path)


def _archive(work):
    """Return logs/ and raw/, the end of each file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=5) as tar:
        for path in sorted([*(work / "logs").iterdir(), *(work / "raw").iterdir()]):
            content = path.read_bytes()[-_MOST_LOG_BYTES:]
            entry = tarfile.TarInfo(str(path.relative_to(work)))
            entry.size, entry.mtime = len(content), int(path.stat().st_mtime)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def renew(work, out):
    """Writes the report of what is in the work folder."""
    results = _results.collect(work)
    content = _results.as_json(results) | {"goals": _reach.judge(results)}
    _write(out / "machine.txt", _machine.text(results.machine).encode())
    _write(out / "results.json", (json.dumps(content, indent=1) + "\n").encode())
    _write(out / "results.md", markdown(results).encode())
    _write(out / "logs.tar.gz", _archive(work))
    if (work / "registers.txt").exists():
        _write(out / "registers.txt", (work / "registers.txt").read_bytes())


def main(argv=None):
    parser = argparse.ArgumentParser(description="Prints one report of the results of several runs.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="OUT", help="with a results.json")
    folders = parser.parse_args(argv).folders
    print(markdown(_results.merge([_results.read(folder) for folder in folders])))


if __name__ == "__main__":
    main()
