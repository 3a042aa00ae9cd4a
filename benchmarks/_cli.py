"""The command line that all benchmarks share."""

import argparse
import sys
import tempfile

from benchmarks import _harness, _machine, _report, _table


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small sizes, few steps: does everything run?")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help='only cases whose "problem/library" contains PATTERN (or matches it as a glob); may be repeated',
    )
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    parser.add_argument("--rounds", type=int, help="fresh processes a case (default: as the case says)")
    parser.add_argument("--json", metavar="FILE", help="also write everything as JSON")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables, as in README.md")
    parser.add_argument("--verbose", action="store_true", help="show the stderr of the processes")
    return parser


def main(description, make_cases, reaches, row_floats, argv=None):
    """Measures and reports.

    Args:
        description: First line of `--help`.
        make_cases: `make_cases(quick, folder, wanted)` gives the cases; `wanted(case)` says whether a case is
            asked for (data need be made for those only).
        reaches: Goals, judged on full runs only.
        row_floats: Length of the rows for which the machine's random access is measured.

    Returns:
        The exit status: 1 if one of our own cases failed, else 0.
    """
    options = arguments(description).parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="largeout-bench-") as folder:
        cases = make_cases(options.quick, folder, lambda case: _harness.matches(case, options.only))
        if options.list:
            print("\n".join(case.name for case in cases))
            return 0
        if options.rounds:
            cases = [case.but(rounds=options.rounds) for case in cases]
        machine = _machine.limits(row_floats, options.quick)
        print(f"machine: {_machine.describe(machine)}\n", flush=True)
        results = _harness.run_cases(cases, options.verbose)
    draw = _table.markdown if options.markdown else _table.aligned
    print(draw(*_report.table(results)))
    limits = _report.limit_lines(results, machine)
    print("\n" + "\n".join(("- " if options.markdown else "") + line for line in limits))
    goals = [] if options.quick else _report.reach_lines(reaches, results)
    if goals:
        print("\n" + draw(*_report.reach_rows(goals)))
    if options.json:
        _table.write_json(
            options.json,
            machine=machine,
            quick=options.quick,
            results=[{**r.to_json(), "floors_s": _report.floors(r.notes, machine)} for r in results],
            reach=goals,
        )
    failed = [r.case.name for r in results if r.case.ours and r.error]
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
