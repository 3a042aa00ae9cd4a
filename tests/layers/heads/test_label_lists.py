"""Tokens with several targets: every layout of labels, in the loss and the metrics of every head."""

import functools

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl

CLASSES, DIM, ROWS = 20, 5, 8

HEADS = {
    "tree": functools.partial(kl.layers.HierarchicalSoftmax, counts=np.arange(CLASSES, 0, -1)),
    "full": kl.layers.FullSoftmax,
    "own optimizer": functools.partial(kl.layers.FullSoftmax, optimizer="sgd"),
    "sampled": functools.partial(kl.layers.SampledSoftmax, num_sampled=4, distribution="uniform", seed=1),
    "connections": functools.partial(kl.layers.SparseOutput, fan_in=3, loss="softmax", seed=1),
    "labels": functools.partial(kl.layers.SparseOutput, fan_in=3, seed=1),
}
TYPES = ("int8", "uint16", "int32", "uint32", "int64", "uint64", "bool", "float32")


def lists_of(rng):
    """For each row one to three labels."""
    return [sorted(rng.choice(CLASSES, n, replace=False).tolist()) for n in rng.integers(1, 4, ROWS)]


def matrix(lists, dtype):
    found = np.zeros((len(lists), CLASSES), dtype)
    for row, labels in enumerate(lists):
        found[row, labels] = 1
    return found


def padded(lists, dtype="int64"):
    return tf.ragged.constant(lists, dtype=tf.int64).to_tensor(-1).numpy().astype(dtype)


FORMS = {
    "int32": functools.partial(padded, dtype="int32"),
    "ragged": lambda lists: tf.ragged.constant(lists, dtype=tf.int32),
    **{f"dense {dtype}": functools.partial(matrix, dtype=dtype) for dtype in TYPES},
    **{f"sparse {d}": lambda lists, d=d: tf.sparse.from_dense(matrix(lists, d)) for d in TYPES},
}


def model_of(kind, metrics=(), **options):
    x = keras.Input((DIM,))
    head = HEADS[kind](CLASSES, **options)
    model = kl.Model(x, head(keras.layers.Dense(DIM, activation="tanh")(x)))
    model.compile(kl.optimizers.LazyAdam(0.01), head.loss, metrics=list(metrics))
    return model, head


@pytest.mark.parametrize("kind", HEADS)
def test_every_layout_is_the_same_to_losses_and_metrics(kind, rng):
    head, lists = HEADS[kind](CLASSES), lists_of(rng)
    head.build((None, DIM))
    hidden = tf.constant(rng.normal(size=(ROWS, DIM)), tf.float32)
    best, found = head.top_k(hidden, 4)[1], []
    for form in ("int32", *FORMS):
        metric = kl.metrics.RecallAtK(4, num_classes=CLASSES)
        metric.update_state(FORMS[form](lists), best)
        found.append([float(head.loss(FORMS[form](lists), hidden)), float(metric.result())])
    np.testing.assert_allclose(found, found[:1] * len(found), rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "devices"), [("tree", 1), ("labels", 1), pytest.param("sampled", 2, marks=pytest.mark.full)]
)
def test_sparse_matrices_are_evaluated(kind, devices, rng):
    with strategy_of(devices).scope():
        model, _ = model_of(kind, [kl.metrics.RecallAtK(4), kl.metrics.MRR(3)])
    x, lists = rng.normal(size=(ROWS, DIM)).astype("float32"), lists_of(rng)
    want = model.evaluate(x, padded(lists), verbose=0)
    y = scipy.sparse.csr_matrix(matrix(lists, "int8"))
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0), want, rtol=1e-5)


@pytest.mark.parametrize("kind", ["tree", "full", "sampled"])
def test_the_loss_of_a_list_is_the_mean_of_its_labels(kind, rng):
    head = HEADS[kind](CLASSES)
    head.build((None, DIM))
    hidden = tf.constant(rng.normal(size=(2, 3, DIM)), tf.float32)
    y = np.array([[[1, 4, -1], [2, 2, 7], [-1, -1, -1]], [[5, -1, -1], [9, 8, 7], [3, 1, -1]]])
    share = (y >= 0) / np.maximum((y >= 0).sum(-1, keepdims=True), 1)
    weight = np.array([[1, 0.5, 3], [2, 0, 1]], "float32")
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(hidden)
        loss = head.loss(y, hidden, weight)
        single = head.make_loss(reduction="sum")
        want = sum(single(y[..., i], hidden, weight * share[..., i]) for i in range(3)) / 5
    assert float(loss) == pytest.approx(float(want), rel=1e-5)
    np.testing.assert_allclose(tape.gradient(loss, hidden), tape.gradient(want, hidden), atol=1e-6)
    without = head.make_loss(ignore_class=4)(y, hidden)
    assert float(without) == pytest.approx(float(head.loss(np.where(y == 4, -1, y), hidden)))


def test_a_focal_loss_is_of_each_target(rng):
    """It is no linear function of the logit: the loss of a list is the mean of the losses of its targets."""
    head = kl.layers.FullSoftmax(CLASSES, focal_gamma=2.0)
    head.build((None, DIM))
    hidden = tf.constant(rng.normal(size=(1, DIM)), tf.float32)
    one_by_one = [float(head.loss(np.array([label]), hidden)) for label in (3, 7)]
    assert float(head.loss(np.array([[3, 7]]), hidden)) == pytest.approx(np.mean(one_by_one), rel=1e-5)


def cosine_contrastive(num_classes):
    options = {"normalize": True, "negative_margin": 0.2, "negative_weight": 3.0, "seed": 1}
    return kl.layers.SampledSoftmax(num_classes, 4, "uniform", loss="cosine_contrastive", **options)


@pytest.mark.parametrize(
    ("make", "scored_in"),
    [
        (kl.layers.FullSoftmax, "softmax_weights.terms"),
        (
            functools.partial(kl.layers.FullSoftmax, label_smoothing=0.2, z_loss=0.1),
            "softmax_weights.terms",
        ),
        (
            functools.partial(kl.layers.FullSoftmax, normalize=True, temperature=0.2),
            "softmax_weights.terms",
        ),
        (cosine_contrastive, "_ranking.contrastive_of_lists"),
    ],
    ids=["plain", "smoothed", "cosine", "contrastive"],
)
def test_a_token_is_scored_once(make, scored_in, rng, monkeypatch):
    """Losses and gradients are those of its pairs of token and label; the scores are of tokens."""
    head = make(CLASSES)
    head.build((None, DIM))
    hidden = tf.constant(rng.normal(size=(ROWS, DIM)), tf.float32)
    weighed = matrix(lists_of(rng), "float32") * rng.uniform(0.5, 3, CLASSES).astype("float32")
    weighed[2] = 0  # no label
    mask = tf.constant(np.arange(ROWS) != 5)
    weight, tokens = rng.uniform(0.5, 2, ROWS).astype("float32"), []

    def watch(path):
        owner, name = path.split(".")
        owner = getattr(head, owner)
        found = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda x, *args: tokens.append(len(x)) or found(x, *args))

    watch(scored_in)
    variables = [head.kernel.variable] + ([] if head.bias is None else [head.bias.variable])
    found = []
    for every_pair in (False, True):
        if every_pair:
            monkeypatch.setattr(type(head), "losses_of_lists", kl.layers.Head.losses_of_lists)
            if scored_in == "_ranking.contrastive_of_lists":
                watch("_ranking.losses")
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            # Candidates are the same in every evaluation.
            output = head(hidden, training=scored_in == "softmax_weights.terms")
            output._keras_mask = mask
            loss = head.make_loss()(weighed, output, weight)
        gradients = tape.gradient(loss, [hidden, *variables])
        found.append([loss, *map(tf.convert_to_tensor, gradients)])
    for got, want in zip(*found):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    labels = (weighed[np.arange(ROWS) != 5] != 0).sum()
    assert tokens == [ROWS - 2, labels]


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"normalize": True, "temperature": 0.2}], ids=["plain", "cosine"])
def test_lists_train_a_full_softmax_on_two_devices_as_on_one(options, rng):
    x, y = rng.normal(size=(ROWS, DIM)).astype("float32"), padded(lists_of(rng))
    found = []
    for devices in (1, 2):
        keras.utils.set_random_seed(3)
        with strategy_of(devices).scope():
            model, head = model_of("full", **options)
        losses = model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0).history["loss"]
        found.append([losses, head.kernel.numpy()])
    for got, want in zip(*found):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["tree", "sampled", "connections"])
def test_a_callback_watches_the_recall_of_lists_while_single_ids_are_trained(kind, rng):
    """After batches of both ranks Keras traces a step for targets of no known rank."""
    model, _ = model_of(kind, [kl.metrics.RecallAtK(4)])
    x, y = rng.normal(size=(ROWS, DIM)).astype("float32"), padded(lists_of(rng))
    fresh = model.evaluate(x, y, verbose=0), model.evaluate(x, y[:, 0], verbose=0)
    for targets, want in zip((y, y[:, 0]), fresh):
        np.testing.assert_allclose(model.evaluate(x, targets, verbose=0), want, rtol=1e-6)
    stop = keras.callbacks.EarlyStopping("val_recall_at_4", mode="max", patience=1)
    logs = model.fit(x, y[:, 0], validation_data=(x, y), epochs=2, verbose=0, callbacks=[stop]).history
    assert np.all(np.isfinite(logs["val_loss"]))


def test_an_untold_rank_leaves_out_what_has_no_target(rng):
    head = HEADS["connections"](CLASSES)
    head.build((None, DIM))
    hidden = tf.constant(rng.normal(size=(3, DIM)), tf.float32)
    loss = tf.function(lambda y: head.loss(y, hidden), input_signature=[tf.TensorSpec(None, tf.int32)])
    for y in ([3, -1, 5], [[3, 1], [-1, -1], [5, 2]]):
        assert float(loss(y)) == pytest.approx(float(head.loss(np.array(y), hidden)))


def test_weights_of_a_dense_matrix_and_an_ignored_class(rng):
    head = HEADS["labels"](CLASSES)
    head.build((None, DIM))
    hidden, lists = rng.normal(size=(ROWS, DIM)).astype("float32"), lists_of(rng)
    dense = matrix(lists, "float32") * rng.uniform(0.5, 3, CLASSES).astype("float32")
    for ignored in (None, lists[0][0]):
        loss = head.make_loss(ignore_class=ignored)
        assert float(loss(dense, hidden)) == pytest.approx(float(loss(tf.sparse.from_dense(dense), hidden)))
    assert float(loss(dense, hidden)) != pytest.approx(float(head.loss(dense, hidden)))


def test_zeros_and_ones_are_never_ids(rng):
    head = HEADS["labels"](CLASSES)
    head.build((None, DIM))
    hidden, hot = np.zeros((ROWS, DIM), "float32"), matrix(lists_of(rng), "int32")
    ids = np.tile(np.arange(4), (ROWS, 1))
    wrong = [hot[:, :-1], hot[:, :-1].astype("float32"), hot[:, :2].astype(bool), np.full((ROWS, 3), 0.5)]
    for y in (*wrong, tf.sparse.from_dense(hot[:, 2:])):
        with pytest.raises(ValueError, match="`y_true` must be label ids padded with -1, or a multi-hot"):
            head.loss(y, hidden)
        with pytest.raises(tf.errors.InvalidArgumentError, match="`y_true` must be label ids"):
            tf.function(head.loss.__call__)(y, hidden)
    for y in (hot, hot.astype(bool), tf.sparse.from_dense(hot)):
        with pytest.raises(ValueError, match="a metric on ids must be given `num_classes`"):
            kl.metrics.RecallAtK(4).update_state(y, ids)
    kl.metrics.RecallAtK(4).update_state(np.array([[0, 1]] * ROWS), ids)  # two labels


@pytest.mark.parametrize("kind", ["full", "labels"])
def test_a_weight_may_be_a_bool(kind, rng):
    model, _ = model_of(kind)
    x, y = rng.normal(size=(ROWS, DIM)).astype("float32"), rng.integers(0, CLASSES, ROWS)
    weight = rng.random(ROWS) < 0.5
    want = float(model.loss(y, model(x), weight.astype("float32")))
    logs = model.fit(x, y, sample_weight=weight, verbose=0).history
    assert logs["loss"] == pytest.approx([want])
