"""Turns results into what is printed: the table, the distance to the machine's limits, the reach lines."""

from dataclasses import dataclass

from benchmarks import _table


@dataclass(frozen=True)
class Reach:
    """A goal: the time of `of` over that of `ours` (speedup), or the reverse (growth), against a bound.

    Args:
        text: What is compared, for people.
        ours, of: `(problem, library)`.
        bound: The number to reach.
        growth: False: at least `bound` times faster than `of`. True: at most `bound` times the time of `of`.
    """

    text: str
    ours: tuple
    of: tuple
    bound: float
    growth: bool = False

    def line(self, times):
        wanted = f"{'at most' if self.growth else 'at least'} {self.bound:g}x"
        ours, other = times.get(self.ours), times.get(self.of)
        if ours is None or other is None:
            return {"text": self.text, "wanted": wanted, "ratio": None, "verdict": "not measured"}
        ratio = ours / other if self.growth else other / ours
        reached = ratio <= self.bound if self.growth else ratio >= self.bound
        verdict = "reached" if reached else "MISSED"
        return {"text": self.text, "wanted": wanted, "ratio": ratio, "verdict": verdict}


@dataclass(frozen=True)
class TimeReach:
    """A goal for the time of one case, in milliseconds: of the machine that it was set for."""

    text: str
    case: tuple
    bound: float

    def line(self, times):
        wanted, took = f"at most {self.bound:g} ms", times.get(self.case)
        if took is None:
            return {"text": self.text, "wanted": wanted, "ms": None, "verdict": "not measured"}
        verdict = "reached" if 1e3 * took <= self.bound else "MISSED"
        return {"text": self.text, "wanted": wanted, "ms": 1e3 * took, "verdict": verdict}


@dataclass(frozen=True)
class MemoryReach:
    """A goal for the peak memory of one case's process, in GB (1e9 bytes); `over` that of another case's.

    `anonymous`: without pages of files, which the system takes back when it needs memory.
    """

    text: str
    case: tuple
    bound: float
    over: tuple | None = None
    anonymous: bool = False

    def line(self, peaks):
        wanted, peak = f"at most {self.bound:g} GB", peaks.get(self.case)
        base = peaks.get(self.over) if self.over else 0
        if not peak or base is None or (self.over and not base):
            return {"text": self.text, "wanted": wanted, "gb": None, "verdict": "not measured"}
        peak -= base
        verdict = "reached" if peak / 1e9 <= self.bound else "MISSED"
        return {"text": self.text, "wanted": wanted, "gb": peak / 1e9, "verdict": verdict}


@dataclass(frozen=True)
class LimitReach:
    """A goal for how near one case comes to a limit of `floors`: 1 is as fast as the machine can."""

    text: str
    case: tuple
    limit: str
    bound: float

    def line(self, shares):
        wanted, share = f"at least {self.bound:g} of the limit", shares.get((*self.case, self.limit))
        if share is None:
            return {"text": self.text, "wanted": wanted, "share": None, "verdict": "not measured"}
        verdict = "reached" if share >= self.bound else "MISSED"
        return {"text": self.text, "wanted": wanted, "share": share, "verdict": verdict}


def floors(notes, machine):
    """Return the least seconds a step could take by each of the machine's limits: `{name: seconds}`."""
    found = {}
    if "bytes" in notes and "copy_all_gb_s" in machine:
        found["bytes"] = notes["bytes"] / (machine["copy_all_gb_s"] * 1e9)
    if "flops" in notes and "gemm_gflop_s" in machine:
        found["flops"] = notes["flops"] / (machine["gemm_gflop_s"] * 1e9)
    if "rows_read" in notes and "row_read_all_ns" in machine:
        reads = notes["rows_read"] * machine["row_read_all_ns"]
        found["random rows"] = 1e-9 * (reads + notes["rows_updated"] * machine["row_update_all_ns"])
    if "gathered" in notes and machine.get("gather_all_gb_s"):
        gathers = notes["gathered"] / machine["gather_all_gb_s"]
        found["gathers"] = 1e-9 * (gathers + notes["gathered_and_added"] / machine["gather_add_all_gb_s"])
    if "disk_seconds" in notes:
        found["disk"] = notes["disk_seconds"]
    return found


def table(results, references, baseline=None):
    """Return header and rows.

    Args:
        results: One a row.
        references: `{column: library}`. The column has each time as a multiple of that library's on the same
            problem.
        baseline: `(problem, library)` of a case with whose memory that of the others is compared, or None.
    """
    times = {(r.case.problem, r.case.library): r.median for r in results if r.median is not None}
    base = {(r.case.problem, r.case.library): r.peak_bytes for r in results}.get(baseline)
    over = ["MB over baseline"] if baseline else []
    columns = ["ms", "p10", "p90", "cpu ms", *references, "peak GB", *over, "loss, step 4"]
    header = ["problem", "library", *columns]
    rows = []
    for result in results:
        case, record = result.case, result.to_json()
        if result.error:
            rows.append([case.problem, case.library, result.error])
            continue
        ours = [times.get((case.problem, library)) for library in references.values()]
        rows.append(
            [
                case.problem,
                case.library,
                _table.milliseconds(result.median),
                _table.milliseconds(record["p10_ms"] / 1e3),
                _table.milliseconds(record["p90_ms"] / 1e3),
                _table.milliseconds(record["cpu_ms"] / 1e3),
                *("-" if time is None else _table.ratio(result.median / time) for time in ours),
                _table.gigabytes(result.peak_bytes),
                *(f"{(result.peak_bytes - base) / 1e6:.0f}" if base else "-" for _ in over),
                f"{result.losses[-1]:.5g}",
            ]
        )
    return header, rows


def limit_lines(results, machine):
    """Return how far each of our steps is from what the machine could do."""
    lines = []
    for result in results:
        if not result.case.ours or result.median is None:
            continue
        parts = [
            f"{_table.ratio(result.median / least)} its {name} limit of {_table.milliseconds(least)} ms"
            for name, least in floors(result.notes, machine).items()
        ]
        if parts:
            took = _table.milliseconds(result.median)
            lines.append(f"{result.case.name}: {took} ms is " + ", ".join(parts))
    return lines


def reach_lines(reaches, results, machine):
    done = {(r.case.problem, r.case.library): r for r in results if r.median is not None}
    times = {case: r.median for case, r in done.items()}
    peaks = {
        anonymous: {case: r.anonymous_bytes if anonymous else r.peak_bytes for case, r in done.items()}
        for anonymous in (False, True)
    }
    shares = {
        (*case, limit): least / r.median
        for case, r in done.items()
        for limit, least in floors(r.notes, machine).items()
    }

    def found(reach):
        if isinstance(reach, MemoryReach):
            return peaks[reach.anonymous]
        return shares if isinstance(reach, LimitReach) else times

    return [reach.line(found(reach)) for reach in reaches]


def reach_rows(lines):
    """Return header and rows of the goals."""
    rows = []
    for line in lines:
        if line.get("gb") is not None:
            value = f"{line['gb']:.2f} GB"
        elif line.get("ms") is not None:
            value = f"{_table.milliseconds(line['ms'] / 1e3)} ms"
        elif line.get("share") is not None:
            value = f"{line['share']:.2f}"
        else:
            value = _table.ratio(line["ratio"]) if line.get("ratio") is not None else "-"
        rows.append([line["text"], f"reach {line['wanted']}", value, line["verdict"]])
    return ["goal", "wanted", "measured", "verdict"], rows
