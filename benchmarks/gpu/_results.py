"""What the programs of a run wrote, read back; several runs as if they were one."""

import json
from dataclasses import dataclass

from benchmarks.gpu import _machine, _profile, _published
from benchmarks.gpu._limits import Limits

OURS = "ours"


@dataclass(frozen=True)
class Results:
    """All that one report says.

    Args:
        machine: `_machine.describe`.
        steps: What became of each program: step, name, status, seconds, note.
        rows: Measurements: bench, case, part, library, ms, low, high, bytes, flops, quick (of a tiny size).
            Those of the case "machine" have the card's limits.
        profile: `{bench: kernels}`, as ncu saw them.
        spills: The lines of registers.txt of kernels that spill.
    """

    machine: dict
    steps: list
    rows: list
    profile: dict
    spills: list

    @property
    def limits(self):
        return Limits.of([row for row in self.rows if row["case"] == "machine"])

    def measured(self, quick=False):
        return [row for row in self.rows if row["case"] != "machine" and bool(row.get("quick")) == quick]

    def row(self, bench, case, part, library=OURS):
        """Return the one of this key at its full size, measured or published; or None."""
        for row in [*self.measured(), *_published.ROWS]:
            if (row["bench"], row["case"], row["part"], row["library"]) == (bench, case, part, library):
                return row
        return None


def _is_row(found):
    if not isinstance(found, dict) or "case" not in found:
        return False
    return found["case"] == "machine" or (
        all(key in found for key in ("bench", "part", "library")) and found.get("ms", 0) > 0
    )


def _lines(path):
    """Yield the rows of a file. A program that was killed may have left half of one."""
    for line in path.read_text(errors="replace").splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if _is_row(found):
            yield found


def _json(path, otherwise):
    return json.loads(path.read_text()) if path.exists() else otherwise


def collect(work):
    """Return the results in the work folder of a run."""
    rows = []
    for path in sorted((work / "raw").glob("*.jsonl")):
        rows += [{**row, "quick": ".quick." in path.name} for row in _lines(path)]
    profile = {}
    for path in sorted((work / "logs").glob("ncu-*.log")):
        kernels = _profile.parse(path.read_text(errors="replace"))
        if kernels:
            profile[path.stem.removeprefix("ncu-").removesuffix("_bench_cuda")] = kernels
    registers = work / "registers.txt"
    lines = registers.read_text().splitlines()[1:] if registers.exists() else []
    spills = [line for line in lines if int(line.split()[2]) > 0]
    return Results(_json(work / "machine.json", {}), _json(work / "steps.json", []), rows, profile, spills)


def merge(several):
    """Return one of several: of a program that ran more than once, what it wrote last."""
    machine = several[-1].machine
    for one in several:
        if not _machine.same_run(one.machine, machine):
            raise ValueError(
                "Results of one card and of the same kernels can be merged. "
                f"Received: {one.machine.get('card')} ({one.machine.get('sources')}) and "
                f"{machine.get('card')} ({machine.get('sources')})"
            )
    steps, rows, profile, spills = {}, {}, {}, []
    for one in several:
        steps.update({(s["step"], s["name"]): s for s in one.steps})
        keys = ("bench", "case", "part", "library", "quick")
        rows.update({tuple(row.get(key) for key in keys): row for row in one.rows})
        profile.update(one.profile)
        spills = one.spills or spills
    return Results(machine, list(steps.values()), list(rows.values()), profile, spills)


def read(folder):
    """Return the results of an OUT folder."""
    found = json.loads((folder / "results.json").read_text())
    return Results(*(found[key] for key in ("machine", "steps", "rows", "profile", "spills")))


def as_json(results):
    return {**vars(results), "limits": vars(results.limits)}
