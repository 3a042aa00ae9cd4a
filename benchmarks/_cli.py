"""The command line that all benchmarks share."""

import argparse
import os
import sys
import tempfile

from benchmarks import _harness, _report, _table
from benchmarks import machine as the_machine


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small sizes, few steps: does all run?")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help='only cases whose "problem/library" contains PATTERN (`*`: anything); may be repeated',
    )
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    parser.add_argument("--rounds", type=int, help="fresh processes a case (default: as the case says)")
    parser.add_argument("--json", metavar="FILE", help="also write everything as JSON")
    parser.add_argument(
        "--markdown",
        metavar="FILE",
        help="also write Markdown tables; in a FILE with this benchmark's markers, between them",
    )
    parser.add_argument("--verbose", action="store_true", help="show the stderr of the processes")
    return parser


def _load():
    """Return other processes that want a processor now, and a warning where they would spoil the figures."""
    load = os.getloadavg()[0]
    if load > 0.3 * (os.cpu_count() or 1):
        print(
            f"warning: the machine is busy (load {load:.1f}). Libraries whose threads wait for each other by "
            "spinning (OpenMP: PyTorch, FBGEMM) can look a hundred times slower than they are.\n",
            file=sys.stderr,
        )
    return load


def main(
    name,
    description,
    make_cases,
    with_data,
    reaches,
    references,
    row_floats,
    argv=None,
    baseline=None,
    gather_rows=0,
):
    """Measures and reports.

    Args:
        name: The benchmark's name in the markers of a Markdown file.
        description: First line of `--help`.
        make_cases: `make_cases(quick)` gives the cases.
        with_data: `with_data(quick, folder, cases)` gives them with their data, made in `folder`.
        reaches: Goals, judged on full runs only.
        references: `{column: library}`, ours, with whose time the others are compared.
        row_floats: Length of the rows for which the machine's random access is measured.
        argv: Arguments of the command line; None: those of the process.
        baseline: `(problem, library)` of the case with whose memory that of the others is compared, or None.
            It is run whatever `--only` says.
        gather_rows: Rows of the small table for which the rate of gathers is measured; 0: none.

    Returns:
        The exit status: 0; 1 if one of our own cases failed; 2 where there is nothing to do.
    """
    options = arguments(description).parse_args(argv)
    cases = [case for case in make_cases(options.quick) if _harness.matches(case, options.only)]
    if baseline and cases:
        always = [case for case in make_cases(options.quick) if (case.problem, case.library) == baseline]
        cases = always + [case for case in cases if case not in always]
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    if not cases:
        print(f"no case matches {options.only}; --list shows them all", file=sys.stderr)
        return 2
    if options.rounds:
        cases = [case.but(rounds=options.rounds) for case in cases]
    load = _load()
    machine = the_machine.limits(row_floats, options.quick, gather_rows)
    print(f"machine: {the_machine.describe(machine)}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="largeout-bench-") as folder:
        results = _harness.run_cases(
            with_data(options.quick, folder, cases), options.verbose, forked=options.quick
        )
    rows = _report.table(results, references, baseline)
    limits = _report.limit_lines(results, machine)
    print(_table.aligned(*rows), "\n".join(limits), sep="\n\n")
    goals = [] if options.quick else _report.reach_lines(reaches, results, machine)
    if options.only:
        goals = [goal for goal in goals if goal["verdict"] != "not measured"]
    if goals:
        print("\n" + _table.aligned(*_report.reach_rows(goals)))
    if options.markdown:
        lines = [f"Machine: {the_machine.describe(machine)}.", _table.markdown(*rows)]
        lines += ["\n".join(f"- {line}" for line in limits)] if limits else []
        lines += [_table.markdown(*_report.reach_rows(goals))] if goals else []
        _table.write_markdown(options.markdown, name, "\n\n".join(lines))
    if options.json:
        _table.write_json(
            options.json,
            machine={**machine, "load_before": load},
            quick=options.quick,
            results=[{**r.to_json(), "floors_s": _report.floors(r.notes, machine)} for r in results],
            reach=goals,
        )
    failed = [r.case.name for r in results if r.case.ours and r.error]
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
