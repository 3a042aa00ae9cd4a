"""The command line: `python -m benchmarks.quality TABLE`."""

import argparse
import importlib
import importlib.util
import pathlib
import sys

from benchmarks import _table, quality
from benchmarks.quality._rows import run_apart

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
TABLES = sorted(path.stem for path in pathlib.Path(__file__).parent.glob("[a-z]*.py"))


def cells(found):
    """Return header and rows, for `_table`, of a dict from rows to their columns."""
    columns = list(dict.fromkeys(name for row in found.values() for name in row if name != "course"))
    return ["", *columns], [[name, *(_cell(row.get(c)) for c in columns)] for name, row in found.items()]


def _cell(value):
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def draw(path, found, axes_say):
    """Draw the courses of the rows that have one, into a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.6, 4.8), dpi=150, layout="constrained")
    for (name, row), marker in zip(found.items(), "os^vDPX<"):
        if row.get("course"):
            axes.plot(*zip(*row["course"]), marker=marker, label=name)
    axes.set(xlabel=axes_say[0], ylabel=axes_say[1])
    axes.margins(0.08)
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(path)
    plt.close(figure)


def main(argv=None):
    """Return the exit status: 0, or 1 if a row failed."""
    description = quality.__doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality", description=description, allow_abbrev=False
    )
    add = parser.add_argument
    add("table", choices=TABLES, help="options that are not listed here are those of the example")
    add("--only", action="append", metavar="TEXT", help="only rows whose name contains it; may be repeated")
    add("--json", metavar="FILE", help="also write everything as JSON")
    add("--markdown", metavar="FILE", help="also write a Markdown table")
    add("--plots", metavar="DIR", help="also draw TABLE.png")
    options, rest = parser.parse_known_args(argv)
    sys.path.insert(0, str(EXAMPLES))
    table = importlib.import_module(f"benchmarks.quality.{options.table}")
    rows = [row for row in table.ROWS if not options.only or any(text in row for text in options.only)]
    for row, package in getattr(table, "NEEDS", {}).items():
        if row in rows and importlib.util.find_spec(package) is None:
            print(f"left out: {row}, which needs the package {package}: pip install '.[benchmarks]'")
            rows.remove(row)
    for row, option in getattr(table, "NOT_WITH", {}).items():
        if row in rows and option in rest:
            print(f"left out: {row}, which does not go with {option}")
            rows.remove(row)
    found = {row: run_apart(options.table, row, rest) for row in rows}
    failed = [row for row, columns in found.items() if columns is None]
    found = {row: columns for row, columns in found.items() if columns is not None}
    header, lines = cells(found)
    print("\n" + _table.aligned(header, lines))
    if options.markdown:
        _table.write_markdown(options.markdown, f"quality {options.table}", _table.markdown(header, lines))
    if options.json:
        _table.write_json(options.json, table=options.table, argv=rest, rows=found)
    if options.plots and any(row.get("course") for row in found.values()):
        pathlib.Path(options.plots).mkdir(parents=True, exist_ok=True)
        draw(pathlib.Path(options.plots) / f"{options.table}.png", found, table.COURSE)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
