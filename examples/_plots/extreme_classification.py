"""A picture of the extreme classification example: what each output reaches, in which time and memory."""

import json
import pathlib

import numpy as np
from _outputs import NAMES

from _plots.axes import dress, label_points, legend, log_axis, new_figure, save, time_unit

_STYLES = {
    "sparse": {"color": "#0072B2", "marker": "o"},
    "dense": {"color": "#5f6672", "marker": "^"},
    "bottleneck": {"color": "#D55E00", "marker": "s"},
    "direct": {"color": "#8a4fa3", "marker": "D", "linestyle": "--"},
    "full": {"color": "#009E73", "marker": "P"},
    "sampled": {"color": "#B08900", "marker": "X"},
    "tree": {"color": "#56B4E9", "marker": "v"},
}


def outputs(folder, kind, results):
    """Draw `outputs.png`: P@1 by time of training and by memory; outputs drawn here before are in it too."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"outputs-{kind}.json").write_text(json.dumps(results))
    runs = {kind: folder / f"outputs-{kind}.json" for kind in NAMES}
    runs = {kind: json.loads(path.read_text()) for kind, path in runs.items() if path.exists()}
    figure, (by_time, by_memory) = new_figure(2, "Precision at 1 of the output layers, on the rows to test")
    unit, size = time_unit(max(sum(run["epochs"]) for run in runs.values()))
    dress(by_time, "after each epoch, by time", f"{unit} of training", "P@1, %")
    dress(
        by_memory, "after the last epoch, by memory", "MB of the output layer and of what trains it", "P@1, %"
    )
    points = []
    for kind, run in runs.items():
        style = _STYLES[kind] | {"markersize": 8, "linewidth": 2, "markeredgecolor": "white"}
        precision = [100 * scores["P@1"] for scores in run["history"]]
        times = np.cumsum(run["epochs"]) / size
        megabytes = (run["weights"] + run["training"]) / 2**20
        digits = 0 if megabytes >= 100 else 1
        label = f"{kind}, {NAMES[kind]}: {precision[-1]:.1f}% after {times[-1]:.1f} {unit}"
        by_time.plot(times, precision, label=label, **style)
        by_memory.plot(megabytes, precision[-1], **style)
        points.append(
            (
                megabytes,
                precision[-1],
                f"{kind}, {megabytes:,.{digits}f}\u00a0MB",
                _STYLES[kind]["color"],
            )
        )
    by_time.set_xlim(left=0)
    by_memory.set_ylim(by_time.get_ylim())
    log_axis(by_memory.xaxis)
    legend(figure, by_time, 2)
    label_points(by_memory, points)
    save(figure, folder / "outputs.png")
