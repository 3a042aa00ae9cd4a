"""The pictures of the examples: each is drawn and legible, with several runs in it."""

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


def language_model(module, folder):
    plots = module("_plots.language_model")
    for last, head, epochs in ((195, "dense", 4), (203, "huffman", 14)):
        seconds = 2400 / 14 * np.arange(1, epochs + 1)
        curve = [(float(s), float(np.log(last) + 3 * np.exp(-s / 270))) for s in range(1, 2400, 5)]
        values = (last * (1 + 1 / np.arange(1, epochs + 1))).tolist()
        history = {"curve": curve, "seconds": seconds.tolist(), "val_perplexity": values}
        plots.training(folder, head, history)
    plots.training(folder, "tree", {"curve": [], "seconds": [3.0], "val_perplexity": [812.0]})


def extreme_classification(module, folder):
    for i, kind in enumerate(module("_outputs").NAMES):
        scores = [{"P@1": p} for p in (0.25, 0.35, 0.40 + 0.005 * i)]
        memory = 30 * 2**20 * 1.02**i
        run = {"history": scores, "epochs": [50.0, 51.0, 49.0], "weights": memory, "training": memory}
        module("_plots.extreme_classification").outputs(folder, kind, run)


def next_item(module, folder):
    for i, kind in enumerate(module("_next_item.sasrec").NAMES):
        times = np.linspace(24, 240, 3 + i).tolist()
        points = [{"seconds": s, "epochs": s / 9, "Recall@10": 0.3 * s / (s + i + 9)} for s in times]
        module("_plots.next_item").course(folder, kind, points)


def ranking(module, folder):
    bins = [(10, p, p + 0.02) for p in np.linspace(0.02, 0.7, 10)]
    points = [{"rows": 50_000 * 2**i, "auc": 0.7 + i / 90, "best": 0.8} for i in range(7)]
    for kind in ("dlrm", "dcn"):
        module("_plots.ranking").ranking(folder, kind, {"bins": bins, "points": points})


def two_tower(module, folder):
    plots = module("_plots.two_tower")
    for kind in ("ours", "keras"):
        plots.course(folder, kind, [{plots.RECALL: 0.2 * (1 - 0.6**epoch)} for epoch in range(1, 10)])


def collaborative_filtering(module, folder):
    recall = module("_filtering.measures").RECALL
    course = [{recall: 0.5 * (1 - 0.8**epoch)} for epoch in range(1, 21)]
    scores = {"neural": course, "factorisation": course[::-1]}
    module("_plots.collaborative_filtering").course(folder, scores, {recall: 0.3})


# The example, and how many lines with points or names its last picture has.
PICTURES = {
    language_model: 3,
    extreme_classification: 7,
    next_item: 8,
    ranking: 2,
    two_tower: 2,
    collaborative_filtering: 2,
}


@pytest.mark.parametrize("draw", PICTURES, ids=lambda draw: draw.__name__)
def test_it_is_legible(module, figures, tmp_path, draw):
    draw(module, tmp_path)
    figure = figures[-1]
    check_legible(figure)
    for axes in figure.axes:
        markers = [line.get_marker() for line in axes.lines if line.get_marker() not in ("None", "", None)]
        assert len(markers) == len(set(markers)) == PICTURES[draw]  # not by colour alone
        assert axes.get_xlabel() and axes.get_ylabel()
        assert all(tick_labels(axis) for axis in (axes.xaxis, axes.yaxis))
        boxes = [text.get_window_extent() for text in axes.texts]
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_speed(module, figures, tmp_path, monkeypatch):
    plots, sizes = module("_plots.language_model"), (10_000, 30_000, 100_000, 300_000)
    reached = {"tree": lambda size: 30_000 - size / 50, "dense": lambda size: 2e8 / (7000 + size)}
    monkeypatch.setattr(plots, "_speed", lambda make, head, size, shape: reached[head](size))
    plots.speed(tmp_path, None, sizes, 64, 50)
    check_legible(figures[0])
    (axes,) = figures[0].axes
    assert tick_labels(axes.xaxis) == [f"{size:,}" for size in sizes] and len(tick_labels(axes.yaxis)) >= 3
    assert "fit in memory" in axes.get_title(loc="left")
