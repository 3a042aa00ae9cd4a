"""The picture of a plan: a title, units that fit, the limits in the legend, the others split."""

import re

import pytest
from _pictures import check_legible, tick_labels

from keras_largeout.distribute import Device, Plan, TableSpec, plan
from keras_largeout.distribute.planning.plan_stats import SECONDS, number_text, size_text


def tables(count=20, long=False):
    name = "a_feature_with_a_name_that_is_rather_long_{}_hashed" if long else "t{}"
    wide = TableSpec("wide", 64, 2048)
    return [TableSpec(name.format(i), 50_000 * (1 + i % 3), 8) for i in range(count)] + [wide]


def entries(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def units(figure):
    return [axes.get_xlabel().split()[0] for axes in figure.axes]


@pytest.mark.parametrize("devices, long", [(1, False), (4, True), (64, False)])
def test_it_is_legible(figures, devices, long):
    names = [f"host-{i // 8}.cluster.example:gpu:{i % 8}" if long else f"device {i}" for i in range(devices)]
    result = plan(tables(long=long), [Device(name, memory=80_000_000) for name in names])
    result.plot("plan.png")
    check_legible(figures[0])
    assert figures[0].get_suptitle() == str(result).split("\n")[0]
    assert max(figures[0].get_size_inches() * figures[0].dpi) < 4000


def test_others_are_split_by_their_placement(figures):
    result = plan([*tables(), *(TableSpec(f"small {i}", 10, 4) for i in range(3))], 4)
    result.plot("plan.png")
    others = [re.fullmatch(r"(\d+) others, (.+)", label) for label in entries(figures[0])]
    others = {match[2]: int(match[1]) for match in others if match}
    assert others["replicated"] >= 2 and len(others) >= 2
    named = [label for label in entries(figures[0]) if label in result.placements]
    assert len(named) + sum(others.values()) == len(result.tables) and len(named) >= 7
    colors = [
        bar.get_facecolor() + (bar.get_hatch(),) for bar in figures[0].axes[0].patches[:: len(result.devices)]
    ]
    assert len(set(colors)) == len(colors) == len(named) + len(others)


def test_units_fit_what_is_drawn(figures):
    for rows, unit in ((1000, "kB"), (1_000_000, "MB"), (100_000_000, "GB")):
        result = plan([TableSpec("one", rows, 16)], 2, small=0)
        result.plot("plan.png")
        memory, _ = units(figures[-1])
        assert memory == unit
        for axes in figures[-1].axes:
            assert 0.5 < axes.get_xlim()[1] < 1100
            assert not any("e" in label or len(label) > 5 for label in tick_labels(axes.xaxis))
        assert units(figures[-1])[1] in SECONDS
        assert f" {unit}" in str(result) and re.search(r"\d (ns|µs|ms)\n", str(result)), "as in the text"


@pytest.mark.parametrize("limit, drawn", [(20e6, True), (80e9, False)])
def test_the_limit_is_in_the_legend(figures, limit, drawn):
    plan(tables(), 4, memory_per_device=limit).plot("plan.png")
    memory = figures[0].axes[0]
    label = f"memory limit: {size_text(limit)}" + ("" if drawn else " (off the scale)")
    assert label in entries(figures[0]) and "mean time" in entries(figures[0])
    ends = [line[0][0] for line in memory.collections[0].get_segments()]
    assert ends == [limit / 1e6] * 4 * drawn and memory.get_xlim()[1] < 22
    check_legible(figures[0])


def test_names_that_look_alike_or_mean_something_to_matplotlib(figures):
    alike = [f"the_first_half_of_a_name_{i}_and_then_the_second_half_of_it" for i in range(3)]
    odd = ["_private", "in $ and in $"]
    plan([TableSpec(name, 50_000, 8) for name in alike + odd], 2).plot("plan.png")
    assert {*alike, " _private", r"in \$ and in \$"} < set(entries(figures[0]))
    check_legible(figures[0])


def test_limits_that_differ(figures):
    devices = [Device("a", memory=9_000_000), Device("b"), Device("c", memory=30_000_000)]
    plan(tables(), devices).plot("plan.png")
    assert "memory limit: 9 MB to 30 MB" in entries(figures[0])
    segments = figures[0].axes[0].collections[0].get_segments()
    assert [(line[0][0], line.mean(axis=0)[1]) for line in segments] == [(9, 0), (30, 2)]


def test_time_that_is_not_known(figures, tmp_path):
    path = tmp_path / "plan.json"
    plan(tables(), 4).save(path)
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
