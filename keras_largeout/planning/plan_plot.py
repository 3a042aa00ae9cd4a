"""The picture of a plan: what every device holds and does, by table."""

import numpy as np

from keras_largeout.planning.plan_stats import BYTES, SECONDS, headline, size_text, unit_for

#: Colours that colour-blind people tell apart, neighbours most of all. (M. Okabe, K. Ito, "Color Universal
#: Design", 2008.)
COLORS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#F0E442", "#CC79A7")
_GREYS = (("#d4d4d4", ""), ("#8c8c8c", "////"), ("#5a5a5a", "...."), ("#b0b0b0", "xxxx"))
#: A limit is drawn as long as the bars take at least this part of the axis.
_LEAST_BARS = 0.2
_MOST_TICKS = 48


def new_figure(caller, width, height):
    """Return a matplotlib figure that is not one of pyplot's: it has no window and no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"`{caller}` draws with matplotlib, which is not installed: pip install matplotlib"
        ) from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def as_labels(names, most=36):
    """Names as matplotlib shows them: long ones without their middle, unless that makes two the same."""
    short = [n if len(n) <= most else f"{n[: most // 2 - 1]}…{n[-(most // 2) :]}" for n in names]
    if len(set(short)) < len(set(names)):
        short = names
    # A `$` would begin a formula, and a label that begins with an underscore is left out of legends.
    return [(" " * n.startswith("_") + n).replace("$", r"\$") for n in short]


def plot(plan, path):
    """See `Plan.plot`."""
    devices = as_labels([device.name for device in plan.devices])
    parts = {"memory": {table.spec.name: table.memory for table in plan.tables}}
    if plan.expected is not None:
        parts["time"] = {t.spec.name: t.expected.seconds(plan.devices) for t in plan.tables}
    groups = _groups(plan, parts)
    figure = new_figure("Plan.plot", 10, max(4.2, 1.8 + min(18, 0.36 * len(devices))))
    figure.suptitle(headline(plan), fontweight="bold", x=0.01, ha="left")
    left, right = figure.subplots(1, 2, sharey=True)
    unit = _bars(left, groups, parts["memory"], BYTES)
    left.set(title="Memory of tables and slots", xlabel=f"{unit} per device")
    _limits(left, plan, BYTES[unit])
    if "time" in parts:
        unit = _bars(right, groups, parts["time"], SECONDS)
        right.set(title="Expected time of the tables", xlabel=f"{unit} per step")
        right.axvline(plan.seconds.mean() / SECONDS[unit], color="black", linewidth=1.2, label="mean time")
    else:
        right.set(title="Expected time of the tables: unknown", xticks=[])
        why = "The file was edited.\nRead it with `tables`\nto estimate the time again."
        right.text(0.5, 0.5, why, transform=right.transAxes, ha="center", va="center")
    every = -(-len(devices) // _MOST_TICKS)
    left.set_yticks(range(0, len(devices), every), devices[::every])
    left.set_ylim(len(devices) - 0.5, -0.5)
    entries = {}
    for axes in (left, right):
        entries |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(entries.values(), entries.keys(), loc="outside right upper", fontsize="small")
    # Long names widen the picture. They do not take the room of the bars.
    figure.set_figwidth(9.5 + 0.08 * (max(map(len, devices)) + max(map(len, entries))))
    figure.savefig(path)


def _groups(plan, parts):
    """Return what the bars are made of: `(label, names of tables, style)`.

    The tables with the largest shares of memory and time are one group each. The others are split by the way
    in which they are placed, in greys.
    """
    totals = {part: sum(values.sum() for values in tables.values()) or 1 for part, tables in parts.items()}
    weight = {
        name: sum(tables[name].sum() / totals[part] for part, tables in parts.items())
        for name in plan.placements
    }
    names = sorted(weight, key=lambda name: -weight[name])
    labels = dict(zip(names, as_labels(names)))
    groups = [(labels[name], [name], {"color": color}) for name, color in zip(names, COLORS)]
    others = {}
    for name in names[len(COLORS) :]:
        others.setdefault(_way(plan[name].placement), []).append(name)
    for (way, rest), (color, hatch) in zip(others.items(), _GREYS):
        label = labels[rest[0]] if len(rest) == 1 else f"{len(rest)} others, {way}"
        groups.append((label, rest, {"color": color, "hatch": hatch}))
    return groups


def _way(placement):
    named = {"table": "table-wise", "columns": "column-wise", "replicated": "replicated"}
    return named.get(placement.kind, "row-wise")


def _bars(axes, groups, parts, units):
    """Return stacked bars, one for each device. Returns the unit of their lengths."""
    most = sum(parts.values()).max()
    unit = unit_for(most, units)
    start = 0
    for label, names, style in groups:
        width = sum(parts[name] for name in names) / units[unit]
        style = {"edgecolor": "white", "linewidth": 0.5} | style
        axes.barh(range(len(width)), width, left=start, label=label, **style)
        start = start + width
    axes.set_xlim(0, 1.05 * most / units[unit] or 1)
    axes.locator_params(axis="x", nbins=5)
    return unit


def _limits(axes, plan, unit):
    """Marks what each device may hold. Limits far beyond the bars are only said, in the legend."""
    limits = {i: device.memory for i, device in enumerate(plan.devices) if device.memory is not None}
    if not limits:
        return
    least, most = min(limits.values()), max(limits.values())
    label = f"memory limit: {size_text(least)}" + (f" to {size_text(most)}" if most > least else "")
    drawn = {i: limit for i, limit in limits.items() if _LEAST_BARS * limit <= plan.memory.max()}
    if len(drawn) < len(limits):
        label += " (off the scale)" if not drawn else " (some off the scale)"
    x, y = np.array([*drawn.values()]) / unit, np.array([*drawn], float)
    axes.vlines(x, y - 0.5, y + 0.5, color="black", linestyle=":", linewidth=2, label=label)
    axes.set_xlim(right=max(axes.get_xlim()[1], *(1.05 * x)) if drawn else None)
