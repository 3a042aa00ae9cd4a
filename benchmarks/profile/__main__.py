"""The command line: `python -m benchmarks.profile CASE`."""

import argparse
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from benchmarks import _harness, _report, _table, profile
from benchmarks import dense_update as dense
from benchmarks import embedding as rows
from benchmarks import fan_in as sparse
from benchmarks import machine as the_machine
from benchmarks import softmax as full
from benchmarks import tree_softmax as tree
from benchmarks.profile import language_model as text
from benchmarks.profile import parts


class Profiled(NamedTuple):
    """Steps of another benchmark: of these libraries, and of these problems unless others are asked for."""

    benchmark: ModuleType
    libraries: tuple
    problems: tuple
    row_floats: int
    gather_rows: int = 0


CASES = {
    "embedding": Profiled(rows, (rows.LAYER,), ("1M SGD", "1M Adagrad"), rows.DIM),
    "tree_softmax": Profiled(tree, (tree.HUFFMAN, tree.HEAD_TAIL), ("1M",), tree.DIM),
    "fan_in": Profiled(sparse, (sparse.FUSED,), ("670K training",), sparse.BATCH, sparse.INPUTS),
    "full_softmax": Profiled(full, (full.OURS,), ("100K",), full.DIM),
    "dense_update": Profiled(dense, (dense.OURS,), ("512 x 16,384 SGD", "512 x 16,384 Adam"), 64),
    "language_model": Profiled(text, (text.OURS,), (), text.UNITS),
}


def chosen(name, quick, patterns):
    """Return the cases of a benchmark whose steps are recorded."""
    profiled = CASES[name]
    own = [case for case in profiled.benchmark.make_cases(quick) if case.library in profiled.libraries]
    if patterns:
        return [case for case in own if _harness.matches(case, patterns)]
    if quick or not profiled.problems:
        return own
    return [case for case in own if case.problem in profiled.problems]


def _record(case, options):
    """Return what `recorded.py` found, with the notes of the case; or `{"error": ...}`."""
    config = {"target": case.target, "config": case.config, "seconds": 0.3 if options.quick else 5.0}
    target = "benchmarks.profile.recorded:record"
    report = _harness.run_worker(
        target, config, case.data, 0.0, 1, 1, options.verbose, environment=case.environment
    )
    if "error" in report:
        return report
    notes = {**case.notes, **report["notes"]}
    return {**notes.pop("profile"), "notes": notes}


def _profile(name, cases, options):
    """Records and prints all of a benchmark. Returns the Markdown and the records."""
    profiled = CASES[name]
    machine = the_machine.limits(profiled.row_floats, options.quick, profiled.gather_rows)
    texts, kept = [f"Machine: {the_machine.describe(machine)}."], []
    print(f"{name}. {texts[0]}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="largeout-profile-") as folder:
        for case in profiled.benchmark.with_data(options.quick, folder, cases):
            found = _record(case, options)
            kept.append({"case": name, "step": case.name, "machine": machine, **found})
            if "error" in found:
                print(f"{case.name}: {found['error']}\n", file=sys.stderr)
                continue
            table, said = parts.table(found), parts.lines(found, _report.floors(found["notes"], machine))
            print(case.name, _table.aligned(*table), "\n".join(said), sep="\n", end="\n\n", flush=True)
            texts += [f"**{case.name}**", _table.markdown(*table), "\n".join(f"- {line}" for line in said)]
    return "\n\n".join(texts), kept


def _write(file, marker, markdown):
    """Writes between the markers of a case in a file. Where it has none, they come to its end."""
    path = Path(file)
    text = path.read_text() if path.exists() else ""
    if f"<!-- {marker} -->" not in text:
        path.write_text(f"{text.rstrip()}\n\n<!-- {marker} -->\n<!-- end of {marker} -->\n".lstrip())
    _table.write_markdown(file, marker, markdown)


def _options(argv):
    description = profile.__doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=description)
    add = parser.add_argument
    add("case", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; none: all of them")
    add("--quick", action="store_true", help="small sizes, few steps: does all run?")
    add(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="the problems in whose name PATTERN occurs, also such as are not recorded otherwise",
    )
    add("--json", metavar="FILE", help="also write everything as JSON")
    add("--markdown", metavar="FILE", help="also write Markdown tables; in FILE between each case's markers")
    add("--verbose", action="store_true", help="show the stderr of the processes")
    options = parser.parse_args(argv)
    for name in set(options.case) - set(CASES):
        parser.error(f"no case {name}; there are {', '.join(CASES)}")
    return options


def main(argv=None):
    """Returns the exit status: 0; 1 if a step failed; 2 where there is nothing to do."""
    options = _options(argv)
    cases = {name: chosen(name, options.quick, options.only) for name in options.case or CASES}
    if not any(cases.values()):
        print(f"no problem matches {options.only}", file=sys.stderr)
        return 2
    kept = []
    for name, own in cases.items():
        if not own:
            continue
        markdown, records = _profile(name, own, options)
        kept += records
        if options.markdown:
            _write(options.markdown, f"profile {name}", markdown)
    if options.json:
        _table.write_json(options.json, quick=options.quick, profiles=kept)
    return 1 if any("error" in record for record in kept) else 0


if __name__ == "__main__":
    sys.exit(main())
