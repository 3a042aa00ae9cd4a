"""Draws the pictures of the documentation: `python docs/images/draw.py` writes them next to this file.

They are 400 units wide, so that their text can be read on a telephone, and follow the colours of the system,
light or dark.
"""

import math
import pathlib
import re

FOLDER = pathlib.Path(__file__).resolve().parent
RESULTS = FOLDER.parents[1] / "benchmarks" / "RESULTS.md"
WIDTH = 400
STYLE = """
svg { --paper: #fff; --ink: #1f2430; --soft: #5b6270; --rule: #c9cedb; --box: #e8ebf8 }
svg { --ours: #3949ab; --other: #b3261e }
@media (prefers-color-scheme: dark) {
svg { --paper: #1e2129; --ink: #e6e8ef; --soft: #a9b0c0; --rule: #454c5e; --box: #2f3650 }
svg { --ours: #9fa8ff; --other: #ff8a80 }
}
text { font: 14px sans-serif; fill: var(--ink) }
.soft { fill: var(--soft); font-size: 13px } .bold { font-weight: bold }
.middle { text-anchor: middle } .end { text-anchor: end }
text.ours { fill: var(--ours) } text.other { fill: var(--other) }
.paper { fill: var(--paper) } .box { fill: var(--box); stroke: var(--ours) }
.plain { fill: none; stroke: var(--rule) }
path { fill: none; stroke: var(--soft); stroke-width: 1.5 }
.arrow { marker-end: url(#head) } #head path { fill: var(--soft); stroke: none }
.rule { stroke: var(--rule); stroke-width: 1 }
path.ours { stroke: var(--ours); stroke-width: 3 } path.other { stroke: var(--other); stroke-width: 3 }
"""
ARROW = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    ' orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
)


def picture(height, title, parts):
    """Return an SVG of `WIDTH` x `height` with a background."""
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    paper = f'<rect width="{WIDTH}" height="{height}" rx="8" class="paper"/>'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join(
        [start, f"<title>{title}</title>", f"<style>{STYLE}</style>", ARROW, paper, *parts, "</svg>\n"]
    )


def text(x, y, words, kind=""):
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{words}</text>'


def box(x, y, width, height, lines, kind="box"):
    """Return a box with centred lines of text, the first one bold in a box that is an answer."""
    first = y + height / 2 + 5 - 9 * (len(lines) - 1)
    words = [
        text(x + width / 2, first + 18 * i, line, "middle" + (" bold" if kind == "box" and i == 0 else ""))
        for i, line in enumerate(lines)
    ]
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="{kind}"/>' + "".join(words)


def arrow(*points):
    return f'<path class="arrow" d="M{"L".join(f"{x} {y}" for x, y in points)}"/>'


def parts_of_a_model():
    """Return the way from ids to the loss and to the best classes."""
    rows = [(["ids"], "plain"), (["table", "ShardedEmbedding"], "box"), (["your layers"], "plain")]
    rows.append((["head", "HierarchicalSoftmax"], "box"))
    drawn = [box(110, 12 + 70 * i, 180, 46, lines, kind) for i, (lines, kind) in enumerate(rows)]
    drawn += [arrow((200, 58 + 70 * i), (200, 80 + 70 * i)) for i in range(3)]
    notes = ["[batch, length]", "rows of the table", "hidden vectors"]
    drawn += [text(208, 74 + 70 * i, note, "soft") for i, note in enumerate(notes)]
    drawn += [box(20, 304, 160, 46, ["loss", "for fit"], "plain"), arrow((160, 268), (100, 302))]
    drawn += [
        box(220, 304, 160, 46, ["predictor", "the best classes"], "plain"),
        arrow((240, 268), (300, 302)),
    ]
    return picture(362, "From ids to a table, to your layers, to a head, to a loss or a predictor", drawn)


QUESTIONS = {
    "First layer: what are the inputs?": (
        (["millions of features,", "most of them zero"], ["SparseDense"]),
        (["ids that come and go", "every day"], ["DynamicVocabulary", "in an embedding"]),
        (["strings, and no", "vocabulary"], ["CategoryHashing", "before an embedding"]),
        (["many features, many", "tables"], ["DistributedEmbedding"]),
        (["one table of ids"], ["ShardedEmbedding"]),
    ),
    "Last layer: what are the targets?": (
        (["several right labels", "per example"], ["SparseOutput"]),
        (["some 100 thousand", "classes, and time"], ["FullSoftmax"]),
        (["a ranking of items"], ["SampledSoftmax"]),
        (["one right class of", "very many"], ["HierarchicalSoftmax"]),
    ),
}


def which_layer():
    """Return two ladders of cases: the first that fits names the layer."""
    drawn, y = [], 8
    for title, cases in QUESTIONS.items():
        drawn.append(text(12, y + 20, title, "bold"))
        y += 34
        for i, (case, answer) in enumerate(cases):
            drawn += [box(12, y, 172, 46, case, "plain"), box(214, y, 176, 46, answer)]
            drawn.append(arrow((184, y + 23), (212, y + 23)))
            if i + 1 < len(cases):
                drawn.append(arrow((98, y + 46), (98, y + 66)))
                drawn.append(text(106, y + 61, "no", "soft"))
            y += 68
        y += 4
    return picture(y, "Which layer? Take the first case that fits, from top to bottom", drawn)


def measured(library, table="recommenders"):
    """Return `(rows, ms)` of the two towers with Adam, from the recorded table."""
    part = RESULTS.read_text("utf-8").partition(f"<!-- {table} -->")[2]
    rows = re.findall(rf"^\| (\d+)([KM]) Adam \| {re.escape(library)} \| ([\d.]+) \|", part, re.MULTILINE)
    return [(int(n) * {"K": 1e3, "M": 1e6}[unit], float(ms)) for n, unit, ms in rows]


def cost_of_a_step():
    """Return the time of a step by the number of rows, both axes logarithmic."""
    left, right, top, bottom = 52, 384, 52, 290

    def x(rows):
        return round(left + (math.log10(rows) - 4.7) / 2.15 * (right - left), 1)

    def y(ms):
        return round(bottom - math.log10(ms) / 3.1 * (bottom - top), 1)

    drawn = [text(12, 24, "One training step, in milliseconds", "bold")]
    for ms in (1, 10, 100, 1000):
        drawn.append(f'<path class="rule" d="M{left} {y(ms)}H{right}"/>')
        drawn.append(text(left - 8, y(ms) + 5, f"{ms:,}", "end soft"))
    for rows, label, side in ((7e4, "70 thousand", "middle"), (1e6, "1M", "middle"), (5e6, "5M", "end")):
        drawn.append(f'<path class="rule" d="M{x(rows)} {bottom}v6"/>')
        drawn.append(text(x(rows), bottom + 22, label, f"{side} soft"))
    drawn.append(text((left + right) / 2, bottom + 44, "rows of each of two tables", "middle soft"))
    for kind, library, name, above in (
        ("other", "Keras", "Keras", 10),
        ("ours", "ours (ShardedEmbedding)", "keras_largeout", -20),
    ):
        points = measured(library)
        line = "L".join(f"{x(rows)} {y(ms)}" for rows, ms in points)
        drawn.append(f'<path class="{kind}" d="M{line}"/>')
        for rows, ms in points:
            label = f"{ms:.1f}" if ms < 10 else f"{ms:,.0f}"
            drawn.append(text(x(rows), round(y(ms) - above, 1), label, f"{kind} end"))
        (first, ms), (second, more) = points[:2]
        middle = x((first * second) ** 0.5), round(y((ms * more) ** 0.5) - 2 * above, 1)
        drawn.append(text(*middle, name, f"{kind} bold middle"))
    title = "With Keras's Adam a step takes longer the more rows the tables have; with LazyAdam it does not"
    return picture(bottom + 58, title, drawn)


def pictures():
    """Return a dict from names of files to their contents."""
    return {"parts.svg": parts_of_a_model(), "layers.svg": which_layer(), "cost.svg": cost_of_a_step()}


if __name__ == "__main__":
    for name, content in pictures().items():
        (FOLDER / name).write_text(content, "utf-8")
