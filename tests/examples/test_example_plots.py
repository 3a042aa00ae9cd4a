"""The pictures of the examples: the last points can be seen, axes have numbers, points have names."""

import importlib
import itertools
import pathlib

import numpy as np
import pytest
from _pictures import check_legible, tick_labels

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def module(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


def history(last, epochs, seconds):
    ends = seconds * np.arange(1, epochs + 1) / epochs
    curve = [(float(s), float(np.log(last) + 3 * np.exp(-9 * s / seconds))) for s in np.arange(1, seconds, 5)]
    values = last * (1 + 1 / np.arange(1, epochs + 1))
    return {"curve": curve, "seconds": ends.tolist(), "val_perplexity": values.tolist()}


@pytest.mark.parametrize(
    "epochs, seconds, unit", [(1, 20, "seconds"), (3, 240, "minutes"), (14, 2400, "minutes")]
)
def test_training_shows_every_last_point(module, figures, tmp_path, epochs, seconds, unit):
    plots = module("_plots.language_model")
    plots.training(tmp_path, "dense", history(195, max(1, epochs // 3), seconds))
    plots.training(tmp_path, "tree", {"curve": [], "seconds": [3.0], "val_perplexity": [812.0]})
    plots.training(tmp_path, "huffman", history(203, epochs, seconds))
    for figure in figures:
        check_legible(figure)
    by_time, by_epoch = figures[-1].axes
    assert by_time.get_xlabel() == f"{unit} of training" and by_time.get_ylabel() == "perplexity"
    assert all(label.isdigit() and 1 <= int(label) <= epochs for label in tick_labels(by_epoch.xaxis))
    for axes in (by_time, by_epoch):
        assert axes.get_yscale() == "log" and len(tick_labels(axes.yaxis)) >= 3
    assert len({line.get_marker() for line in by_epoch.lines}) == 3  # not by colour alone


def test_the_training_curve_reaches_the_end_of_the_epoch(module):
    speed = module("_callbacks").Speed(tokens_per_step=10, minutes=1, stretch=4)
    for epoch in range(2):
        speed.on_epoch_begin(epoch)
        losses = [5.0, 4.0, 3.0, 2.0, 1.0, 0.5]
        for step in range(len(losses)):
            logs = {"loss": np.mean(losses[: step + 1])}
            speed.on_train_batch_end(step, logs)
        speed.on_epoch_end(epoch, logs)
    assert [loss for _, loss in speed.curve] == pytest.approx([3.5, 0.75] * 2)
    assert [speed.curve[1][0], speed.curve[3][0]] == speed.epoch_seconds


@pytest.mark.parametrize("apart", [1.02, 1.5, 10])
def test_outputs_have_names_and_their_axis_numbers(module, figures, tmp_path, apart):
    names = module("_outputs").NAMES
    for i, kind in enumerate(names):
        scores = [{"P@1": p} for p in (0.25, 0.35, 0.40 + 0.005 * i)]
        memory = 30 * 2**20 * apart**i
        run = {"history": scores, "epochs": [50.0, 51.0, 49.0], "weights": memory, "training": memory}
        module("_plots.extreme_classification").outputs(tmp_path, kind, run)
    check_legible(figures[-1])
    _, by_memory = figures[-1].axes
    assert [len(figure.axes[1].texts) for figure in figures] == list(range(1, len(names) + 1)), (
        "a name for each"
    )
    assert by_memory.get_xscale() == "log"
    labels = tick_labels(by_memory.xaxis)
    assert len(labels) >= 3 and all(labels)
    said = [text.get_text().replace("\n", " ") for text in by_memory.texts]
    assert [text.split(", ")[0] for text in said] == list(names)
    assert said[0] == "sparse, 60.0\u00a0MB"
    boxes = [text.get_window_extent() for text in by_memory.texts]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(
        by_memory.get_window_extent().padded(1).contains(*corner) for box in boxes for corner in box.corners()
    )


@pytest.mark.parametrize("sizes", [(3000, 10_000), (10_000, 30_000, 100_000, 300_000)])
def test_speed(module, figures, tmp_path, monkeypatch, capsys, sizes):
    plots = module("_plots.language_model")
    reached = {"tree": lambda size: 30_000 - size / 50, "dense": lambda size: 2e8 / (7000 + size)}
    monkeypatch.setattr(plots, "_speed", lambda make, head, size, shape: reached[head](size))
    plots.speed(tmp_path, None, sizes, 64, 50)
    check_legible(figures[0])
    (axes,) = figures[0].axes
    assert tick_labels(axes.xaxis) == [f"{size:,}" for size in sizes] and len(tick_labels(axes.yaxis)) >= 3
    assert ("fit in memory" in axes.get_title(loc="left")) == (sizes[-1] > 100_000)
    assert axes.get_xlabel() and axes.get_ylabel() == "words per second"


@pytest.mark.parametrize("low, high", [(58, 70), (9.95, 10.1), (0.4, 3), (88, 2200), (1e-3, 1e9), (1, 10)])
def test_ticks_of_a_short_and_of_a_long_logarithmic_axis(module, low, high):
    ticks = module("_plots.axes").log_ticks(low, high)
    assert 3 <= len(ticks) <= 7 and low <= ticks.min() and ticks.max() <= high
