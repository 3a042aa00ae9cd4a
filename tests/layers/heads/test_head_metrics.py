"""Metrics in `compile` find the head by its output. (Every head under every strategy: conformance.)"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from keras_largeout import _head_annotations

CLASSES, DIM, LENGTH = 30, 5, 4


def model_of(mask_zero=True, loss=None, **compile_args):
    ids = keras.Input((LENGTH,), dtype="int32")
    x = kl.layers.ShardedEmbedding(CLASSES, DIM, mask_zero=mask_zero)(ids)
    head = kl.layers.HierarchicalSoftmax(CLASSES, counts=np.arange(CLASSES, 0, -1))
    model = kl.Model(ids, head(x))
    model.compile(kl.optimizers.LazyAdam(0.1), head.make_loss(**(loss or {})), **compile_args)
    return model, head


def metrics():
    return [kl.metrics.Perplexity(), kl.metrics.TopKAccuracy(3), kl.metrics.PrecisionAtK(1)]


def data(rng):
    ids = rng.integers(1, CLASSES, (8, LENGTH)).astype("int32")
    ids[:, -1] = 0  # padding
    y = rng.integers(0, CLASSES, (8, LENGTH))
    y[0, 1] = -1
    return ids, y, rng.integers(0, 3, (8, LENGTH)).astype("float32")


def expected(model, head, ids, y, counted, weight):
    """Perplexity, top-3 accuracy and precision at 1 of the tokens that count."""
    hidden = tf.constant(model.predict(ids, verbose=0))
    log_p = head.log_prob(hidden, np.maximum(y, 0)).numpy()
    best = head.top_k(hidden, 3)[1].numpy()
    weight = weight * counted
    perplexity = np.exp(-np.sum(log_p * weight) / weight.sum())
    hits = (best == y[..., None])[counted], weight[counted]
    return [perplexity, *(np.sum(hits[0][:, :k].any(1) * hits[1]) / hits[1].sum() for k in (3, 1))]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 2])
def test_only_tokens_that_count(rng, ignored, weighted):
    ids, y, weight = data(rng)
    y[1:3] = np.where(ids[1:3] > 0, 2, y[1:3])
    name = "weighted_metrics" if weighted else "metrics"
    model, head = model_of(loss={"ignore_class": ignored}, **{name: metrics()})
    got = model.evaluate(ids, y, batch_size=3, sample_weight=weight if weighted else None, verbose=0)[1:]
    counted = (ids > 0) & (y != -1) & (y != ignored)
    want = expected(model, head, ids, y, counted, weight if weighted else np.ones_like(weight))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_what_fit_logs_is_what_the_loss_saw(rng):
    ids, y, _ = data(rng)
    model, head = model_of(metrics=metrics())
    before = expected(model, head, ids, y, (ids > 0) & (y != -1), np.ones(y.shape))
    logs = model.fit(ids, y, batch_size=8, epochs=2, verbose=0, validation_data=(ids, y)).history
    assert logs["perplexity"][0] == pytest.approx(before[0], rel=1e-5)  # not of the weights after the step
    np.testing.assert_allclose(logs["perplexity"], np.exp(logs["loss"]), rtol=1e-5)
    np.testing.assert_allclose(logs["val_perplexity"], np.exp(logs["val_loss"]), rtol=1e-5)
    assert set(logs) >= {"top_3_accuracy", "precision_at_1", "val_top_3_accuracy"}


@pytest.mark.parametrize("eager", [False, True])
def test_metrics_share_one_search_in_graphs(rng, eager, monkeypatch):
    """The largest k first: the others take the first of its classes. Eagerly the head may learn between."""
    ids, y, _ = data(rng)
    kinds = (kl.metrics.RecallAtK, kl.metrics.MRR, kl.metrics.NDCGAtK, kl.metrics.HitRateAtK)
    ks = (4, 3, 2, 4)
    model, head = model_of(metrics=[kind(k) for kind, k in zip(kinds, ks)], run_eagerly=eager)
    searches, top_k = [], head.top_k
    monkeypatch.setattr(head, "top_k", lambda hidden, k: searches.append(k) or top_k(hidden, k))
    got = model.evaluate(ids, y, verbose=0)[1:]
    assert searches == (list(ks) if eager else [4])
    monkeypatch.undo()
    hidden = tf.constant(model.predict(ids, verbose=0))
    for kind, k, found in zip(kinds, ks, got):
        metric = kind(k)
        metric.update_state(y, head.top_k(hidden, k)[1], sample_weight=(ids > 0) & (y != -1))
        assert found == pytest.approx(float(metric.result()))


def test_two_heads_on_the_same_vectors(rng):
    x = keras.Input((3,))
    hidden = keras.layers.Dense(DIM)(x)
    heads = [kl.layers.HierarchicalSoftmax(n, counts=np.ones(n), name=f"of_{n}") for n in (7, 9)]
    model = kl.Model(x, [head(hidden) for head in heads])
    model.compile("sgd", [head.loss for head in heads], metrics=[[kl.metrics.Perplexity()] for _ in heads])
    logs = model.evaluate(rng.normal(size=(4, 3)), [np.arange(4), np.arange(4)], return_dict=True, verbose=0)
    for n in (7, 9):
        assert logs[f"of_{n}_perplexity"] == pytest.approx(np.exp(logs[f"of_{n}_loss"]), rel=1e-5)
    assert logs["of_7_perplexity"] != logs["of_9_perplexity"]


def test_a_tensor_that_is_scored_again_and_again_keeps_the_latest(rng):
    head = kl.layers.HierarchicalSoftmax(CLASSES, counts=np.ones(CLASSES))
    constant = tf.constant(rng.normal(size=(6, DIM)), tf.float32)
    hidden, targets = head(constant), [np.full(6, i) for i in range(3)]
    for y in targets:
        head.loss(y, hidden)
        head.loss(y, constant)
    known = [_head_annotations.scores_of(hidden, head, y) for y in targets]
    assert known[:2] == [None, None] and known[2].losses.shape == (6,)
    assert _head_annotations.scores_of(constant, head, targets[2]) is None  # no output of a head
    assert _head_annotations.heads_of(constant) == [] and _head_annotations.heads_of(hidden) == [head]


def test_a_subclassed_model_and_a_loss_of_its_own(rng):
    class Sub(keras.Model):
        def __init__(self):
            super().__init__()
            self.words = keras.layers.Embedding(CLASSES, DIM)
            self.head = kl.layers.HierarchicalSoftmax(CLASSES, counts=np.ones(CLASSES))

        def call(self, ids):
            return self.head(self.words(ids))

        def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
            return -tf.reduce_mean(self.head.log_prob(y_pred, y))

    ids = rng.integers(0, CLASSES, (8, LENGTH))
    model = Sub()
    model.compile("sgd", metrics=metrics())
    logs = model.evaluate(ids, ids, batch_size=8, return_dict=True, verbose=0)
    assert logs["perplexity"] == pytest.approx(np.exp(logs["loss"]), rel=1e-5)


def test_many_labels_and_what_is_refused(rng):
    head = kl.layers.SparseOutput(CLASSES, 3, loss="binary_crossentropy")
    hidden = head(tf.constant(rng.normal(size=(5, DIM)), tf.float32))
    y = np.array([[1, 2], [3, -1], [-1, -1], [4, 5], [0, 1]])
    metric = kl.metrics.TopKAccuracy(2)
    metric.update_state(y, hidden)
    best = head.top_k(hidden, 2)[1].numpy()
    hits = [bool(set(a) & set(b)) for a, b in zip(y.tolist(), best.tolist())]
    assert float(metric.result()) == pytest.approx((sum(hits) - hits[2]) / 4)
    perplexity = kl.metrics.Perplexity()
    for y_pred, received in ((hidden, "that of <SparseOutput"), (tf.zeros([5, DIM]), "of no head")):
        with pytest.raises(ValueError, match=f"`y_pred` must be the output of a head .*{received}"):
            perplexity.update_state(y, y_pred)
    assert kl.metrics.TopKAccuracy.from_config(metric.get_config()).get_config() == metric.get_config()


def test_the_loss_without_targets(rng):
    _, head = model_of()
    hidden = tf.constant(rng.normal(size=(6, DIM)), tf.float32)
    y = np.array([3, -1, 4, 2, -1, 2])
    want = -head.log_prob(hidden, np.maximum(y, 0)).numpy()
    np.testing.assert_allclose(head.loss(y, hidden), want[y >= 0].mean(), rtol=1e-6)
    np.testing.assert_allclose(head.make_loss(reduction="sum")(y, hidden), want[y >= 0].sum(), rtol=1e-6)
    ignoring = head.make_loss(ignore_class=2)
    np.testing.assert_allclose(ignoring(y, hidden), want[[0, 2]].mean(), rtol=1e-6)
    again = keras.losses.deserialize(keras.losses.serialize(ignoring))
    assert again.ignore_class == 2
    assert float(head.loss(np.full(6, -1), hidden)) == 0
    assert float(again(np.full(6, 2), hidden)) == 0
    with pytest.raises(tf.errors.InvalidArgumentError, match="-2"):
        head.loss(np.array([3, -2, 4, 2, -1, 2]), hidden)
    for bad in (1.5, "pad", True):
        with pytest.raises(ValueError, match="`ignore_class` must be a class id or None"):
            head.make_loss(ignore_class=bad)


@pytest.mark.parametrize("loss", ["softmax", "binary_crossentropy"])
def test_labels_that_are_ignored(rng, loss):
    head = kl.layers.SparseOutput(CLASSES, 3, loss=loss)
    hidden = tf.constant(rng.normal(size=(4, DIM)), tf.float32)
    head(hidden)
    lists, without = (
        np.array([[1, 2], [2, 3], [4, 2], [2, 2]]),
        np.array([[1, -1], [-1, 3], [4, -1], [-1, -1]]),
    )
    ignoring = head.make_loss(ignore_class=2)
    want = head.loss(without, hidden)
    ragged = tf.RaggedTensor.from_tensor(lists)
    sparse = tf.sparse.from_dense(lists)
    hot = np.zeros((4, CLASSES), "float32")
    np.put_along_axis(hot, lists, 1, 1)
    for y in (lists, ragged, sparse, tf.sparse.from_dense(hot)):
        np.testing.assert_allclose(ignoring(y, hidden), want, rtol=1e-5)
    one_each = head.loss(np.array([1, -1, 4, 3]), hidden)
    three = head.loss(np.array([1, 4, 3]), tf.gather(hidden, [0, 2, 3]))
    if loss == "softmax":  # a token without a target is ignored
        np.testing.assert_allclose(one_each, three, rtol=1e-6)
    else:  # all labels are wrong for it
        np.testing.assert_allclose(one_each, head.loss(np.array([[1], [-1], [4], [3]]), hidden), rtol=1e-6)
        assert float(one_each) != pytest.approx(float(three))
