"""The benchmark of balance, scaled down: its goals are reached, and it counts what the arithmetic says."""

import keras
import pytest
import tensorflow as tf

from benchmarks import balance
from benchmarks.peers import ours_balance

pytestmark = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="the benchmark is for logical CPUs"
)


def lines_of(what, placement, devices, **config):
    """What one process of the benchmark reports; here it is this one. (Its own checks are inside.)"""
    keras.utils.set_random_seed(0)
    config = {**balance.QUICK, "devices": devices, "what": what, "placement": placement, **config}
    return ours_balance.counted(config, {}).notes["lines"]


@pytest.fixture(scope="module")
def output():
    """8 devices, 100 classes of 100 words each. (`soak`: a minute of tracing.)"""
    return [
        line
        for placement in (balance.CONTIGUOUS, balance.PLANNED)
        for line in lines_of(balance.TREE, placement, 8, classes=100, steps=3)
    ]


@pytest.mark.soak
def test_goals_are_reached(output):
    goals = balance.reaches(output)
    assert len(goals) == 1 + len(balance.REACHES)
    assert all(reached for *_, reached in goals), goals


@pytest.mark.soak
def test_all_of_a_batch_on_one_device(output):
    found = {(line["problem"], line["placement"]): line for line in output}
    same, other = found[balance.SAME, balance.CONTIGUOUS], found[balance.OTHER, balance.CONTIGUOUS]
    # All classes below the root are on one device: it does its eighth of the root, and all of them.
    assert same["imbalance"] == other["imbalance"] == 4.5
    assert same["work"] == [512 + 8 * 512, *[512.0] * 7]
    assert found[balance.SAME, balance.PLANNED]["imbalance"] < 1.25


def test_embedding():
    lines = lines_of(balance.TABLE, balance.CONTIGUOUS, 2, rows=2000, ids=256)
    found = {(line["problem"], line["placement"]): line for line in lines}
    assert found[balance.OTHER, balance.CONTIGUOUS]["imbalance"] == 2.0
    for problem in (balance.SAME, balance.OTHER):
        assert found[problem, balance.REBALANCED]["imbalance"] < 1.1
    lines += lines_of(balance.TABLE, balance.PLANNED, 2, ids=256)
    assert all(line["bytes"] <= balance.BYTES_OVER_BOUND * line["bound"] for line in lines)


def test_a_case_that_fails(monkeypatch):
    failed = [{"what": "output", "placement": "planned", "error": "no memory"}]
    monkeypatch.setattr(balance, "measure", lambda *_: failed)
    assert balance.main(["--quick"]) == 1
