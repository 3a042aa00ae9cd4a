"""The picture of `LoadBalance`: whole bars, whole epochs, one scale for all tables, the legend outside."""

import numpy as np
from _pictures import check_legible, tick_labels

from keras_largeout.callbacks._load_plot import plot_loads
from keras_largeout.distribute.balance.measured_load import MeasuredLoad


def measured(name, share, replicated=0, steps=10, servers=False):
    """What devices did for a table, given the rows that each one owned and the replicated rows of each."""
    devices = len(share)
    asked = np.zeros((1 if servers else devices, 1, devices + 1), np.int64)
    asked[0, 0, 1:], asked[:, 0, 0] = share, replicated
    work = np.asarray(share) + replicated
    between = np.ones((1 if servers else devices, devices), np.int64)
    return MeasuredLoad(name, steps, ("rows",), asked, work, int(work.max()), between)


def draw(figures, *loads, epochs=1):
    plot_loads("load.png", {x.name: x for x in loads}, {x.name: [x.imbalance] * epochs for x in loads})
    if len(loads) < 12:  # laying out more takes seconds
        check_legible(figures[-1])
    axes = figures[-1].axes
    return axes[::2], axes[1::2]


def test_bars_epochs_and_labels(figures):
    even = measured("even", [60_000] * 8)
    uneven = measured("features/with_a_rather_long_name_of_a_table", range(100, 500, 50), 30)
    bars, lines = draw(figures, even, uneven, epochs=5)
    for axes, load in zip(bars, (even, uneven)):
        assert axes.get_ylabel() == "rows per step" and axes.get_xlabel() == "device"
        assert axes.get_title(loc="left") == load.name
        assert [bar.get_height() for bar in axes.patches[:8]] == list(load.owned / load.steps)
    for axes in lines:
        assert axes.get_ylabel() == "max/mean of each step" and axes.get_xlabel() == "epoch"
        assert all(label.isdigit() and 1 <= int(label) <= 5 for label in tick_labels(axes.xaxis))
    assert lines[0].get_ylim() == lines[1].get_ylim() and lines[0].get_ylim()[0] < 1  # one scale
    (legend,) = figures[0].legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert {"own rows", "replicated rows", "mean of the devices", "an even load"} == set(labels)


def test_nothing_counted_servers_and_many_tables(figures):
    bars, _ = draw(figures, measured("none", [0, 0], steps=0))
    assert bars[0].get_ylim() == (0, 1)
    bars, lines = draw(figures, measured("remote", [3, 5, 4], servers=True))
    assert bars[0].get_xlabel() == "server" and lines[0].get_ylabel() == "max/mean"
    bars, _ = draw(figures, *(measured(f"t{i}", [100, 100 + i]) for i in range(30)))
    assert [axes.get_title(loc="left") for axes in bars] == [f"t{i}" for i in range(18, 30)]


def test_the_text_has_units_that_fit():
    assert str(measured("t", [10, 30])).endswith("rows per step 1, 3, 0.4 B between devices")
