"""A picture of the extreme classification example: what each output reaches, in which time and memory."""

import json
import pathlib

import matplotlib
import numpy as np
from _outputs import NAMES
from _plots import _dress, _save

matplotlib.use("Agg")
import matplotlib.pyplot as plt

_COLORS = {"sparse": "#0b6e99", "dense": "#6b7280", "bottleneck": "#c2570c", "direct": "#7c3aed"}


def outputs(folder, kind, results):
    """`outputs.png`: P@1 by time of training and by memory; outputs drawn here before are in it too."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"outputs-{kind}.json").write_text(json.dumps(results))
    figure, (by_time, by_memory) = plt.subplots(1, 2, figsize=(9.6, 4.4), dpi=150, sharey=True)
    _dress(by_time, "Precision by time", "minutes of training", "P@1, %")
    _dress(by_memory, "and by memory", "MB of output layer, with what trains it")
    for path in sorted(folder.glob("outputs-*.json")):
        run, kind = json.loads(path.read_text()), path.stem.removeprefix("outputs-")
        style = {"color": _COLORS[kind], "markersize": 6, "linewidth": 2}
        precision = [100 * scores["P@1"] for scores in run["history"]]
        minutes = np.cumsum(run["epochs"]) / 60
        megabytes = (run["weights"] + run["training"]) / 2**20
        by_time.plot(minutes, precision, "o-", label=f"{NAMES[kind]}: {precision[-1]:.1f}", **style)
        by_memory.plot(megabytes, precision[-1], "o", **style)
    by_time.set_xlim(left=0)
    by_memory.set_xscale("log")
    by_time.legend(frameon=False, labelcolor="linecolor", handlelength=0, loc="lower right")
    _save(figure, folder / "outputs.png")
