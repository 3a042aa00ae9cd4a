"""A picture of collaborative filtering: what the models have reached after which epoch."""

import pathlib

from _filtering.measures import RECALL
from _filtering.models import NAMES

from _plots.axes import dress, legend, new_figure, save

_STYLES = {
    "factorisation": {"color": "#0072B2", "marker": "o"},
    "neural": {"color": "#D55E00", "marker": "s"},
}


def course(folder, scores, popular):
    """Draw `collaborative_filtering.png`: validation by epoch of both models, beside the most popular items.

    Args:
        folder: where to.
        scores: dict from kinds of models to lists of dicts, what was measured after each epoch.
        popular: dict, what the most popular items have.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    figure, (axes,) = new_figure(1, "Collaborative filtering: three ways to recommend")
    dress(
        axes,
        "held-out items of the validation, among all that a user does not have yet",
        "epochs of training",
        f"{RECALL}, %",
    )
    for kind, style in _STYLES.items():
        values = [100 * score[RECALL] for score in scores[kind]]
        style = style | {"markersize": 6, "linewidth": 1.8, "markeredgecolor": "white"}
        axes.plot(range(1, len(values) + 1), values, label=f"{NAMES[kind]}: {values[-1]:.1f}%", **style)
    line, value = {"color": "#5f6672", "linestyle": "--", "linewidth": 1.6}, 100 * popular[RECALL]
    axes.axhline(value, label=f"most popular items: {value:.1f}%", zorder=1, **line)
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    legend(figure, axes, 3)
    save(figure, folder / "collaborative_filtering.png")
