"""The towers example: its data, its measures, and the whole of it on a few rows."""

import argparse
import importlib
import math
import pathlib
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


def test_the_wide_model_has_the_weights_of_all_towers(module):
    towers, count = module("towers"), 9
    weights = towers.build(32).count_params()
    assert towers.width_for(weights) == 32
    assert towers.build(towers.width_for(count * weights)).count_params() == pytest.approx(
        count * weights, rel=0.02
    )


def test_the_data_and_the_best_possible_model(module):
    towers = module("towers")
    args = argparse.Namespace(seed=3, rows=4000)
    (x, y), (other, targets), (rmse, nll) = towers.make_data(args)
    assert x.shape == (4000, towers.INPUTS) and y.shape == (4000, 1) and targets.shape == (2000, 1)
    assert not set(map(bytes, other)) & set(map(bytes, x))
    assert towers.NOISE.min() < rmse < towers.NOISE.max() and rmse < 0.5 * y.std()
    assert nll < towers.gaussian(rmse, rmse)  # which does not know where the noise is small
    again = towers.make_data(args)
    np.testing.assert_array_equal(again[1][1], targets)


def test_the_likelihood_of_gaussian_errors(module, rng):
    errors = rng.normal(size=1000)
    rmse = math.sqrt(np.mean(errors**2))
    expected = -np.mean(np.log(np.exp(-(errors**2) / 8) / math.sqrt(8 * math.pi)))
    assert module("towers").gaussian(rmse, 2.0) == pytest.approx(expected)


def test_towers_on_a_few_rows(module, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", "--quick"])
    module("towers").main()
    said = capsys.readouterr().out
    for part in ("on CPU:0, CPU:1", "2 towers, gated ", "the best possible", "What the table shows"):
        assert part in said, said
    assert "nan" not in said
