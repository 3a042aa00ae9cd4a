"""The towers example, and the language model whose layers lie over several devices."""

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


@pytest.mark.parametrize("count", [2, 4, 9])
def test_the_wide_model_has_the_weights_of_all_towers(module, count):
    towers = module("towers")
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


def test_the_words_say_who_wins(module, capsys):
    names = ("one tower", "one wide model", "2 towers, their mean", "2 towers, gated")
    scores = {name: {"rmse": 2.0 - i % 2, "nll": 1.0, "seconds": i + 1.0} for i, name in enumerate(names)}
    module("towers").print_words(scores, ["GPU:0", "GPU:1"])
    said = capsys.readouterr().out
    assert "RMSE, best first: one wide model; 2 towers, gated; one tower; 2 towers, their mean" in said
    assert "2 towers, gated: RMSE 50% below that of one tower, 0% above that of one wide model" in said
    assert "2 towers, their mean 1.5; 2 towers, gated 2.0" in said and "GPUs" not in said


def test_towers_on_a_few_rows(module, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", "--quick"])
    module("towers").main()
    said = capsys.readouterr().out
    for part in ("on CPU:0, CPU:1", "2 towers, gated ", "the best possible", "What the table shows"):
        assert part in said, said
    assert "nan" not in said


@pytest.mark.parametrize("how", ["stages", "sections"])
def test_a_language_model_over_devices_learns_as_on_one(module, rng, how):
    example = module("language_model")
    args = argparse.Namespace(
        head="tree", batch=8, steps=5, dim=6, units=7, learning_rate=1e-2, seed=0, parallel=how, devices=2
    )
    words = rng.integers(2, 60, (3, args.batch, args.steps + 1)).astype("int32")
    words[:, 2:4, 4:] = 0  # padding
    corpus = argparse.Namespace(counts=np.arange(60, 0, -1), train=[words[0, 0], words[1, 0]])
    alone = example.build(args, example.make_head(args, corpus.counts), 60)
    spread = example.build(args, example.make_head(args, corpus.counts), 60)
    spread.set_weights(alone.get_weights())
    spread, head = example.over_devices(args, spread, spread.layers[-1], corpus)
    assert head is spread.layers[-1] and len(spread.parallel_plan.devices) == 2
    for batch in words:
        x, y = np.where(batch[:, 1:] == 0, 0, batch[:, :-1]), batch[:, 1:]
        expected, found = (model.train_on_batch(x, y) for model in (alone, spread))
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_parallel_needs(module, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", "--parallel", "stages"])
    with pytest.raises(SystemExit):
        module("language_model").arguments()
    assert "--parallel stages goes with --devices 2, or more" in capsys.readouterr().err
