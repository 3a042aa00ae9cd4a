"""Heads with a margin between the cosine of the target and the others, in the loss of training alone."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from layers.heads.softmax._models import CLASSES, DIM, assert_two_devices_are_like_one, built, data, model_of

import keras_largeout as kl

TEMPERATURE = 0.2
MARGINS = [("arcface", 0.5), ("arcface", 1.4), ("cosface", 0.35)]
HEADS = {
    "full": lambda **options: kl.layers.FullSoftmax(CLASSES, **options),
    "sampled": lambda **options: kl.layers.SampledSoftmax(CLASSES, CLASSES, "uniform", **options),
}


def head_of(kind, margin, **options):
    options = {"normalize": True, "temperature": TEMPERATURE, "margin": margin, "name": "head", **options}
    return HEADS[kind](**options)


def lowered(cosines, margin):
    """By the angle."""
    kind, m = margin
    if kind == "cosface":
        return cosines - m
    angles = tf.acos(cosines)
    return tf.where(angles + m <= np.pi, tf.cos(angles + m), cosines - m * np.sin(m))


def by_dense(vectors, kernel, y, margin, z_loss=0.0):
    """The losses and their gradients, of all logits at once, in float64."""
    vectors, kernel = (tf.constant(x, tf.float64) for x in (vectors, kernel))
    with tf.GradientTape() as tape:
        tape.watch([vectors, kernel])
        rows = kernel / tf.norm(kernel, axis=1, keepdims=True)
        cosines = vectors / tf.norm(vectors, axis=1, keepdims=True) @ tf.transpose(rows)
        hot = tf.one_hot(y, CLASSES, dtype=tf.float64)
        target = lowered(tf.gather(cosines, y, batch_dims=1), margin)
        logits = (cosines * (1 - hot) + target[:, None] * hot) / TEMPERATURE
        losses = tf.nn.softmax_cross_entropy_with_logits(hot, logits)
        losses += z_loss * tf.reduce_logsumexp(logits, axis=1) ** 2
    return losses, tape.gradient(losses, [vectors, kernel])


def angles_of_all_sizes(head, rng, tokens=24):
    """Vectors, and targets at angles from near 0 to near pi."""
    y = rng.integers(0, CLASSES, tokens)
    rows = head.kernel.numpy()[y]
    along = np.linspace(-4, 4, tokens)[:, None] * rows
    return (along + rng.normal(size=(tokens, DIM))).astype("float32"), y


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize(("kind", "z_loss"), [("full", 0.0), ("full", 0.02), ("sampled", 0.0)])
def test_losses_and_gradients_are_those_of_all_logits(rng, kind, margin, z_loss):
    """A `SampledSoftmax` that draws all classes is exact."""
    head = built(head_of(kind, margin, **({"z_loss": z_loss} if z_loss else {})), rng)
    vectors, y = angles_of_all_sizes(head, rng)
    want, (of_vectors, of_kernel) = by_dense(vectors, head.kernel.numpy(), y, margin, z_loss)
    vectors = tf.constant(vectors)
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        losses = head.make_loss(reduction="none")(y, head(vectors, training=True))
    found = tape.gradient(losses, [vectors, head.kernel.variable])
    np.testing.assert_allclose(losses, want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[0], of_vectors, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(tf.convert_to_tensor(found[1]), of_kernel, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("margin", MARGINS[:2])
def test_the_score_falls_with_the_angle(margin):
    head = head_of("full", margin)
    cosines = tf.cos(tf.linspace(0.0, np.pi, 1001))
    scores = head._margin.lowered(cosines / TEMPERATURE, TEMPERATURE).numpy()
    assert (np.diff(scores) < 1e-5).all()
    assert (scores * TEMPERATURE < cosines.numpy()).all()


@pytest.mark.parametrize("kind", HEADS)
def test_only_the_training_loss_has_it(rng, kind):
    model, head = model_of(head_of(kind, MARGINS[0]), metrics=[kl.metrics.Perplexity()])
    plain = built(head_of(kind, None, name="plain"), rng)
    plain.kernel.assign(head.kernel.numpy())
    x, y, _ = data(rng)
    hidden = tf.constant(model.predict(x, verbose=0))
    of_targets = plain.log_prob(hidden, y).numpy()
    want = -of_targets.mean()
    told = model.evaluate(x, y, verbose=0, return_dict=True)
    assert told["loss"] == pytest.approx(want, rel=1e-5)
    np.testing.assert_array_equal(head.log_prob(hidden, y), of_targets)
    for got, exact in zip(head.top_k(hidden, 3), plain.top_k(hidden, 3)):
        np.testing.assert_array_equal(got, exact)
    trained = model.train_on_batch(x, y, return_dict=True)
    assert trained["loss"] > want + 0.5
    assert trained["perplexity"] == pytest.approx(np.exp(want), rel=1e-4)


@pytest.mark.parametrize("loss", ["softmax", "bpr"])
def test_against_candidates(rng, loss):
    head = kl.layers.SampledSoftmax(CLASSES, 7, loss=loss, normalize=True, margin=("cosface", 0.3), seed=3)
    plain = kl.layers.SampledSoftmax(CLASSES, 7, loss=loss, normalize=True, seed=3)
    built(head, rng), built(plain, rng).kernel.assign(head.kernel.numpy())
    vectors, y = tf.constant(rng.normal(size=(9, DIM)), tf.float32), rng.integers(0, CLASSES, 9)
    drawn, draw = [], head._sampler.draw
    head._sampler.draw = lambda *args: drawn.append(draw(*args)) or drawn[-1]
    got, without = (
        one.make_loss(reduction="none")(y, one(vectors, training=True)).numpy() for one in (head, plain)
    )
    if loss == "softmax":
        np.testing.assert_allclose(np.expm1(got), np.exp(0.3) * np.expm1(without), rtol=1e-5)
        return
    scores = np.float64(vectors) / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = scores @ (head.kernel.numpy() / np.linalg.norm(head.kernel.numpy(), axis=1, keepdims=True)).T
    for row, target, value in zip(scores, y, got):
        others = row[[c for c in drawn[-1].ids.numpy() if c != target]]
        assert value == pytest.approx(np.log1p(np.exp(others - row[target] + 0.3)).mean(), rel=1e-5)


@pytest.mark.parametrize("kind", HEADS)
def test_a_vector_along_its_row_has_finite_gradients(rng, kind):
    head = built(head_of(kind, MARGINS[0]), rng)
    for sign in (1, -1):
        vectors = tf.constant(sign * head.kernel.numpy()[:4])
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            loss = head.loss(np.arange(4), head(vectors, training=True))
        for gradient in tape.gradient(loss, [vectors, head.kernel.variable]):
            assert np.isfinite(tf.convert_to_tensor(gradient)).all()


def test_lists_of_targets(rng):
    """Each label of the list is lowered in its turn."""
    head = built(head_of("full", MARGINS[0]), rng)
    vectors = rng.normal(size=(3, DIM)).astype("float32")
    lists = np.array([[1, 2], [3, -1], [5, 1]])
    loss = head.make_loss(reduction="none")
    got = loss(lists, head(tf.constant(vectors), training=True))
    singles = [loss(np.maximum(lists[:, i], 0), head(tf.constant(vectors), training=True)) for i in (0, 1)]
    np.testing.assert_allclose(
        got, np.where(lists[:, 1] >= 0, np.mean(singles, axis=0), singles[0]), rtol=1e-5
    )


@pytest.mark.parametrize("kind", HEADS)
def test_config(kind):
    head = type(head_of(kind, None)).from_config(head_of(kind, ["arcface", 0.5]).get_config())
    assert head.get_config()["margin"] == ("arcface", 0.5)


@pytest.mark.parametrize(
    "margin", ["arcface", ("sphereface", 2), ("arcface", 1.6), ("cosface", -0.1), ("cosface", np.nan), ("a",)]
)
def test_no_margin(margin):
    with pytest.raises(ValueError, match=r'`margin` must be None, \("arcface", m\) with m in \[0, pi / 2\]'):
        head_of("full", margin)


def test_what_does_not_go_with_a_margin():
    with pytest.raises(ValueError, match="`margin` must be None without `normalize`"):
        head_of("sampled", MARGINS[0], normalize=False)
    with pytest.raises(ValueError, match="`label_smoothing` must be 0 with a `margin`"):
        head_of("full", MARGINS[0], label_smoothing=0.1)


def test_a_frozen_head_gives_its_rows_no_gradient(rng):
    words = kl.layers.ShardedEmbedding(CLASSES, DIM)
    head = head_of("full", MARGINS[0], kernel=words)
    head.trainable = False
    vectors = tf.constant(rng.normal(size=(4, DIM)), tf.float32)
    head(vectors)
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        loss = head.loss(np.arange(4), head(vectors, training=True))
    of_vectors, of_rows = tape.gradient(loss, [vectors, words.table.variable])
    assert np.any(of_vectors) and (of_rows is None or not np.any(tf.convert_to_tensor(of_rows)))


@pytest.mark.full
@pytest.mark.parametrize("kind", HEADS)
def test_two_devices_have_the_numbers_of_one(rng, kind):
    sgd = functools.partial(kl.optimizers.SGD, 0.1)
    assert_two_devices_are_like_one(rng, lambda: head_of(kind, MARGINS[0]), sgd)
