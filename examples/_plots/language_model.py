"""Pictures of the language model: how it learns, and what its speed depends on."""

import json
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf
from matplotlib import ticker

from _plots.axes import dress, label_points, legend, log_axis, new_figure, save, time_unit

_STYLES = {
    "tree": {"color": "#0072B2", "marker": "o"},
    "huffman": {"color": "#D55E00", "marker": "s"},
    "full": {"color": "#009E73", "marker": "D"},
    "sampled": {"color": "#CC79A7", "marker": "v"},
    "dense": {"color": "#5f6672", "marker": "^"},
}
_NAMES = {
    "tree": "tree",
    "huffman": "Huffman tree",
    "full": "FullSoftmax",
    "sampled": "SampledSoftmax",
    "dense": "Dense + softmax",
}
#: A step of the dense head needs about three arrays of logits.
_MOST_LOGITS = 1.6e9


def training(folder, head, history):
    """Draw `training.png`: perplexity by time and by epoch; heads drawn here before are in it too."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"training-{head}.json").write_text(json.dumps(history))
    runs = {
        p.stem.removeprefix("training-"): json.loads(p.read_text()) for p in folder.glob("training-*.json")
    }
    figure, (by_time, by_epoch) = new_figure(2, "Perplexity of the language model in training")
    unit, size = time_unit(max(run["seconds"][-1] for run in runs.values()))
    dress(by_time, "by time: thin lines are training batches", f"{unit} of training", "perplexity")
    dress(by_epoch, "by epoch: validation only", "epoch", "validation perplexity")
    for name, run in sorted(runs.items()):
        seconds, loss = np.array(run["curve"] or [(np.nan, np.nan)]).T
        by_time.plot(seconds / size, np.exp(loss), color=_STYLES[name]["color"], alpha=0.35, linewidth=1)
        times, validation = np.array(run["seconds"]) / size, run["val_perplexity"]
        label = f"{_NAMES[name]}: validation {validation[-1]:,.1f} after {times[-1]:.1f} {unit}"
        # Above all curves: the last point of one run is often where another run goes by.
        style = _STYLES[name] | {"markersize": 7, "linewidth": 2, "markeredgecolor": "white"}
        style |= {"zorder": 3, "clip_on": False}
        for axes, x in ((by_time, times), (by_epoch, range(1, len(validation) + 1))):
            axes.plot(x, validation, label=label, **style)
    by_time.set_xlim(left=0)
    by_epoch.set_xlim(0.5, max(len(run["val_perplexity"]) for run in runs.values()) + 0.5)
    by_epoch.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, min_n_ticks=1))
    for axes in (by_time, by_epoch):
        log_axis(axes.yaxis)
    legend(figure, by_epoch, 2)
    save(figure, folder / "training.png")


def speed(folder, make_model, sizes, batch, steps):
    """Draw `speed.png`: words per second in training against the size of the vocabulary, on made-up text.

    Args:
        folder: where to.
        make_model: function from ("tree" or "dense", word counts) to a compiled model.
        sizes: of the vocabulary.
        batch, steps: shape of a batch.
    """
    reached = {}
    for head in ("tree", "dense"):
        fits = [size for size in sizes if head == "tree" or 4 * batch * steps * size < _MOST_LOGITS]
        reached[head] = {size: _speed(make_model, head, size, (batch, steps)) for size in fits}
        shown = ", ".join(f"{v:,.0f} words/s at {size:,}" for size, v in reached[head].items())
        print(f"   {_NAMES[head]}: {shown}")
    figure, (axes,) = new_figure(1, "Speed of training by size of the vocabulary")
    note = f"batches of {batch} windows of {steps} words"
    if len(reached["dense"]) < len(sizes):
        note += "\n(Dense: up to the size whose logits fit in memory)"
    dress(axes, note, "words in the vocabulary", "words per second")
    for head, speeds in reached.items():
        style = _STYLES[head] | {"markersize": 8, "linewidth": 2, "markeredgecolor": "white"}
        axes.plot(speeds.keys(), speeds.values(), label=_NAMES[head], **style)
    size = max(reached["dense"])
    fast, slow = reached["tree"][size], reached["dense"][size]
    axes.vlines(size, *sorted((slow, fast)), colors="#5f6672", linestyles="dotted")
    log_axis(axes.xaxis)
    log_axis(axes.yaxis)
    axes.xaxis.set_major_locator(ticker.FixedLocator(sizes))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    legend(figure, axes, 2)
    times = f"{fast / slow:.0f}" if fast >= 10 * slow else f"{fast / slow:.1f}"
    label_points(axes, [(size, np.sqrt(slow * fast), f"{times} times as fast", "#333333")])
    save(figure, pathlib.Path(folder) / "speed.png")


def _speed(make_model, head, size, shape, seconds=2.0):
    """Return words per second, after one step to warm up."""
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
