"""A picture of the ranking example: are the probabilities right, and what did it take to learn them?"""

import json
import pathlib

from _ranking.models import NAMES

from _plots.axes import dress, legend, log_axis, new_figure, save

_STYLES = {
    "dcn": {"color": "#0072B2", "marker": "o"},
    "dlrm": {"color": "#D55E00", "marker": "s"},
}


def ranking(folder, kind, results):
    """Draw `ranking.png`: calibration, and AUC by rows trained on; models drawn here before are in it too.

    Args:
        folder: where to.
        kind: which model, one of `models.NAMES`.
        results: dict with "bins" and "points".
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kept = {key: results[key] for key in ("bins", "points")}
    (folder / f"ranking-{kind}.json").write_text(json.dumps(kept))
    runs = {kind: folder / f"ranking-{kind}.json" for kind in NAMES}
    runs = {kind: json.loads(path.read_text()) for kind, path in runs.items() if path.exists()}
    figure, (left, right) = new_figure(2, "Who clicks?")
    _calibration(left, runs)
    _course(right, runs)
    legend(figure, right, 3)
    save(figure, folder / "ranking.png")


def _line(kind):
    return _STYLES[kind] | {"markersize": 6, "linewidth": 1.8, "markeredgecolor": "white"}


def _calibration(axes, runs):
    dress(axes, "a tenth of the test rows a point", "mean prediction, %", "clicks, %")
    most = 0
    for kind, run in runs.items():
        points = [(100 * predicted, 100 * observed) for _, predicted, observed in run["bins"]]
        axes.plot(*zip(*points), **_line(kind))
        most = max(most, *map(max, points))
    axes.plot([0, most], [0, most], color="#5f6672", linestyle="--", linewidth=1.2, zorder=1)
    axes.annotate(
        "as predicted",
        (0.62 * most, 0.62 * most),
        (-14, 14),
        textcoords="offset points",
        ha="right",
        color="#5f6672",
        fontsize=9,
    )


def _course(axes, runs):
    dress(axes, "AUC while it learns", "thousand rows trained on", "AUC of a part of the test rows")
    for kind, run in runs.items():
        rows, auc = zip(*((point["rows"] / 1000, point["auc"]) for point in run["points"]))
        axes.plot(rows, auc, label=f"{NAMES[kind]}: {auc[-1]:.3f}", **_line(kind))
    best = next((run["points"][-1]["best"] for run in runs.values() if "best" in run["points"][-1]), None)
    if best is not None:
        name = f"the best possible: {best:.3f}"
        axes.axhline(best, color="#5f6672", linestyle="--", linewidth=1.2, label=name)
    log_axis(axes.xaxis)
