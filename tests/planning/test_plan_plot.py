"""The picture of a plan: a title, units that fit, the limits in the legend, the others split."""

import re

import pytest
from _pictures import check_legible, tick_labels

from keras_largeout.distribute import Device, Plan, TableSpec, plan
from keras_largeout.planning.plan_stats import SECONDS, number_text, size_text


def tables(name="a_feature_with_a_name_that_is_rather_long_{}_hashed"):
    wide = TableSpec("wide", 64, 2048)
    return [TableSpec(name.format(i), 50_000 * (1 + i % 3), 8) for i in range(20)] + [wide]


def entries(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize("limit, drawn", [(30e6, True), (80e9, False)])
def test_it_is_legible(figures, limit, drawn):
    """Long names, names that mean something to Matplotlib, more tables than the legend has room for."""
    odd = ["_private", "in $ and in $", *(f"small {i}" for i in range(3))]
    names = [f"host-{i // 2}.cluster.example:gpu:{i % 2}" for i in range(4)]
    specs = [*tables(), *(TableSpec(name, 10 if "small" in name else 200_000, 8) for name in odd)]
    result = plan(specs, [Device(name, memory=int(limit)) for name in names])
    result.plot("plan.png")
    (figure,) = figures
    check_legible(figure)
    assert figure.get_suptitle() == str(result).split("\n")[0]
    label = f"memory limit: {size_text(limit)}" + ("" if drawn else " (off the scale)")
    assert {label, "mean time", " _private", r"in \$ and in \$"} <= set(entries(figure))
    memory, time = figure.axes
    ends = [line[0][0] for line in memory.collections[0].get_segments()]
    assert ends == [limit / 1e6] * 4 * drawn and memory.get_xlabel().startswith("MB")
    assert time.get_xlabel().split()[0] in SECONDS
    bars = [entry for entry in entries(figure) if entry not in (label, "mean time")]
    others = [int(match[1]) for match in (re.match(r"(\d+) others, ", entry) for entry in bars) if match]
    assert len(bars) - len(others) + sum(others) == len(result.tables) and len(others) >= 2


def test_time_that_is_not_known(figures, tmp_path):
    path = tmp_path / "plan.json"
    plan(tables("t{}"), 4).save(path)
    path.write_text(re.sub(r'("t3": \{\s*"kind": )"\w+"', r'\1"range"', path.read_text()))
    Plan.load(path).plot("plan.png")
    check_legible(figures[0])
    time = figures[0].axes[1]
    assert time.get_title().endswith("unknown") and "edited" in time.texts[0].get_text()
    assert not tick_labels(time.xaxis) and "mean time" not in entries(figures[0])


def test_numbers_as_people_read_them():
    assert [size_text(n) for n in (0, 12, 999, 999.6, 1.5e6, 2e13)] == [
        "0 B",
        "12 B",
        "999 B",
        "1 kB",
        "1.5 MB",
        "20 TB",
    ]
    assert [number_text(s, SECONDS) for s in (0, 2.5e-10, 1.25e-6, 0.0312, 75)] == [
        "0 ns",
        "0.25 ns",
        "1.25 µs",
        "31.2 ms",
        "75 s",
    ]
