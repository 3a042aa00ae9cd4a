"""The parts of a step's time, by the kinds of its ops, and the tables of them."""

from collections import Counter

from benchmarks import _table
from benchmarks.profile.shares import BETWEEN, PYTHON, by_scope, shares

OURS, INPUT, SORTING = "ours: ", "input (tf.data)", "TensorFlow: sorting, unique, segments"
PRODUCTS, MOVING, OTHER = "TensorFlow: matrix products", "TensorFlow: moving values", "TensorFlow: other ops"

_INPUT = {"Input", "IteratorGetNext"}
_SORTING = ("Unique", "TopK", "Sort", "Segment", "Bincount")
_MOVING = ("Concat", "Copy", "Fill", "Gather", "Identity", "Pack", "Reshape", "Scatter", "Slice", "Split")
_MOVING += ("Stack", "TensorList", "Tile", "Transpose", "Zeros")
_SHOWN_KINDS = 3


def part_of(kind):
    """Return the part that an op belongs to, by its type."""
    if kind.startswith("Largeout>"):
        return OURS + kind.removeprefix("Largeout>")
    if kind in _INPUT:
        return INPUT
    for words, part in ((_SORTING, SORTING), (("MatMul", "Einsum"), PRODUCTS), (_MOVING, MOVING)):
        if any(word in kind for word in words):
            return part
    return OTHER


def summary(recording, layers=None):
    """Return what is kept of a recording: JSON-able.

    The slower half of its steps is left out: other processes disturb these more.

    Args:
        recording: a `Recording`.
        layers: `{name of a layer: part of the model}`, or None.

    Returns:
        `steps`, `milliseconds` (of a step) and `parts`: for each its name, the milliseconds and the ops of a
        step, and the kinds of ops that take most of it. `layers`: the share of each part of the model.
    """
    by_length = sorted(recording.steps, key=lambda step: step[1] - step[0])
    recording = recording._replace(steps=by_length[: (len(by_length) + 1) // 2])
    steps = len(recording.steps)
    seconds = shares(recording, lambda span: span.kind)
    within = [s for s in recording.spans if any(b <= s.begin < e for b, e in recording.steps)]
    ops = Counter(span.kind for span in within)
    parts = {}
    for kind, spent in seconds.most_common():
        name = kind if kind in (BETWEEN, PYTHON) else part_of(kind)
        part = parts.setdefault(name, {"part": name, "milliseconds": 0.0, "ops": 0.0, "kinds": []})
        part["milliseconds"] += 1e3 * spent / steps
        part["ops"] += ops[kind] / steps
        if name in (SORTING, PRODUCTS, MOVING, OTHER):
            part["kinds"].append(kind.removeprefix("_MklNative").removeprefix("_Mkl"))
    found = sorted(parts.values(), key=lambda part: -part["milliseconds"])
    for part in found:
        part["kinds"] = list(dict.fromkeys(part["kinds"]))[:_SHOWN_KINDS]
    total = sum(seconds.values())
    by_layer = shares(recording, by_scope(layers, "other ops")) if layers else Counter()
    return {
        "steps": steps,
        "milliseconds": 1e3 * total / steps,
        "parts": found,
        "layers": {name: spent / total for name, spent in by_layer.most_common()},
    }


def table(found):
    """Return header and rows of a summary."""
    rows = [
        [
            part["part"],
            ", ".join(part["kinds"]),
            _table.milliseconds(1e-3 * part["milliseconds"]),
            f"{part['milliseconds'] / found['milliseconds']:.1%}",
            f"{part['ops']:.4g}" if part["ops"] else "",
        ]
        for part in found["parts"]
    ]
    total = _table.milliseconds(1e-3 * found["milliseconds"])
    return ["part", "mostly", "ms", "share", "ops"], [*rows, ["the step", "", total, "100.0%", ""]]


def lines(found, floors):
    """Return what there is to say beside the table: the step without the profiler, and its bounds."""
    own = sum(part["milliseconds"] for part in found["parts"] if part["part"].startswith(OURS))
    said = [
        f"without the profiler {_table.milliseconds(1e-3 * found['plain_ms'])} ms (median of "
        f"{found['plain_steps']} steps), {_table.milliseconds(1e-3 * found['cpu_ms'])} ms of processor time, "
        f"{found['page_faults']:.0f} page faults; above are the means of {found['steps']} recorded steps",
        f"our kernels together {_table.milliseconds(1e-3 * own)} ms",
    ]
    if found["layers"]:
        said.append(
            "by layers: " + ", ".join(f"{name} {share:.1%}" for name, share in found["layers"].items())
        )
    for name, seconds in floors.items():
        step, kernels = (_table.ratio(1e-3 * spent / seconds) for spent in (found["plain_ms"], own))
        bound = f"bound by {name} {_table.milliseconds(seconds)} ms"
        said.append(f"{bound}: the step is {step} of it, our kernels {kernels}")
    return said
