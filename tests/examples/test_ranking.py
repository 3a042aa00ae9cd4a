"""The ranking example: its measures, its models, a training."""

import importlib
import pathlib

import numpy as np
import pytest

import keras_largeout as kl

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return lambda name, folder="_ranking": importlib.import_module(f"{folder}.{name}")


@pytest.fixture
def small(module):
    """A made log of three features, the last one of bags."""
    feature = module("models").Feature
    return module("click_logs").ClickLogs([feature("a", 10), feature("b", 1000), feature("c", 50, 3)], seed=1)


def test_auc_and_log_loss_by_hand(module):
    measures = module("measures")
    # Pairs of a 1 and a 0: (0.8, 0.3), (0.8, 0.5) are right, (0.5, 0.3) is right, (0.5, 0.5) is a tie.
    assert measures.auc([0, 1, 0, 1], [0.3, 0.8, 0.5, 0.5]) == pytest.approx(3.5 / 4)
    assert measures.auc([1, 0], [0, 1]) == 0 and measures.auc([1, 0, 0], [2, 2, 2]) == 0.5
    loss = measures.log_loss([1, 0, 1], [0.5, 0.75, 0.25])
    assert loss == pytest.approx((np.log(2) + 2 * np.log(4)) / 3)
    assert np.isfinite(measures.log_loss([1, 0], [0, 1]))
    # The mean is 1/4: its log loss is (3 log(4/3) + log 4) / 4.
    labels, base = [1, 0, 0, 0], (3 * np.log(4 / 3) + np.log(4)) / 4
    assert measures.normalised_entropy(labels, [0.25] * 4) == pytest.approx(1)
    assert measures.normalised_entropy(labels, [0.5] * 4) == pytest.approx(np.log(2) / base)
    assert measures.normalised_entropy(labels, [1, 0, 0, 0]) < 1e-6


def test_calibration_by_hand(module):
    measures = module("measures")
    probabilities, labels = [0.9, 0.1, 0.5, 0.3, 0.2], [1, 0, 0, 1, 0]
    everything, bins = measures.calibration(labels, probabilities, bins=2)
    assert everything == (5, pytest.approx(0.4), pytest.approx(0.4)) and everything.ratio == pytest.approx(1)
    assert bins[0] == (3, pytest.approx(0.2), pytest.approx(1 / 3))  # 0.1, 0.2, 0.3
    assert bins[1] == (2, pytest.approx(0.7), 0.5) and bins[1].ratio == pytest.approx(1.4)
    assert np.isnan(measures.calibration([0, 0], [0.1, 0.2], 1)[0].ratio)


def test_the_layers_by_hand(module, rng):
    models = module("models")
    first, x = rng.normal(size=(2, 3, 5)).astype("float32")
    cross = models.LowRankCross(2)
    found = cross([first, x])
    down, up, bias = (np.asarray(w) for w in (cross.down.kernel, cross.up.kernel, cross.up.bias))
    np.testing.assert_allclose(found, first * (x @ down @ up + bias) + x, rtol=1e-5, atol=1e-5)
    a, b, c = rng.normal(size=(3, 4, 6)).astype("float32")
    want = np.stack([(a * b).sum(-1), (a * c).sum(-1), (b * c).sum(-1)], -1)
    np.testing.assert_allclose(models.PairwiseDots()([a, b, c]), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["dcn", "dlrm"])
def test_a_model_learns_and_is_measured_on_the_way(module, small, kind):
    course, models, use = module("course"), module("models"), kl.callbacks.FeatureReport()
    model = models.build(kind, small.features, 13, dim=4, learning_rate=0.05)
    tables = model.get_layer("tables")
    assert len(tables.table_optimizers()) == 3 and len(tables.fused_tables) == 1
    sample = small.dataset(2000, 1000, "test", truth=True)
    measured = course.Course(course.Predictions(model), sample, 256, 15_000, first=4000)
    model.fit(small.dataset(15_000, 256), callbacks=[measured, use], shuffle=False, verbose=0)
    assert [point["rows"] for point in measured.points] == [4096, 8192, 15_000]
    assert measured.rows == 15_000 == use.features["a"].ids  # each row once
    first, *_, last = measured.points
    assert 0.6 < last["auc"] < last["best"] < 0.95 and last["log_loss"] < first["log_loss"]
    assert measured.speed[0] > 0
