"""What the pictures of the examples have in common: axes, ticks and labels that nobody has to guess."""

import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib import ticker

#: Where a label may stand beside its point, in points of type: (x, y, horizontal, vertical alignment).
_PLACES = [
    (
        sign * right,
        up,
        {-1: "right", 1: "left"}[sign],
        "center" if up == 0 else "bottom" if up > 0 else "top",
    )
    for right, ups in (
        (9, (0, 9, -9)),
        (18, (0, 18, -18)),
        (30, (30, -30)),
        (45, (45, -45)),
        (60, (60, -60)),
        (9, (80, -80)),
    )
    for up in ups
    for sign in (1, -1)
]


def new_figure(columns, title):
    """Return a figure, and a list of as many axes side by side."""
    figure, grid = plt.subplots(
        1, columns, figsize=(10.4 if columns > 1 else 7.6, 4.8), dpi=150, layout="constrained", squeeze=False
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold")
    return figure, list(grid[0])


def dress(axes, title, x, y):
    axes.set_title(title, loc="left", fontsize=11, pad=8)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, which="major", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.08, y=0.08)


def time_unit(seconds):
    """Return `(unit, seconds in it)` for times of up to so many seconds."""
    return ("minutes", 60) if seconds >= 120 else ("seconds", 1)


def legend(figure, axes, columns):
    """Draw the legend of `axes` below everything else, so that it hides no point."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def log_axis(axis):
    """Makes an axis logarithmic, with numbers at its ticks, however short it is."""
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    axis.set_major_locator(ticker.FixedLocator(log_ticks(*axis.get_view_interval())))
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:,.12g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def log_ticks(low, high, least=3, most=6):
    """Round numbers between `low` and `high` for a logarithmic axis: a few, but never none."""
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,), (1, 1.5, 2, 3, 5, 7)):
        ticks = np.outer(decades, steps).ravel()
        ticks = ticks[(ticks >= low) & (ticks <= high)]
        if least <= len(ticks) <= most:
            return ticks
    if len(decades) > most:
        return decades[:: -(-len(decades) // most)]
    ticks = ticker.MaxNLocator(4).tick_values(low, high)
    return ticks[(ticks >= low) & (ticks <= high)]


def label_points(axes, points):
    """Writes a name beside every point, so that no name is over another one, over a point or outside.

    Args:
        axes: whose limits and size are final.
        points: list of `(x, y, text, color)`.
    """
    axes.figure.draw_without_rendering()  # the layout, and with it the size of the axes
    inside, taken = axes.get_window_extent(), []
    for x, y, *_ in points:
        middle = axes.transData.transform((x, y))
        taken.append(matplotlib.transforms.Bbox([middle - 9, middle + 9]))
    for x, y, text, color in points:
        style = {"color": color, "fontsize": 9, "textcoords": "offset points"}
        found = None
        for right, up, horizontal, vertical in _PLACES:
            note = axes.annotate(
                textwrap.fill(text, 22), (x, y), (right, up), ha=horizontal, va=vertical, **style
            )
            note.set_in_layout(False)
            box = note.get_window_extent()
            free = not any(box.overlaps(other) for other in taken)
            if (
                free
                and inside.x0 <= box.x0
                and box.x1 <= inside.x1
                and inside.y0 <= box.y0
                and box.y1 <= inside.y1
            ):
                found = note
                break
            note.remove()
        if found is None:  # far too many points: better one over another than none
            found = axes.annotate(text, (x, y), _PLACES[0][:2], ha="left", va="center", **style)
        taken.append(found.get_window_extent().padded(8))


def save(figure, path):
    figure.savefig(path)
    plt.close(figure)
    print(f"   {path}")
