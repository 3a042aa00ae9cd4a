"""A picture of the next-item example: what each head has reached after which time."""

import json
import pathlib

from _next_item.callbacks import RECALL
from _next_item.sasrec import NAMES

from _plots.axes import dress, legend, new_figure, save, time_unit

_STYLES = {
    "tree": {"color": "#0072B2", "marker": "o"},
    "huffman": {"color": "#D55E00", "marker": "s"},
    "full": {"color": "#5f6672", "marker": "^"},
    "sampled": {"color": "#009E73", "marker": "v"},
    "in_batch": {"color": "#CC79A7", "marker": "D"},
    "mixed": {"color": "#8a4fa3", "marker": "P"},
    "bpr": {"color": "#B8860B", "marker": "X"},
    "bce": {"color": "#56B4E9", "marker": "<"},
}


def course(folder, kind, points, clock="training"):
    """Draw `next_item.png`: validation by time of training; heads drawn here before are in it too.

    Args:
        folder: where to.
        kind: which head, one of `sasrec.NAMES`.
        points: list of dicts, what was measured on the way.
        clock: what the time is the time of.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"next_item-{kind}.json").write_text(json.dumps(points))
    runs = {kind: folder / f"next_item-{kind}.json" for kind in NAMES}
    runs = {kind: json.loads(path.read_text()) for kind, path in runs.items() if path.exists()}
    figure, (axes,) = new_figure(1, "What comes next? Heads by time of training")
    unit, seconds = time_unit(max(points[-1]["seconds"] for points in runs.values()))
    dress(
        axes,
        "one item of each validation user, among all that the user does not have yet",
        f"{unit} of {clock}",
        f"{RECALL}, %",
    )
    for kind, points in runs.items():
        style = _STYLES[kind] | {"markersize": 6, "linewidth": 1.8, "markeredgecolor": "white"}
        recall = [100 * point[RECALL] for point in points]
        label = f"{NAMES[kind]}: {recall[-1]:.1f}% in {points[-1]['epochs']:.1f} epochs"
        axes.plot([point["seconds"] / seconds for point in points], recall, label=label, **style)
    axes.set_xlim(left=0)
    legend(figure, axes, 2)
    save(figure, folder / "next_item.png")
