"""Prints results as aligned text or Markdown, and writes them as JSON."""

import json
from pathlib import Path


def _cells(rows):
    return [[str(c) for c in row] for row in rows]


def aligned(header, rows):
    """Return text columns: the first two to the left, numbers to the right. The end of a short row may run
    over.
    """
    cells = _cells([header, *rows])
    full = [row for row in cells if len(row) == len(header)]
    widths = [max(len(row[i]) for row in full) for i in range(len(header))]
    for row in cells:
        widths[:2] = [max(w, len(c)) for w, c in zip(widths[:2], row)]
    lines = []
    for row in cells:
        short = len(row) < len(header)
        parts = [c.ljust(w) if i < 2 or short else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines)


def markdown(header, rows):
    """Return a Markdown table, as it stands in RESULTS.md."""
    padded = [[*row, *[""] * (len(header) - len(row))] for row in _cells([header, *rows])]
    lines = ["| " + " | ".join(row) + " |" for row in padded]
    lines.insert(1, "|" + "|".join("---" if i < 2 else "---:" for i in range(len(header))) + "|")
    return "\n".join(lines)


def milliseconds(seconds):
    """Return three figures and no more: 0.123, 1.23, 12.3, 123, 1234."""
    if seconds is None:
        return "-"
    value = 1e3 * seconds
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}"


def ratio(value):
    if value is None:
        return "-"
    return f"{value:.0f}x" if value >= 100 else f"{value:.1f}x" if value >= 10 else f"{value:.2f}x"


def gigabytes(size):
    return f"{size / 1e9:.2f}" if size else "-"


def write_markdown(path, name, text):
    """Writes a file, or what stands between `<!-- name -->` and `<!-- end of name -->` in an existing one."""
    path, begin, end = Path(path), f"<!-- {name} -->", f"<!-- end of {name} -->"
    old = path.read_text() if path.exists() else ""
    if begin in old and end in old:
        text = f"{old.partition(begin)[0]}{begin}\n\n{text}\n\n{end}{old.partition(end)[2]}"
    path.write_text(text.rstrip() + "\n")


def write_json(path, **content):
    Path(path).write_text(json.dumps(content, indent=1) + "\n")
