"""A picture of the retrieval example: what has been reached after which epoch."""

import json
import pathlib

from _plots.axes import dress, legend, new_figure, save

RECALL = "Recall@20"
_NAMES = {"ours": "ShardedEmbedding, LazyAdam", "keras": "keras.layers.Embedding, Adam"}
_STYLES = {"ours": {"color": "#0072B2", "marker": "o"}, "keras": {"color": "#D55E00", "marker": "s"}}


def course(folder, kind, scores):
    """Draw `two_tower.png`: validation by epoch; layers drawn here before are in it too.

    Args:
        folder: where to.
        kind: "ours" or "keras".
        scores: list of dicts, what was measured after each epoch.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"two_tower-{kind}.json").write_text(json.dumps(scores))
    runs = {kind: folder / f"two_tower-{kind}.json" for kind in _NAMES}
    runs = {kind: json.loads(path.read_text()) for kind, path in runs.items() if path.exists()}
    figure, (axes,) = new_figure(1, "Two towers, trained by TensorFlow Recommenders")
    title = "one item of each validation user, among all that the user does not have yet"
    dress(axes, title, "epochs of training", f"{RECALL}, %")
    for kind, scores in runs.items():
        style = _STYLES[kind] | {"markersize": 6, "linewidth": 1.8, "markeredgecolor": "white"}
        values = [100 * score[RECALL] for score in scores]
        axes.plot(range(1, len(values) + 1), values, label=f"{_NAMES[kind]}: {values[-1]:.1f}%", **style)
    axes.xaxis.get_major_locator().set_params(integer=True)
    legend(figure, axes, 2)
    save(figure, folder / "two_tower.png")
