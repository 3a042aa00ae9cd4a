"""Pictures of the language model: how it learns, and what its speed depends on."""

import json
import pathlib
import time

import keras
import matplotlib
import numpy as np
import tensorflow as tf

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib import ticker

_COLORS = {"tree": "#0b6e99", "huffman": "#c2570c", "dense": "#6b7280"}
_NAMES = {"tree": "tree", "huffman": "Huffman tree", "dense": "Dense + softmax"}
_NOTE = {"color": "#555", "ha": "right", "va": "top", "fontsize": 9}
#: A step of the dense head needs about three arrays of logits.
_MOST_LOGITS = 1.6e9


def training(folder, head, history):
    """`training.png`: perplexity by time and by epoch; heads drawn here before are in it too."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"training-{head}.json").write_text(json.dumps(history))
    figure, (by_time, by_epoch) = plt.subplots(1, 2, figsize=(9.6, 4.4), dpi=150, sharey=True)
    _dress(by_time, "Perplexity by time", "minutes of training", "perplexity")
    _dress(by_epoch, "and by epoch", "epochs")
    for path in sorted(folder.glob("training-*.json")):
        run, name = json.loads(path.read_text()), path.stem.removeprefix("training-")
        seconds, loss = np.array(run["curve"] or [(np.nan, np.nan)]).T
        by_time.plot(seconds / 60, np.exp(loss), color=_COLORS[name], alpha=0.35, linewidth=1)
        minutes, validation = np.array(run["seconds"]) / 60, run["val_perplexity"]
        epochs = np.arange(1, len(validation) + 1)
        for axes, x in ((by_time, minutes), (by_epoch, epochs)):
            label = f"{_NAMES[name]}: {validation[-1]:.1f} after {minutes[-1]:.1f} minutes"
            axes.plot(x, validation, "o-", color=_COLORS[name], markersize=6, linewidth=2, label=label)
    by_time.set_yscale("log")
    by_time.set_xlim(left=0)
    by_epoch.set_xlim(0.5, round(by_epoch.dataLim.x1) + 0.5)
    by_epoch.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, min_n_ticks=1))
    by_time.legend(frameon=False, labelcolor="linecolor", handlelength=0, loc="upper right")
    by_epoch.text(
        0.98,
        0.97,
        "dots: validation, after each epoch\nthin lines: training batches",
        transform=by_epoch.transAxes,
        **_NOTE,
    )
    _save(figure, folder / "training.png")


def speed(folder, make_model, sizes, batch, steps):
    """`speed.png`: words per second in training against the size of the vocabulary, on made-up text.

    Args:
        folder: where to.
        make_model: function from ("tree" or "dense", word counts) to a compiled model.
        sizes: of the vocabulary.
        batch, steps: shape of a batch.
    """
    figure, axes = plt.subplots(figsize=(7.2, 4.4), dpi=150)
    _dress(axes, "Speed of training", "words in the vocabulary", "words per second")
    reached = {}
    for head in ("tree", "dense"):
        fits = [size for size in sizes if head == "tree" or 4 * batch * steps * size < _MOST_LOGITS]
        speeds = [_speed(make_model, head, size, (batch, steps)) for size in fits]
        print(f"   {_NAMES[head]}: " + ", ".join(f"{v:,.0f} words/s at {s:,}" for s, v in zip(fits, speeds)))
        axes.plot(fits, speeds, "o-", color=_COLORS[head], markersize=6, linewidth=2)
        _label(axes, fits[-1], speeds[-1], _NAMES[head], _COLORS[head])
        reached[head] = dict(zip(fits, speeds))
    size = max(reached["dense"])
    fast, slow = reached["tree"][size], reached["dense"][size]
    axes.vlines(size, slow, fast, colors="#9ca3af", linestyles="dotted")
    times = f"{fast / slow:.0f} times" if fast >= 2 * slow else f"{fast / slow:.1f} times"
    axes.annotate(times, (size, np.sqrt(slow * fast)), (6, 0), textcoords="offset points", color="#555")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes)
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    _save(figure, pathlib.Path(folder) / "speed.png")


def _speed(make_model, head, size, shape, seconds=2.0):
    """Words a second, after one step to warm up."""
    keras.backend.clear_session()
    counts = 1.0 / np.arange(1, size + 1)
    model = make_model(head, counts)
    rng = np.random.default_rng(0)
    ends = np.cumsum(counts) / counts.sum()
    ids = [np.minimum(np.searchsorted(ends, rng.random((*shape, 2))), size - 1) for _ in range(8)]
    batches = [tf.constant(np.maximum(i, 1), tf.int32) for i in ids]  # 0 is padding
    model.train_on_batch(batches[0][..., 0], batches[0][..., 1])
    done, start = 0, time.perf_counter()
    while not done or time.perf_counter() - start < seconds:
        done += 1
        model.train_on_batch(batches[done % 8][..., 0], batches[done % 8][..., 1])
    return done * shape[0] * shape[1] / (time.perf_counter() - start)


def _dress(axes, title, x, y=""):
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=12)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, which="major", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _label(axes, x, y, text, color):
    style = {"color": color, "va": "center", "fontweight": "bold", "annotation_clip": False}
    axes.annotate(text, (x, y), (10, 0), textcoords="offset points", **style)


def _save(figure, path):
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if axis.get_scale() == "log":
            if axis.axis_name == "y":
                axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
            axis.set_minor_formatter(ticker.NullFormatter())
    figure.tight_layout()
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
    print(f"   {path}")
