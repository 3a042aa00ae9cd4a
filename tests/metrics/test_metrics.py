"""Metrics on top-k ids, against dense NumPy and scikit-learn."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import ndcg_score

import keras_largeout as kl
from keras_largeout import metrics

CLASSES, ROWS, K = 40, 23, 5


@pytest.fixture
def batch(rng):
    """Label lists (some empty, one with a duplicate), predictions [rows, 7], dense labels, propensities."""
    labels = [sorted(rng.choice(CLASSES, n, replace=False).tolist()) for n in rng.integers(0, 9, ROWS)]
    labels[3], labels[4] = [], [7, 7, 2]
    ids = np.argsort(rng.random((ROWS, CLASSES)), axis=1)[:, :7].astype("int32")
    ids[4, 2] = 7
    dense = np.zeros((ROWS, CLASSES))
    for row, ls in enumerate(labels):
        dense[row, ls] = 1
    return labels, ids, dense, rng.uniform(0.05, 1, CLASSES)


def _padded(labels):
    return tf.ragged.constant(labels, dtype=tf.int64).to_tensor(-1)


def _sparse(labels):
    pairs = [(row, j, label) for row, ls in enumerate(labels) for j, label in enumerate(ls)]
    pairs = np.array(pairs, np.int64)
    return tf.SparseTensor(pairs[:, :2], pairs[:, 2], [len(labels), 50])


def _multi_hot(labels):
    matrix = np.zeros((len(labels), CLASSES), "float32")
    for row, ls in enumerate(labels):
        matrix[row, ls] = 0.5
    return tf.sparse.from_dense(matrix)


FORMS = {
    "padded": _padded,
    "ragged": lambda labels: tf.ragged.constant(labels, dtype=tf.int32),
    "sparse": _sparse,
    "multi_hot": _multi_hot,
    "numpy": lambda labels: _padded(labels).numpy().astype("int32"),
}


def _expected(ids, dense, gains, weight):
    """P@k, nDCG@k, PSP@k, recall, hit rate and MRR by the book."""
    k = K
    hit = np.take_along_axis(dense, ids[:, :k], 1)
    precision = np.average(hit.mean(1), weights=weight)
    scores = np.zeros_like(dense)
    np.put_along_axis(scores, ids[:, :k], np.arange(k, 0, -1)[None], 1)
    ndcg = np.array([ndcg_score(d[None], s[None], k=k) if d.any() else 0 for d, s in zip(dense, scores)])
    won = (hit * gains[ids[:, :k]]).sum(1)
    best = np.sort(dense * gains, axis=1)[:, -k:].sum(1)
    psp = (won * weight).sum() / (best * weight).sum()
    some = dense.any(1)  # the others count for none of these
    rank = np.where(hit.any(1), hit.argmax(1) + 1, np.inf)
    kept = [hit.sum(1) / np.maximum(dense.sum(1), 1), hit.any(1), 1 / rank]
    return (
        precision,
        np.average(ndcg, weights=weight),
        psp,
        *(np.average(v[some], weights=weight[some]) for v in kept),
    )


def _metrics(propensities):
    return (
        metrics.PrecisionAtK(K),
        metrics.NDCGAtK(K),
        metrics.PropensityScoredPrecisionAtK(propensities, K),
        metrics.RecallAtK(K),
        metrics.HitRateAtK(K),
        metrics.MRR(K),
    )


# In graphs without weights once: tracing takes the time, and eager calls have tried every form.
@pytest.mark.parametrize(
    ("graph", "weighted", "form"),
    [(False, weighted, form) for weighted in (False, True) for form in FORMS]
    + [(True, True, form) for form in FORMS]
    + [(True, False, "ragged")],
)
def test_against_dense_definitions(batch, rng, form, weighted, graph):
    labels, ids, dense, propensities = batch
    weight = rng.random(ROWS) if weighted else np.ones(ROWS)
    for metric, want in zip(_metrics(propensities), _expected(ids, dense, 1 / propensities, weight)):
        update = metric.update_state
        if graph:
            update = tf.function(update, reduce_retracing=True)
        for rows in (slice(0, 9), slice(9, 10), slice(10, None)):
            sparse = form in ("sparse", "multi_hot")
            y = FORMS[form](labels[rows]) if sparse else FORMS[form](labels)[rows]
            w = weight[rows]
            update(y, {"ids": tf.constant(ids[rows])}, sample_weight=w if weighted else None)
        assert float(metric.result()) == pytest.approx(want, rel=1e-6)
        metric.reset_state()
        assert float(metric.result()) == 0


def test_one_label_a_row_is_the_accuracy(rng):
    y, ids = rng.integers(0, 3, (6, 4)), rng.integers(0, 3, (6, 4, 2)).astype("int64")
    metric = metrics.PrecisionAtK(1)
    metric.update_state(y, ids)
    assert float(metric.result()) == pytest.approx(np.mean(ids[..., 0] == y))
    metric.reset_state()
    metric.update_state(y[..., None], ids)
    assert float(metric.result()) == pytest.approx(np.mean(ids[..., 0] == y))


def test_names():
    found = [
        metric.name
        for metric in (metrics.RecallAtK(3), metrics.HitRateAtK(), metrics.MRR(), metrics.MRR(2, "x"))
    ]
    assert found == ["recall_at_3", "hit_rate_at_10", "mrr_at_10", "x"]


def test_empty_batch_and_no_labels(batch):
    propensities = batch[-1]
    for metric in _metrics(propensities):
        metric.update_state(tf.zeros([0, 3], tf.int32), tf.zeros([0, K], tf.int32))
        metric.update_state(tf.fill([2, 3], -1), tf.zeros([2, K], tf.int32))
        metric.update_state(tf.zeros([2, 0], tf.int32), tf.zeros([2, K], tf.int32))
        assert float(metric.result()) == 0


def test_large_ids_are_not_rounded():
    big = 2**31 - 2
    metric = metrics.PrecisionAtK(2)
    metric.update_state(tf.constant([[big, -1]]), tf.constant([[big - 1, big]]))
    assert float(metric.result()) == 0.5


def test_ids_of_all_64_bits():
    """Their number times that of the rows is beyond int64."""
    ids = 2**62 + np.array([[5, 6], [7, 8], [9, 10], [11, 12]])
    labels = [[2**62 + 6, 2**62 + 5], [2**62 + 7, 3], [2**62, -1], [2**62 + 12, 2**62 + 12]]
    for metric, expected in ((metrics.RecallAtK(2), (1 + 0.5 + 0 + 1) / 4), (metrics.MRR(2), 2.5 / 4)):
        metric.update_state(labels, {"ids": ids})
        assert float(metric.result()) == expected


def test_strings():
    ids, labels = tf.constant([["a", "b"], ["c", ""]]), tf.constant([["b", "", "x"], ["d", "c", ""]])
    for y_true in (labels, tf.ragged.constant([["b", "x"], ["d", "c"]]), tf.sparse.from_dense(labels)):
        metric = metrics.RecallAtK(2)
        metric.update_state(y_true, {"ids": ids})
        assert float(metric.result()) == 0.5


def test_config_round_trip(batch):
    for metric in _metrics(batch[-1]):
        again = keras.metrics.deserialize(keras.metrics.serialize(metric))
        assert type(again) is type(metric) and again.name == metric.name
        for m in (metric, again):
            m.update_state(_padded(batch[0]), batch[1])
        assert float(again.result()) == pytest.approx(float(metric.result()))


def test_propensities_by_hand():
    got = metrics.propensities([0, 1, 99], 1000)
    c = (np.log(1000) - 1) * 2.5**0.55
    want = [1 / (1 + c * np.exp(-0.55 * np.log(n + 1.5))) for n in (0, 1, 99)]
    np.testing.assert_allclose(got, want)
    assert np.all(np.diff(got) > 0)


def test_errors(batch):
    with pytest.raises(ValueError, match=r"`k` must be a positive integer. Received: k=0"):
        metrics.PrecisionAtK(0)
    metric = metrics.PrecisionAtK(3)
    for ids in (tf.zeros([2, 5]), tf.zeros([2, 2], tf.int32), tf.zeros([2], tf.int32)):
        with pytest.raises(ValueError, match=r"`y_pred` must be ids \[..., n\], n at least k=3"):
            metric.update_state(tf.zeros([2, 1], tf.int32), ids)
    for y in (tf.zeros([2, 1, 1], tf.int32), tf.ragged.constant([[[1]], [[2]]])):
        with pytest.raises(ValueError, match=r"`y_true` must be label ids \[batch, n\]"):
            metric.update_state(y, tf.zeros([2, 3], tf.int32))
    with pytest.raises(ValueError, match=r"`propensities` must be one number in \(0, 1\]"):
        metrics.PropensityScoredPrecisionAtK([0.5, 0.0], 1)
    for bad in ({"label_counts": [-1], "num_rows": 9}, {"label_counts": [1], "num_rows": 2}):
        with pytest.raises(ValueError, match=r"`(label_counts|num_rows)` must be"):
            metrics.propensities(**bad)
    with pytest.raises(ValueError, match="`a` must be at least 0"):
        metrics.propensities([1], 9, a=-1)


def test_a_multi_hot_matrix_of_integers_needs_num_classes(batch):
    labels, ids, _, propensities = batch
    matrix = tf.cast(tf.sparse.map_values(tf.math.ceil, _multi_hot(labels)), tf.int32)
    for make in (metrics.PrecisionAtK, metrics.NDCGAtK, metrics.RecallAtK, metrics.HitRateAtK, metrics.MRR):
        known, padded = make(K, num_classes=CLASSES), make(K)
        known.update_state(matrix, ids)
        padded.update_state(_padded(labels), ids)
        assert float(known.result()) == float(padded.result()) > 0
        assert make.from_config(known.get_config()).num_classes == CLASSES
    scored = [metrics.PropensityScoredPrecisionAtK(propensities, K) for _ in range(2)]
    for metric, y in zip(scored, (matrix, _padded(labels))):
        metric.update_state(y, ids)
    assert float(scored[0].result()) == float(scored[1].result()) > 0
    assert type(scored[0]).from_config(scored[0].get_config()).num_classes == CLASSES


@pytest.mark.parametrize("metric", [kl.metrics.Perplexity(), kl.metrics.MRR(3), kl.metrics.TopKAccuracy(2)])
def test_callbacks_know_whether_more_is_better(metric):
    ids = keras.Input((2,), dtype="int32")
    head = kl.layers.FullSoftmax(7)
    model = kl.Model(ids, head(keras.layers.Embedding(7, 3)(ids)))
    model.compile("sgd", head.loss, metrics=[metric])
    stop = keras.callbacks.EarlyStopping(metric.name)
    model.fit(np.zeros((4, 2), int), np.ones((4, 2), int), verbose=0, callbacks=[stop])
    assert stop.monitor_op(2, 1) == (metric.name != "perplexity")
