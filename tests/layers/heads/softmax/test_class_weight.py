"""`class_weight` of the softmax heads, and `label_smoothing` against candidates."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _training import assert_same, fit
from layers.heads.softmax._models import (
    CLASSES,
    DIM,
    assert_two_devices_are_like_one,
    built,
    data,
    log_softmax,
    loss_and_gradients,
    model_of,
    tables_of,
)

import keras_largeout as kl

WEIGHTS = np.linspace(0, 3, CLASSES).astype("float32")
HEADS = {
    "full": lambda **options: kl.layers.FullSoftmax(CLASSES, name="head", **options),
    "tree": lambda **options: kl.layers.HierarchicalSoftmax(CLASSES, name="head", **options),
    "sampled": lambda **options: kl.layers.SampledSoftmax(CLASSES, 7, seed=3, name="head", **options),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
@pytest.mark.parametrize("kind", HEADS)
def test_the_target_weighs_the_loss(rng, kind, reduction, training):
    """As losses that are multiplied by hand, beside masks, sample weights and targets that are ignored."""
    found = []
    x, y, weight = data(rng)
    y[0, :2], y = [-1, 2], np.where(x == 0, 0, y)
    for own in (None, WEIGHTS):
        model, head = model_of(HEADS[kind](class_weight=own), mask_zero=True)
        model.compile("sgd", head.make_loss(reduction=reduction, ignore_class=2))
        by_hand = weight * (WEIGHTS[y] if own is None else 1)
        found.append(loss_and_gradients(model, x, y, training, tf.constant(by_hand)))
    counted = (x != 0) & (y != -1) & (y != 2)
    (want, exact), (got, gradients) = found
    factor = 1.0
    if reduction == "mean_with_sample_weight":  # it divides by the sample weights alone
        factor = (weight * WEIGHTS[y])[counted].sum() / weight[counted].sum()
    np.testing.assert_allclose(got, want * factor, rtol=1e-5)
    for name, gradient in exact.items():
        gradient, other = tf.convert_to_tensor(gradient), tf.convert_to_tensor(gradients[name])
        np.testing.assert_allclose(other, gradient * factor, rtol=1e-4, atol=1e-6, err_msg=name)


def test_it_is_that_of_keras_fit(rng):
    """The losses of `fit(class_weight=)`, which has no weights in evaluation."""
    x, y = rng.normal(size=(24, DIM)).astype("float32"), rng.integers(0, CLASSES, 24)
    found = []
    for own in (None, WEIGHTS):
        head = built(HEADS["full"](class_weight=own), np.random.default_rng(1))
        inputs = keras.Input((DIM,))
        model = kl.Model(inputs, head(inputs))
        model.compile(kl.optimizers.SGD(0.1), loss=head.loss)
        options = {} if own is not None else {"class_weight": dict(enumerate(WEIGHTS.tolist()))}
        history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, **options)
        found.append({"losses": np.array(history.history["loss"]), "kernel": head.kernel.numpy()})
    assert_same(found[1], found[0])


@pytest.mark.parametrize("kind", HEADS)
def test_lists_of_targets(rng, kind):
    """Each target of a list has its own weight, inside the mean over the list."""
    head = built(HEADS[kind](class_weight=WEIGHTS), rng)
    vectors = rng.normal(size=(3, DIM)).astype("float32")
    lists = np.array([[1, 2], [29, -1], [5, 0]])
    losses = -WEIGHTS[lists] * np.take_along_axis(log_softmax(head, vectors), np.maximum(lists, 0), axis=1)
    want = np.where(lists >= 0, losses, 0).sum(axis=1) / (lists >= 0).sum(axis=1)
    np.testing.assert_allclose(head.make_loss(reduction="none")(lists, head(vectors)), want, rtol=1e-5)


@pytest.mark.parametrize("kind", HEADS)
def test_metrics_and_log_prob_have_none(rng, kind):
    model, head = model_of(HEADS[kind](class_weight=WEIGHTS), metrics=[kl.metrics.Perplexity()])
    x, y, _ = data(rng)
    told = model.evaluate(x, y, verbose=0, return_dict=True)
    hidden = model.predict(x, verbose=0)
    of_targets = np.take_along_axis(log_softmax(head, hidden), y[..., None], axis=-1)[..., 0]
    assert told["loss"] == pytest.approx(-(WEIGHTS[y] * of_targets).mean(), rel=1e-4)
    assert told["perplexity"] == pytest.approx(np.exp(-of_targets.mean()), rel=1e-4)
    np.testing.assert_allclose(head.log_prob(hidden, y), of_targets, rtol=1e-4)


@pytest.mark.parametrize("kind", HEADS)
def test_saved_with_the_weights(rng, kind, tmp_path):
    model, head = model_of(HEADS[kind](class_weight=WEIGHTS))
    x, y, _ = data(rng)
    want = model.evaluate(x, y, verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert loaded.evaluate(x, y, verbose=0) == want
    assert head.get_config()["class_weight"] is True
    other = built(type(head).from_config(head.get_config()), rng)
    with pytest.raises(ValueError, match="`class_weight` of the head 'head' are not known"):
        other.loss(y[:, 0], other(tf.zeros([len(y), DIM])))
    plain, _ = model_of(HEADS[kind]())
    with pytest.raises(ValueError, match="`class_weight` must be in both, or in neither"):
        plain.load_weights(tmp_path / "m.keras")


@pytest.mark.parametrize("kind", HEADS)
def test_an_optimizer_of_its_own_has_the_weights(rng, kind):
    x, y, _ = data(rng)
    found = []
    for own in (None, kl.optimizers.SGD(0.5)):
        model, head = model_of(
            HEADS[kind](class_weight=WEIGHTS, optimizer=own), optimizer=kl.optimizers.SGD(0.5)
        )
        losses = fit(model, (x, y), batch=6)
        found.append({"losses": np.array(losses), "kernel": tables_of(head)[0].numpy()})
    assert_same(found[1], found[0])


@pytest.mark.parametrize("kind", ["full", "tree"])
@pytest.mark.parametrize("bad", [WEIGHTS[:-1], -WEIGHTS])
def test_no_class_weights(kind, bad):
    with pytest.raises(ValueError, match="`class_weight` must be num_classes=30 numbers from 0 on"):
        HEADS[kind](class_weight=bad)


@pytest.mark.full
@pytest.mark.parametrize("kind", HEADS)
def test_two_devices_have_the_numbers_of_one(rng, kind):
    options = (
        {"class_weight": WEIGHTS} if kind == "tree" else {"class_weight": WEIGHTS, "label_smoothing": 0.1}
    )
    assert_two_devices_are_like_one(rng, lambda: HEADS[kind](**options), mask_zero=True)


SMOOTHING = 0.2


@pytest.mark.parametrize("options", [{}, {"use_bias": False}, {"normalize": True, "temperature": 0.3}])
def test_smoothing_over_all_classes_drawn_is_exact(rng, options):
    heads = [
        kl.layers.SampledSoftmax(CLASSES, CLASSES, "uniform", label_smoothing=SMOOTHING, **options),
        kl.layers.FullSoftmax(CLASSES, label_smoothing=SMOOTHING, **options),
    ]
    vectors, y = tf.constant(rng.normal(size=(9, DIM)), tf.float32), rng.integers(0, CLASSES, 9)
    found = []
    for head in heads:
        built(head, np.random.default_rng(1))
        variables = [table.variable for table in head.softmax_weights.tables]
        for training in (True, False):
            with tf.GradientTape() as tape:
                tape.watch(vectors)
                losses = head.make_loss(reduction="none")(y, head(vectors, training=training))
            gradients = tape.gradient(losses, [vectors, *variables])
            found.append([losses, *(tf.convert_to_tensor(gradient) for gradient in gradients)])
    for other in found[:-1]:
        for got, want in zip(other, found[-1]):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("distribution", ["log_uniform", "in_batch", "mixed"])
def test_smoothing_against_candidates(rng, distribution):
    """By its formula in float64: each candidate stands for as many classes as logQ says."""
    head = kl.layers.SampledSoftmax(
        CLASSES, 0 if distribution == "in_batch" else 7, distribution, label_smoothing=SMOOTHING, seed=3
    )
    built(head, rng)
    drawn, draw = [], head._sampler.draw
    head._sampler.draw = lambda *args: drawn.append(draw(*args)) or drawn[-1]
    vectors, y = rng.normal(size=(9, DIM)).astype("float32"), rng.integers(0, CLASSES, 9)
    got = head.make_loss(reduction="none")(y, head(tf.constant(vectors), training=True)).numpy()
    ids, correction = (x.numpy().astype(np.float64) for x in drawn[-1])
    logits = vectors.astype(np.float64) @ head.kernel.numpy().T + head.bias.numpy()
    for row, target, value in zip(logits, y, got):
        others = ids[ids != target].astype(int)
        shares = np.r_[1, np.exp(correction[ids != target])]
        scores = row[[target, *others]]
        lse = np.log((shares * np.exp(scores)).sum())
        even = lse - (shares * scores).sum() / shares.sum()
        assert value == pytest.approx(0.8 * (lse - row[target]) + 0.2 * even, rel=1e-4)


def test_smoothing_is_for_softmax():
    with pytest.raises(ValueError, match='`label_smoothing` must be 0 where `loss` is not "softmax"'):
        HEADS["sampled"](label_smoothing=0.1, loss="bpr")
    with pytest.raises(ValueError, match=r"`label_smoothing` must be in \[0, 1\)"):
        HEADS["sampled"](label_smoothing=1.0)
