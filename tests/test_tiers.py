"""Which tests run: the tier of a folder, what is drawn from a grid, what a unit test must not do."""

import itertools
import multiprocessing
import os
import subprocess
import sys
import types

import pytest
import tensorflow as tf
from _tiers import CPU_SECONDS, DRAWN, ENOUGH, CpuLimit, _whole_or_drawn, drawn, tier_of

GRID = [dict(zip("abc", values)) for values in itertools.product(range(5), "xy", [None, True, False])]


def test_a_folder_has_the_tier_of_its_nearest_ancestor():
    assert tier_of("") == tier_of("layers/heads") == tier_of("planning") == "unit"
    assert tier_of("distribute") == tier_of("tables/storage") == tier_of("fuzz") == "full"


def test_each_value_of_each_axis_is_drawn():
    for seed in map(str, range(20)):
        positions = drawn(GRID, 3, seed)
        assert positions == sorted(set(positions)) and 5 <= len(positions) < len(GRID) / 2
        for axis in "abc":
            values = {position: GRID[position][axis] for position in positions}
            assert set(values.values()) == {case[axis] for case in GRID}


def test_a_seed_draws_the_same_cases_and_another_seed_others():
    assert drawn(GRID, 3, "one") == drawn(GRID, 3, "one")
    assert len({tuple(drawn(GRID, 3, str(seed))) for seed in range(20)}) > 10


def test_more_cases_lists_and_all():
    assert len(drawn(GRID, 12, "one")) == 12
    assert drawn(GRID, "all", "one") == drawn(GRID, 99, "one") == list(range(len(GRID)))
    hand_picked = [{"a": i, "b": object()} for i in range(9)]
    assert drawn(hand_picked, 3, "one") == list(range(9))


def test_the_rest_is_what_is_not_drawn():
    class Item:
        def __init__(self, name, **params):
            self.nodeid, self.callspec = f"{name}{params}", types.SimpleNamespace(params=params)

        def get_closest_marker(self, name):
            return name == "every_case" and self.nodeid.startswith("whole")

    items = [Item(name, **case) for name in ("test[", "whole[") for case in GRID] + [Item("alone")]
    drawn, rest = [list(_whole_or_drawn(items, count)) for count in (DRAWN, "rest")]
    assert set(drawn).isdisjoint(rest) and set(drawn + rest) == set(items)
    assert rest and all(item.nodeid.startswith("test[") for item in rest)


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run(["true"]),
        lambda: os.system("true"),
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        lambda: multiprocessing.get_context("forkserver").Process(target=print).start(),
    ],
    ids=["subprocess", "system", "posix_spawn", "multiprocessing"],
)
def test_a_unit_test_starts_no_process(start):
    with pytest.raises(RuntimeError, match="a unit test must not start a process"):
        start()


def _run(limit, seconds):
    """Return the status of a run of tests that take `seconds`, each a number."""
    for number, used in enumerate(seconds):
        properties = [(CPU_SECONDS, used)]
        report = types.SimpleNamespace(when="teardown", nodeid=f"test_{number}", user_properties=properties)
        limit.pytest_runtest_logreport(report)
    session = types.SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    limit.pytest_sessionfinish(session)
    return session.exitstatus


@pytest.mark.parametrize("slowness", [1, 50])
def test_a_test_that_takes_far_longer_than_the_others_fails_the_run(slowness):
    limit = CpuLimit(30)
    assert _run(limit, [slowness * used for used in [0.1] * ENOUGH + [2.9]]) == pytest.ExitCode.OK
    assert _run(limit, [slowness * used for used in [0.1] * ENOUGH + [5.0]]) == pytest.ExitCode.TESTS_FAILED
    assert [line.split()[0] for line in limit.slow()] == [f"test_{ENOUGH}"]


def test_a_few_tests_are_not_compared():
    assert _run(CpuLimit(30), [0.01] * (ENOUGH - 2) + [5.0]) == pytest.ExitCode.OK


def test_products_are_exact_without_the_option_defaults(pytestconfig):
    assert tf.config.experimental.tensor_float_32_execution_enabled() == pytestconfig.option.defaults


@pytest.mark.full
def test_the_option_defaults_leaves_those_of_tensorflow(pytestconfig):
    test = f"{__file__}::{test_products_are_exact_without_the_option_defaults.__name__}"
    command = [sys.executable, "-m", "pytest", "--defaults", test]
    subprocess.run(command, cwd=pytestconfig.rootpath, check=True, timeout=300)
