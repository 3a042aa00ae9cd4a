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

_COLORS = {"tree": "#0b6e99", "huffman": "#c2570c", "dense": "#6b7280"}
_NAMES = {"tree": "tree", "huffman": "Huffman tree", "dense": "Dense + softmax"}
#: A step of the dense head needs about three arrays of logits.
_MOST_LOGITS = 1.6e9


def training(folder, head, history):
    """`training.png`: perplexity against time; other heads' runs, drawn here before, are in it as well."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"training-{head}.json").write_text(json.dumps(history))
    figure, axes = _figure("Perplexity while training", "minutes of training", "perplexity")
    for path in sorted(folder.glob("training-*.json")):
        run, name = json.loads(path.read_text()), path.stem.removeprefix("training-")
        seconds, loss = np.array(run["curve"] or [(np.nan, np.nan)]).T
        axes.plot(seconds / 60, np.exp(loss), color=_COLORS[name], alpha=0.35, linewidth=1)
        minutes, validation = np.array(run["seconds"]) / 60, run["val_perplexity"]
        axes.plot(minutes, validation, "o-", color=_COLORS[name], markersize=6, linewidth=2)
        _label(axes, minutes[-1], validation[-1], f"{_NAMES[name]}: {validation[-1]:.0f}", _COLORS[name])
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.margins(x=0.15)
    axes.text(
        0.99,
        0.97,
        "dots: validation, after each epoch\nthin lines: training batches",
        color="#555",
        transform=axes.transAxes,
        ha="right",
        va="top",
        fontsize=9,
    )
    _save(figure, axes, folder / "training.png")


def speed(folder, make_model, sizes, batch, steps):
    """`speed.png`: words a second in training against the size of the vocabulary, on made-up text.

    Args:
        folder: where to.
        make_model: function from ("tree" or "dense", word counts) to a compiled model.
        sizes: of the vocabulary.
        batch, steps: shape of a batch.
    """
    figure, axes = _figure("Speed of training", "words in the vocabulary", "words per second")
    for head in ("tree", "dense"):
        fits = [size for size in sizes if head == "tree" or 4 * batch * steps * size < _MOST_LOGITS]
        speeds = [_speed(make_model, head, size, (batch, steps)) for size in fits]
        print(f"   {_NAMES[head]}: " + ", ".join(f"{v:,.0f} words/s at {s:,}" for s, v in zip(fits, speeds)))
        axes.plot(fits, speeds, "o-", color=_COLORS[head], markersize=6, linewidth=2)
        _label(axes, fits[-1], speeds[-1], _NAMES[head], _COLORS[head])
    axes.set_xscale("log")
    axes.set_yscale("log")
    _save(figure, axes, pathlib.Path(folder) / "speed.png")


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


def _figure(title, x, y):
    figure, axes = plt.subplots(figsize=(7.2, 4.4), dpi=150)
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=12)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, which="major", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _label(axes, x, y, text, color):
    axes.annotate(
        text, (x, y), xytext=(10, 0), textcoords="offset points", color=color, va="center", fontweight="bold"
    )


def _save(figure, axes, path):
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda v, _: f"{v:,.0f}"))
            axis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    print(f"   {path}")
