"""`SampledSoftmax`: candidates in training, all classes in evaluation, and ranking losses."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _training import fit
from layers.heads.softmax._models import (
    CLASSES,
    DIM,
    assert_two_devices_are_like_one,
    built,
    data,
    log_softmax,
    loss_and_gradients,
    model_of,
)

import keras_largeout as kl

COUNTS = np.linspace(1, 40, CLASSES)
KINDS = {
    "log_uniform": {"num_sampled": 7},
    "uniform": {"num_sampled": 7, "unique": False},
    "counts": {"num_sampled": 7, "counts": COUNTS},
    "in_batch": {"num_sampled": 0},
    "mixed": {"num_sampled": 5, "counts": COUNTS},
}
LOSSES = ("softmax", "bpr", "binary_crossentropy")


def head_of(distribution="log_uniform", **options):
    options = {**KINDS[distribution], "seed": 3, "name": "head", **options}
    return kl.layers.SampledSoftmax(CLASSES, distribution=distribution, **options)


def losses_of(head, vectors, y, training=True):
    return head.make_loss(reduction="none")(y, head(tf.constant(vectors), training=training)).numpy()


@pytest.mark.parametrize("distribution", KINDS)
def test_same_seed_same_numbers(rng, distribution):
    vectors, y = rng.normal(size=(9, DIM)).astype("float32"), rng.integers(0, CLASSES, 9)
    of_seeds = []
    for seed in (3, 3, 4):
        head = built(head_of(distribution, seed=seed), np.random.default_rng(1))
        of_seeds.append([losses_of(head, vectors, y) for _ in range(3)])
    np.testing.assert_array_equal(of_seeds[0], of_seeds[1])
    if distribution != "in_batch":  # other candidates in each step, and by each seed
        assert len({losses.tobytes() for losses in [*of_seeds[0], *of_seeds[2]]}) == 6


@pytest.mark.parametrize("distribution", ["log_uniform", "mixed"])
def test_evaluation_is_exact(rng, distribution):
    model, head = model_of(head_of(distribution, temperature=0.5), metrics=[kl.metrics.Perplexity()])
    full = kl.layers.FullSoftmax(CLASSES, temperature=0.5, name="full")
    full.build((None, DIM))
    for name in ("kernel", "bias"):
        getattr(full, name).assign(getattr(head, name).numpy())
    x, y, _ = data(rng)
    hidden = tf.constant(model.predict(x, verbose=0))
    want = float(full.loss(y, hidden))
    told = model.evaluate(x, y, verbose=0, return_dict=True)
    assert told["loss"] == pytest.approx(want, rel=1e-5)
    assert told["perplexity"] == pytest.approx(np.exp(want), rel=1e-5)
    for name, *arguments in (("log_prob", y), ("log_probs",), ("top_k", 4)):
        tf.nest.map_structure(
            np.testing.assert_array_equal,
            getattr(head, name)(hidden, *arguments),
            getattr(full, name)(hidden, *arguments),
        )


@pytest.mark.parametrize("num_sampled", [7, CLASSES])
def test_lists_of_targets_beside_tensorflow(rng, num_sampled):
    """A list has the mean of `num_true=1`, of an uncorrected target; with all classes also `num_true=3`."""
    head = built(kl.layers.SampledSoftmax(CLASSES, num_sampled, "log_uniform", seed=3), rng)
    drawn, draw = [], head._sampler.draw
    head._sampler.draw = lambda *args: drawn.append(draw(*args)) or drawn[-1]
    vectors = tf.constant(rng.normal(size=(9, DIM)), tf.float32)
    lists = rng.permuted(np.tile(np.arange(CLASSES), (9, 1)), axis=1)[:, :3]
    got = head.make_loss(reduction="none")(lists, head(vectors, training=True))
    ids, correction = drawn[-1]

    def of_tensorflow(labels):
        width = labels.shape[1]
        return tf.nn.sampled_softmax_loss(
            head.kernel.numpy(),
            head.bias.numpy(),
            labels,
            vectors,
            len(ids),
            CLASSES,
            num_true=width,
            sampled_values=(ids, tf.ones([9, width]), tf.exp(-correction)),
        )

    each = np.mean([of_tensorflow(lists[:, i : i + 1]) for i in range(3)], axis=0)
    np.testing.assert_allclose(got, each, rtol=1e-5)
    together = of_tensorflow(lists).numpy()
    assert np.allclose(together, got, rtol=1e-5) == (num_sampled == CLASSES)


def test_all_classes_drawn_is_the_full_softmax(rng):
    """Of every class one is a candidate: losses and gradients are those of evaluation."""
    model, _ = model_of(head_of("uniform", num_sampled=CLASSES, unique=True))
    x, y, weight = data(rng)
    (got, of), (want, exact) = (
        loss_and_gradients(model, x, y, training, tf.constant(weight)) for training in (True, False)
    )
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for name, gradient in exact.items():
        found = tf.convert_to_tensor(of[name])
        np.testing.assert_allclose(found, tf.convert_to_tensor(gradient), atol=1e-6, err_msg=name)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("distribution", ["log_uniform", "in_batch"])
def test_other_rows_stay(rng, distribution, loss):
    model, head = model_of(head_of(distribution, loss=loss))
    kernel, bias = head.kernel.numpy(), head.bias.numpy()
    x, y, _ = data(rng, rows=2)
    _, gradients = loss_and_gradients(model, x, y)
    assert all(isinstance(gradients[f"head/{name}"], tf.IndexedSlices) for name in ("kernel", "bias"))
    drawn = []
    draw = head._sampler.draw
    head._sampler.draw = lambda *args: drawn.append(draw(*args)) or drawn[-1]
    model.run_eagerly = True
    model.train_on_batch(x, y)
    touched = np.union1d(drawn[-1].ids, y)
    assert 0 < len(touched) < CLASSES
    for before, after in ((kernel, head.kernel.numpy()), (bias, head.bias.numpy())):
        changed = np.any((before != after).reshape(CLASSES, -1), axis=1)
        np.testing.assert_array_equal(np.flatnonzero(changed), touched)


def ranking_truth(head, vectors, y, candidates):
    """The losses in float64, by the formulas of the papers, target by target."""
    kernel, bias = head.kernel.numpy().astype(np.float64), head.bias.numpy().astype(np.float64)
    scores = vectors.astype(np.float64) / head.temperature @ kernel.T + bias
    losses = []
    for row, target in zip(scores, y):
        others = row[[c for c in candidates if c != target]]
        if head.loss_kind == "bpr":
            losses.append(np.mean(np.log1p(np.exp(others - row[target]))) if len(others) else 0)
            continue
        alpha, t = len(others) / (CLASSES - 1), head.calibration
        beta = alpha * (t * (1 - 1 / alpha) + 1 / alpha) if len(others) else 0
        positive = 1 / (1 + np.exp(-row[target]))
        total = beta * np.log(positive) + np.sum(np.log(1 - 1 / (1 + np.exp(-others))))
        losses.append(-total / (len(others) + 1))
    return np.array(losses)


@pytest.mark.parametrize("loss", [("bpr", 0.75), *(("binary_crossentropy", t) for t in (0.0, 0.75, 1.0))])
@pytest.mark.parametrize("distribution", KINDS)
def test_ranking_losses(rng, distribution, loss):
    head = built(head_of(distribution, loss=loss[0], calibration=loss[1], temperature=0.8), rng)
    vectors, y = rng.normal(size=(9, DIM)).astype("float32"), rng.integers(0, CLASSES, 9)
    drawn, draw = [], head._sampler.draw
    head._sampler.draw = lambda *args: drawn.append(draw(*args)) or drawn[-1]
    got = losses_of(head, vectors, y)
    np.testing.assert_allclose(got, ranking_truth(head, vectors, y, drawn[-1].ids.numpy()), rtol=1e-5)


def contrastive(distribution="uniform", **options):
    return head_of(distribution, loss="cosine_contrastive", normalize=True, **options)


@pytest.mark.parametrize("distribution", KINDS)
def test_cosine_contrastive_loss(rng, distribution):
    """In float64, by the formula of the paper, target by target; and its gradients by differences."""
    head = built(contrastive(distribution, negative_margin=0.2, negative_weight=3.0), rng)
    vectors, y = rng.normal(size=(9, DIM)).astype("float32"), rng.integers(0, CLASSES, 9)
    drawn, draw = [], head._sampler.draw
    head._sampler.draw = lambda *args: drawn.append(draw(*args)) or drawn[-1]

    def truth(hidden, kernel, candidates):
        hidden, kernel = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (hidden, kernel))
        losses = []
        for row, target in zip(hidden @ kernel.T, y):
            others = row[[c for c in candidates if c != target]]
            losses.append(1 - row[target] + 3.0 * np.mean(np.maximum(0, others - 0.2)))
        return np.array(losses)

    kernel = head.kernel.numpy().astype(np.float64)
    x = tf.constant(vectors)
    with tf.GradientTape() as tape:
        tape.watch(x)
        losses = head.make_loss(reduction="none")(y, head(x, training=True))
    candidates = drawn[-1].ids.numpy()
    np.testing.assert_allclose(losses, truth(vectors.astype(np.float64), kernel, candidates), atol=1e-5)
    of_x, of_kernel = map(tf.convert_to_tensor, tape.gradient(losses, [x, head.kernel.variable]))
    for got, which, place in ((of_x, 0, (4, 2)), (of_kernel, 1, (int(y[3]), 1))):
        sides = []
        for step in (1e-6, -1e-6):
            moved = [vectors.astype(np.float64), kernel.copy()]
            moved[which][place] += step
            sides.append(truth(*moved, candidates).sum())
        assert float(got[place]) == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-4)


def test_cosine_contrastive_learns(rng):
    head = contrastive(num_sampled=CLASSES, unique=True, negative_margin=0.3, negative_weight=5.0)
    model, _ = model_of(head, optimizer=kl.optimizers.LazyAdam(0.05), metrics=[kl.metrics.TopKAccuracy(3)])
    x = rng.integers(0, CLASSES, (240, 4)).astype("int32")
    y = (7 * x + 3) % CLASSES
    model.fit(x, y, batch_size=24, epochs=6, verbose=0)
    assert model.evaluate(x, y, verbose=0)[1] > 0.9


@pytest.mark.parametrize("loss", LOSSES[1:])
def test_scores_of_ranking_losses_are_no_log_probabilities(rng, loss):
    head = built(head_of(loss=loss), rng)
    hidden = tf.constant(rng.normal(size=(3, DIM)), tf.float32)
    scores, ids = head.top_k(hidden, 4)
    logits = hidden @ head.kernel.numpy().T + head.bias.numpy()
    np.testing.assert_array_equal(ids, np.argsort(-logits, axis=1)[:, :4])
    np.testing.assert_allclose(scores, -np.sort(-logits, axis=1)[:, :4], rtol=1e-5)
    for call in (head.log_probs, head.sample, lambda hidden: head.log_prob(hidden, [1, 2, 3])):
        with pytest.raises(ValueError, match=rf"loss='{loss}'"):
            call(hidden)
    with pytest.raises(ValueError, match="`y_pred` must be the output of a head whose losses are -log p"):
        kl.metrics.Perplexity().update_state([1, 2, 3], head(hidden))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_batch_of_one_class(rng, loss):
    """The only candidate is everyone's target: nothing is compared, and nothing is NaN."""
    head = built(head_of("in_batch", loss=loss), rng)
    vectors = tf.constant(rng.normal(size=(4, DIM)), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        value = head.loss(np.full(4, 5), head(vectors, training=True))
    gradients = tape.gradient(value, [vectors, head.kernel.variable, head.bias.variable])
    assert float(value) == 0
    assert all(not np.any(tf.convert_to_tensor(gradient)) for gradient in gradients)


@pytest.mark.parametrize("distribution", ["log_uniform", "mixed"])
def test_learns(rng, distribution):
    model, _ = model_of(head_of(distribution), optimizer=kl.optimizers.LazyAdam(0.05))
    x = rng.integers(0, CLASSES, (240, 4)).astype("int32")
    y = (7 * x + 3) % CLASSES
    before = model.evaluate(x, y, verbose=0)
    model.fit(x, y, batch_size=24, epochs=6, verbose=0)
    assert model.evaluate(x, y, verbose=0) < 0.5 * before


@pytest.mark.full
@pytest.mark.parametrize("distribution", ["counts", "log_uniform"])
def test_a_training_goes_on_after_a_save(rng, tmp_path, distribution):
    x, y, _ = data(rng, rows=24)
    model, head = model_of(head_of(distribution))
    fit(model, (x, y), batch=12)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    other = loaded.get_layer("head")
    assert other.get_config()["counts"] is (None if distribution == "log_uniform" else True)
    if distribution != "log_uniform":
        np.testing.assert_array_equal(other._counts.variable.numpy(), head._counts.variable.numpy())
    assert fit(model, (x, y), batch=12, epochs=2) == fit(loaded, (x, y), batch=12, epochs=2)
    for one, two in zip(model.weights, loaded.weights):
        np.testing.assert_array_equal(one.numpy(), two.numpy(), err_msg=one.path)


@pytest.mark.full
@pytest.mark.parametrize("loss", LOSSES[:2])
def test_an_evaluation_between_leaves_the_candidates_alone(rng, loss):
    """The same seed draws the same ones, step by step: whether or not validation data are given."""
    x, y, _ = data(rng, rows=24)
    found = []
    for validation in (None, (x, y)):
        model, _ = model_of(head_of(loss=loss))
        found.append(fit(model, (x, y), batch=12, epochs=2, validation_data=validation))
    assert found[0] == found[1]


@pytest.mark.full
@pytest.mark.parametrize(
    "distribution, loss", [("mixed", "softmax"), ("in_batch", "bpr"), ("uniform", "binary_crossentropy")]
)
def test_two_devices_have_the_numbers_of_one(rng, distribution, loss):
    assert_two_devices_are_like_one(rng, lambda: head_of(distribution, loss=loss), mask_zero=True)


def test_log_probs_after_training(rng):
    model, head = model_of(head_of())
    x, y, _ = data(rng)
    model.fit(x, y, verbose=0)
    hidden = model.predict(x, verbose=0)
    np.testing.assert_allclose(head.log_probs(hidden), log_softmax(head, hidden), rtol=1e-4, atol=1e-5)
