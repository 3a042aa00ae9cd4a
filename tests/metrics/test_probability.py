"""Metrics of probabilities, against scikit-learn and float64 NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _pictures import check_legible
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss, roc_auc_score

import keras_largeout as kl
from keras_largeout import metrics

ROWS = 600


@pytest.fixture
def log(rng):
    """Labels, probabilities, weights (some 0) and users; the label rate of a user depends on the user."""
    user = rng.integers(0, 40, ROWS)
    logit = rng.normal(size=ROWS) + rng.normal(size=40)[user] - 1
    label = (rng.random(ROWS) < 1 / (1 + np.exp(-logit - 0.3))).astype("float32")
    weight = rng.uniform(0.5, 2, ROWS) * (rng.random(ROWS) < 0.8)
    return label, (1 / (1 + np.exp(-logit))).astype("float32"), weight, user


def _normalized(y, p, w):
    rate = np.average(y, weights=w)
    return log_loss(y, p, sample_weight=w) / log_loss([0, 1], [rate, rate], sample_weight=[1 - rate, rate])


def _ece(y, p, w):
    """Return the error of 10 bins, weighted by rows."""
    place = np.minimum((p.astype("float64") * 10 - 1e-12).astype(int), 9)
    errors = [
        abs(np.sum(w[place == b] * (p[place == b].astype("float64") - y[place == b]))) for b in range(10)
    ]
    return sum(errors) / w.sum()


def _gauc(y, p, w, user):
    auc, rows = [], []
    for u in np.unique(user):
        here = (user == u) & (w > 0)
        if 0 < y[here].sum() < here.sum():
            auc.append(roc_auc_score(y[here], p[here], sample_weight=w[here]))
            rows.append(w[here].sum())
    return np.average(auc, weights=rows)


FOUND = {
    metrics.LogLoss: lambda y, p, w: log_loss(y, p.astype("float64"), sample_weight=w),
    metrics.NormalizedEntropy: lambda y, p, w: _normalized(y, p.astype("float64"), w),
    metrics.Calibration: lambda y, p, w: (w * p.astype("float64")).sum() / (w * y).sum(),
    lambda **options: metrics.ExpectedCalibrationError(10, **options): _ece,
}


@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_against_scikit_learn(log, from_logits, weighted, graph):
    y, p, weight, _ = log
    given = np.log(p) - np.log1p(-p) if from_logits else p
    for make, want in FOUND.items():
        metric = make(from_logits=from_logits)
        update = tf.function(metric.update_state, reduce_retracing=True) if graph else metric.update_state
        for rows in (slice(0, 100), slice(100, 101), slice(101, None)):
            w = weight[rows] if weighted else None
            update(tf.constant(y[rows]), tf.constant(given[rows])[:, None], sample_weight=w)
        want = want(y, p, weight if weighted else np.ones(ROWS))
        assert float(metric.result()) == pytest.approx(want, rel=2e-6)
        metric.reset_state()
        assert float(metric.result()) == 0


def test_probabilities_of_0_and_1_and_soft_labels():
    metric = metrics.LogLoss()
    metric.update_state([1, 0], tf.constant([0.0, 1.0]))
    want = log_loss([1, 0], np.array([0, 1], "float32"))
    assert float(metric.result()) == pytest.approx(want, rel=1e-6) == pytest.approx(23 * np.log(2))
    logits = metrics.LogLoss(from_logits=True)
    logits.update_state([0.25, 1], [2000.0, -2000.0])
    assert float(logits.result()) == 1750
    normalized = metrics.NormalizedEntropy()
    normalized.update_state([1, 1], [0.5, 0.5])
    assert float(normalized.result()) == 0  # no entropy


@pytest.mark.parametrize("y, p", [(-1, 0.5), (2, 0.5), (0, 1.5), (1, np.nan), (np.nan, 0.5)])
def test_what_is_no_probability_shows_in_the_result(y, p):
    for make in (*FOUND, metrics.GAUC):
        metric, more = make(), {"groups": [1, 1, 1]} if make is metrics.GAUC else {}
        metric.update_state([0.0, 1, y], [0.5, 0.6, p], sample_weight=[1, 1, 0], **more)
        assert np.isfinite(float(metric.result()))
        metric.update_state([0.0, 1, y], [0.5, 0.6, p], **more)
        assert np.isnan(float(metric.result()))


def test_masked_rows_are_left_out():
    ids = keras.Input((3,), dtype="int32")
    h = keras.layers.Embedding(4, 2, mask_zero=True)(ids)
    model = kl.Model(ids, keras.layers.TimeDistributed(keras.layers.Dense(1, activation="sigmoid"))(h))
    model.compile("sgd", "binary_crossentropy", metrics=[metrics.LogLoss(), metrics.Calibration()])
    x, y = np.array([[1, 2, 0], [3, 0, 0]]), np.array([[0, 1, 1], [1, 1, 1]], "float32")
    found = model.evaluate(x, y[..., None], return_dict=True, verbose=0)
    p = model.predict(x, verbose=0)[..., 0]
    assert found["log_loss"] == pytest.approx(log_loss(y[x > 0], p[x > 0].astype("float64")), rel=1e-5)
    assert found["calibration"] == pytest.approx(p[x > 0].sum() / y[x > 0].sum(), rel=1e-5)


def test_reliability_is_the_curve_of_scikit_learn(log):
    y, p, _, _ = log
    metric = metrics.ExpectedCalibrationError(10)
    metric.update_state(y, p)
    found = metric.reliability()
    observed, predicted = calibration_curve(y, p.astype("float64"), n_bins=10)
    np.testing.assert_allclose(found["observed"], observed)
    np.testing.assert_allclose(found["predicted"], predicted)
    assert found["share"].sum() == pytest.approx(1)
    by_edges = metrics.ExpectedCalibrationError(np.linspace(0, 1, 11)[1:-1])
    by_edges.update_state(y, p)
    assert float(by_edges.result()) == float(metric.result())


def test_the_picture_is_legible(log, tmp_path, monkeypatch):
    figure_module = pytest.importorskip("matplotlib.figure")
    figures = []
    monkeypatch.setattr(figure_module.Figure, "savefig", lambda figure, path: figures.append(figure))
    for edges in (10, np.geomspace(1e-4, 0.5, 9)):
        metric = metrics.ExpectedCalibrationError(edges)
        with pytest.raises(ValueError, match="`plot` must come after `update_state`"):
            metric.plot("x.svg")
        metric.update_state(log[0], log[1])
        metric.plot(str(tmp_path / "x.svg"))
        check_legible(figures[-1])


@pytest.mark.parametrize("strings", [False, True])
def test_gauc_is_the_mean_over_the_groups(log, rng, strings):
    y, _, weight, user = log
    p = rng.permutation(np.linspace(0.001, 0.999, ROWS)).astype("float32")
    places = np.floor((np.log(p) - np.log1p(-p) + 10) / 20 * 256)  # scores of one bin are ties
    groups = np.array([f"user {u}" for u in user]) if strings else user.astype("int64") - 2**40
    for w in (None, weight):
        metric = metrics.GAUC(bins=256)
        for rows in (slice(0, 300), slice(300, None)):
            part = None if w is None else w[rows]
            metric.update_state(y[rows], p[rows, None], part, groups=groups[rows])
        assert float(metric.coverage()) == 1
        w = np.ones(ROWS) if w is None else w
        assert float(metric.result()) == pytest.approx(_gauc(y, places, w, user), rel=1e-5)
    metric.reset_state()
    assert float(metric.result()) == float(metric.coverage()) == 0


def test_gauc_of_many_groups_is_that_of_a_sample(rng):
    """Groups that share a bucket would be compared with each other: users differ far more than items do."""
    users, rows = 20_000, 12
    logit = rng.normal(size=(users, rows))
    clicks = rng.choice([-1, 1], (users, 1))
    score = np.clip(logit, -4, 4) + 5 * clicks  # within a user the order is that of the logits
    chance = rng.random((users, rows))
    label = chance < np.where(clicks > 0, 0.8, 0.2) + 0.1 * np.tanh(logit)
    metric = metrics.GAUC(buckets=4096, bins=128, from_logits=True)
    user = np.broadcast_to(np.arange(users)[:, None], label.shape)
    metric.update_state(label.ravel(), score.ravel(), groups=user.ravel())
    pairs = label[:, :, None] & ~label[:, None]
    won = (pairs & (score[:, :, None] > score[:, None])).sum((1, 2))
    mixed = pairs.any((1, 2))
    auc = won[mixed] / pairs.sum((1, 2))[mixed]
    measured = float(metric.coverage()) * users
    assert 0.8 < measured / (0.188 * 4096 * (4096 / users) ** (1 / 3)) < 1.3
    error = np.std(auc) / np.sqrt(measured)
    assert float(metric.result()) == pytest.approx(auc.mean(), abs=4 * error)
    assert roc_auc_score(label.ravel(), score.ravel()) > auc.mean() + 15 * error  # of shared buckets


def test_groups_come_through_a_model(log):
    y, p, weight, user = log
    names = np.array([f"user {u}" for u in user])
    group, x = keras.Input((), dtype="string", name="user"), keras.Input((1,), name="x")
    scores = keras.layers.Dense(1, activation="sigmoid", kernel_initializer="ones")(x)
    model = kl.Model({"user": group, "x": x}, kl.layers.GroupBy()(scores, group))
    model.compile(
        "sgd",
        "binary_crossentropy",
        metrics=[metrics.GAUC()],
        weighted_metrics=[metrics.GAUC(name="weighted")],
    )
    inputs = {"user": tf.constant(names), "x": np.log(p / (1 - p))[:, None]}
    data = tf.data.Dataset.from_tensor_slices((inputs, y, weight)).batch(64)
    found = model.evaluate(data, return_dict=True, verbose=0)
    assert found["gauc"] == pytest.approx(_gauc(y, p, np.ones(ROWS), user), abs=0.01)
    assert found["weighted"] == pytest.approx(_gauc(y, p, weight, user), abs=0.01)
    assert "gauc" in model.fit(data, verbose=0).history


@pytest.mark.full
def test_metrics_add_up_over_replicas(log):
    y, p, weight, user = log
    found = []
    for devices in (1, 2):
        with kl.distribute.strategy(devices).scope():
            group, x = keras.Input((), dtype="int64", name="user"), keras.Input((1,), name="x")
            scores = keras.layers.Dense(1, activation="sigmoid", kernel_initializer="ones")(x)
            model = kl.Model({"user": group, "x": x}, kl.layers.GroupBy()(scores, group))
            kinds = metrics.LogLoss, metrics.NormalizedEntropy, metrics.Calibration
            more = [kind() for kind in kinds] + [metrics.ExpectedCalibrationError(), metrics.GAUC()]
            model.compile("sgd", "binary_crossentropy", weighted_metrics=more)
        inputs = {"user": user, "x": np.log(p / (1 - p))[:, None]}
        data = tf.data.Dataset.from_tensor_slices((inputs, y, weight)).batch(50)
        found.append(model.evaluate(data, return_dict=True, verbose=0))
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert found[0]["gauc"] == pytest.approx(_gauc(y, p, weight, user), abs=0.01)


def test_config_round_trip(log):
    for metric in (
        metrics.LogLoss("ll", "float64", True),
        metrics.NormalizedEntropy(from_logits=True),
        metrics.Calibration(),
        metrics.ExpectedCalibrationError([0.1, 0.2]),
        metrics.ExpectedCalibrationError(7),
        metrics.GAUC(buckets=50, bins=9),
    ):
        again = keras.metrics.deserialize(keras.metrics.serialize(metric))
        assert type(again) is type(metric) and again.get_config() == metric.get_config()
        more = {"groups": log[3]} if isinstance(metric, metrics.GAUC) else {}
        for m in (metric, again):
            m.update_state(log[0], log[1], **more)
        assert float(again.result()) == float(metric.result()) > 0


def test_prior_correction_finds_the_probabilities_of_all_rows(rng):
    p = rng.random(50)
    kept = p / (p + (1 - p) * 0.05)  # of a row that was kept: negatives with probability 0.05
    np.testing.assert_allclose(metrics.prior_correction(kept, 0.05), p)
    np.testing.assert_allclose(metrics.prior_correction(tf.constant(kept), 0.05), p)
    x = keras.Input((50,))
    model = kl.Model(x, metrics.prior_correction(x, 0.05))
    np.testing.assert_allclose(kl.Model.from_config(model.get_config())(kept[None])[0], p, rtol=1e-5)
    for bad in (0, -1, 1.5, np.nan):
        with pytest.raises(ValueError, match=r"`kept` must be in \(0, 1\]. Received: kept="):
            metrics.prior_correction(p, bad)


def test_errors():
    metric = metrics.LogLoss()
    for y, p in (((4, 2), (4,)), ((4,), (4, 3)), ((3,), (4,)), ((4, 1), (4, 1, 2))):
        with pytest.raises(ValueError, match="`y_true` must have the shape of `y_pred`"):
            metric.update_state(np.zeros(y), np.zeros(p))
    for bins in (0, 2.5, [0.5, 0.2], [0, 0.5], [[0.5]]):
        with pytest.raises(ValueError, match="`bins` must be a positive integer"):
            metrics.ExpectedCalibrationError(bins)
    for options in ({"bins": 1}, {"buckets": 2**30}):
        with pytest.raises(ValueError, match="`bins` must be at least 2, and `buckets"):
            metrics.GAUC(**options)
    with pytest.raises(
        ValueError, match=r"`groups` must be given, or `y_pred` be the output of a `kl.layers"
    ):
        metrics.GAUC().update_state([1.0], [0.5])
    with pytest.raises(ValueError, match=r"`groups` must be integers or strings. Received: float32"):
        metrics.GAUC().update_state([1.0], [0.5], groups=tf.constant([1.0]))
