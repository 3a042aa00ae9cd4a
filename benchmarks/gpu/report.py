"""Joins what the benches wrote (*.jsonl in a folder) into results.json and results.md; prints the table."""

import json
import pathlib
import sys


def read(folder):
    """All measurements of a folder, as dicts, in the order of files and lines."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
        if line.strip()
    ]


def table(rows):
    """The Markdown table of the measurements; "x bound": the time over the larger of its two limits."""
    lines = [
        "| bench | case | part | library | ms | deciles | share of copy bandwidth | x bound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share, over = "", ""
        if row.get("bytes_ms"):
            share = f"{100 * row['bytes_ms'] / row['ms']:.0f}%"
        bound = max(row.get("bytes_ms", 0), row.get("flops_ms", 0))
        if bound > 0:
            over = f"{row['ms'] / bound:.2f}"
        cells = (row["bench"], row["case"], row["part"], row["library"], f"{row['ms']:.3f}")
        lines.append(f"| {' | '.join(cells)} | {row['low']:.3f} .. {row['high']:.3f} | {share} | {over} |")
    return "\n".join(lines) + "\n"


def main(folder):
    folder = pathlib.Path(folder)
    every = read(folder)
    machines = [row for row in every if row["case"] == "machine"]
    rows = [row for row in every if row["case"] != "machine"]
    text = ""
    notes = folder / "machine.txt"
    if notes.exists():
        text += "```\n" + notes.read_text() + "```\n\n"
    if machines:
        copy = max(m["copy_bytes_per_s"] for m in machines) * 1e-9
        fma = max(m["fma_flops_per_s"] for m in machines) * 1e-12
        text += f"{machines[0]['device']}: copy {copy:.0f} GB/s (read and written), "
        text += f"float32 FMA {fma:.1f} TFLOP/s.\n\n"
    text += table(rows)
    (folder / "results.md").write_text(text)
    (folder / "results.json").write_text(json.dumps({"machine": machines, "rows": rows}, indent=1) + "\n")
    print(text)
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "out"))
