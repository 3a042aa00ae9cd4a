"""`FullSoftmax`: what `Dense` and Keras's cross-entropy compute, in a model and by itself."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _training import assert_same, fit
from layers.heads.softmax._models import (
    CLASSES,
    DIM,
    LENGTH,
    built,
    data,
    log_softmax,
    loss_and_gradients,
    model_of,
)

import keras_largeout as kl
from keras_largeout.ops._library import ops
from keras_largeout.ops.full_softmax import wrapper


def head_of(**options):
    return kl.layers.FullSoftmax(CLASSES, name="head", **options)


def twin_of(model, loss, optimizer="sgd"):
    """The same model with Keras's own Dense and loss."""
    keras.utils.set_random_seed(7)
    ids = keras.Input((LENGTH,), dtype="int32")
    words, small = model.get_layer("words"), model.get_layer("small")
    embedding = keras.layers.Embedding(CLASSES, DIM, mask_zero=words.mask_zero, name="words")
    x = keras.layers.Dense(DIM, activation="tanh", name="small")(embedding(ids))
    dense, head = keras.layers.Dense(CLASSES, name="head"), model.get_layer("head")
    twin = keras.Model(ids, dense(x))
    embedding.set_weights([words.table.numpy()])
    twin.get_layer("small").set_weights(small.get_weights())
    dense.set_weights([head.kernel.numpy().T / head.temperature, head.bias.numpy()])
    twin.compile(optimizer, loss)
    return twin


def hot(y):
    return np.eye(CLASSES, dtype="float32")[np.maximum(y, 0)]


LOSSES = {
    "sparse": (
        {},
        lambda **k: keras.losses.SparseCategoricalCrossentropy(from_logits=True, **k),
        lambda y: y,
    ),
    "smoothed": (
        {"label_smoothing": 0.1},
        lambda **k: keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1, **k),
        hot,
    ),
    "focal": (
        {"focal_gamma": 1.5},
        lambda **k: keras.losses.CategoricalFocalCrossentropy(from_logits=True, alpha=1.0, gamma=1.5, **k),
        hot,
    ),
}


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_gradients_are_those_of_keras(rng, kind, weighted, reduction):
    options, theirs, targets = LOSSES[kind]
    model, head = model_of(head_of(**options), mask_zero=True)
    model.compile("sgd", head.make_loss(reduction=reduction))
    twin = twin_of(model, theirs(reduction=reduction))
    x, y, weight = data(rng)
    weight[:, 1] = 0
    weight = tf.constant(weight) if weighted else None
    for training in (False, True):
        got, of = loss_and_gradients(model, x, np.where(x == 0, -1, y), training, weight)
        want, of_twin = loss_and_gradients(twin, x, targets(y), training, weight)
        np.testing.assert_allclose(got, want, rtol=1e-5)
        pairs = {"small/kernel": "small/kernel", "head/kernel": "head/kernel", "head/bias": "head/bias"}
        pairs |= {"words/embeddings": "words/embeddings"}
        for name, other in pairs.items():
            want = tf.convert_to_tensor(of_twin[other])
            want = tf.transpose(want) if name == "head/kernel" else want
            np.testing.assert_allclose(
                tf.convert_to_tensor(of[name]), want, rtol=1e-4, atol=1e-6, err_msg=name
            )


@pytest.mark.parametrize("kind", LOSSES)
def test_training_is_that_of_keras(rng, kind):
    options, theirs, targets = LOSSES[kind]
    model, head = model_of(head_of(**options), optimizer=keras.optimizers.SGD(0.3, momentum=0.9))
    twin = twin_of(model, theirs(), keras.optimizers.SGD(0.3, momentum=0.9))
    x, y, weight = data(rng, rows=36)
    got = fit(model, (x, y, weight), batch=12, epochs=3)
    want = fit(twin, (x, targets(y), weight), batch=12, epochs=3)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    kernel, bias = twin.get_layer("head").get_weights()
    assert_same(
        {"kernel": head.kernel.numpy(), "bias": head.bias.numpy()}, {"kernel": kernel.T, "bias": bias}
    )
    again = model.evaluate(x, y, sample_weight=weight, batch_size=12, verbose=0)
    assert again == pytest.approx(
        twin.evaluate(x, targets(y), sample_weight=weight, batch_size=12, verbose=0), rel=1e-4
    )


@pytest.mark.parametrize("training", [False, True])
def test_z_loss_temperature_and_smoothing_together(rng, training):
    """By its formula, with the gradients that automatic differentiation makes of it."""
    head = built(head_of(z_loss=0.03, temperature=0.7, label_smoothing=0.2), rng)
    vectors, y = tf.constant(rng.normal(size=(9, DIM)), tf.float32), rng.integers(0, CLASSES, 9)
    kernel, bias = head.kernel.variable, head.bias.variable
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(vectors)
        logits = vectors @ tf.transpose(kernel) / 0.7 + bias
        lse = tf.reduce_logsumexp(logits, axis=1)
        ce = lse - tf.gather(logits, y, batch_dims=1)
        want = tf.reduce_mean(0.8 * ce + 0.2 * (lse - tf.reduce_mean(logits, axis=1)) + 0.03 * lse**2)
        got = head.loss(y, head(vectors, training=training))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for source in (vectors, kernel, bias):
        np.testing.assert_allclose(tape.gradient(got, source), tape.gradient(want, source), atol=1e-6)


def test_tokens_that_do_not_count(rng):
    """Masked, of weight 0, of the ignored class or without a target: as if they were not there."""
    head = built(head_of(label_smoothing=0.1, z_loss=0.01), rng)
    vectors, y = tf.constant(rng.normal(size=(8, DIM)), tf.float32), rng.integers(3, CLASSES, 8)
    kept = np.array([0, 2, 3, 7])
    want = head.loss(y[kept], tf.gather(vectors, kept))
    left_out = np.delete(np.arange(8), kept)
    none, ignored = y.copy(), y.copy()
    none[left_out], ignored[left_out] = -1, 2
    np.testing.assert_allclose(head.loss(none, vectors), want, rtol=1e-6)
    np.testing.assert_allclose(head.make_loss(ignore_class=2)(ignored, vectors), want, rtol=1e-6)
    weight = np.zeros(8, "float32")
    weight[kept] = 1
    wrong = np.where(weight == 0, CLASSES + 5, y)  # not even looked at
    got = head.make_loss(reduction="sum")(wrong, vectors, sample_weight=weight)
    np.testing.assert_allclose(got, want * 4, rtol=1e-6)
    masked = tf.identity(vectors)
    masked._keras_mask = tf.constant(weight > 0)
    np.testing.assert_allclose(head.loss(wrong, masked), want, rtol=1e-6)


@pytest.mark.parametrize("graph", [False, True])
def test_evaluation_has_the_numbers_of_training(rng, graph):
    model, _ = model_of(
        head_of(label_smoothing=0.1, z_loss=0.01),
        mask_zero=True,
        optimizer=kl.optimizers.SGD(0.0),
        run_eagerly=not graph,
        metrics=[kl.metrics.Perplexity(), kl.metrics.TopKAccuracy(3)],
    )
    x, y, _ = data(rng)
    trained = model.fit(x, y, batch_size=12, verbose=0).history
    evaluated = model.evaluate(x, y, batch_size=12, verbose=0, return_dict=True)
    assert set(trained) == set(evaluated) == {"loss", "perplexity", "top_3_accuracy"}
    for name, value in evaluated.items():
        assert trained[name] == [pytest.approx(value, rel=1e-5)]


def test_a_focal_loss_of_certain_targets(rng):
    """Whatever the power: a loss and gradients of 0, and not NaN; z-loss is added to it."""
    vectors = tf.constant(rng.normal(size=(3, DIM)), tf.float32)
    for gamma in (0.5, 1.0, 2.0):
        head = built(head_of(focal_gamma=gamma), rng)
        head.bias.assign(np.where(np.arange(CLASSES) == 2, 200.0, 0.0).astype("float32"))
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            loss = head.loss(np.array([2, 2, 2]), head(vectors, training=True))
        assert float(loss) == 0.0
        np.testing.assert_array_equal(tape.gradient(loss, vectors), np.zeros((3, DIM)))
    y = rng.integers(0, CLASSES, 3)
    logs = log_softmax(built(head := head_of(focal_gamma=2.0, z_loss=0.1), rng), vectors)
    ce = -np.take_along_axis(logs, y[:, None], 1)[:, 0]
    logits = vectors.numpy() @ head.kernel.numpy().T + head.bias.numpy()
    want = np.mean((1 - np.exp(-ce)) ** 2 * ce + 0.1 * np.log(np.exp(logits).sum(axis=1)) ** 2)
    np.testing.assert_allclose(head.loss(y, vectors), want, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.3}, {"z_loss": 0.1}, {"focal_gamma": 2.0}])
def test_perplexity_is_that_of_the_model(rng, options):
    """-log p(target | hidden), whatever else the loss has."""
    model, head = model_of(head_of(**options), metrics=[kl.metrics.Perplexity()])
    x, y, _ = data(rng)
    log_p = log_softmax(head, model.predict(x, verbose=0))
    want = np.exp(-np.take_along_axis(log_p, y[..., None], -1).mean())
    assert model.evaluate(x, y, verbose=0, return_dict=True)["perplexity"] == pytest.approx(want, rel=1e-5)
    assert model.train_on_batch(x, y, return_dict=True)["perplexity"] == pytest.approx(want, rel=1e-5)


def test_log_probs_top_k_sample(rng):
    head = built(head_of(temperature=0.5, label_smoothing=0.1), rng)
    hidden = tf.constant(rng.normal(size=(2, 5, DIM)), tf.float32)
    want = log_softmax(head, hidden)
    np.testing.assert_allclose(head.log_probs(hidden), want, rtol=1e-5, atol=1e-5)
    y = rng.integers(0, CLASSES, (2, 5))
    of_y = np.take_along_axis(want, y[..., None], -1)[..., 0]
    np.testing.assert_allclose(head.log_prob(hidden, y), of_y, rtol=1e-5, atol=1e-5)
    for k in (1, 4, CLASSES):
        scores, ids = head.top_k(hidden, k)
        np.testing.assert_array_equal(ids, np.argsort(-want, axis=-1)[..., :k])
        np.testing.assert_allclose(scores, -np.sort(-want, axis=-1)[..., :k], rtol=1e-5, atol=1e-5)
    exclude = head.top_k(hidden, 3)[1].numpy()[..., ::2]
    ids = head.top_k(hidden, 4, exclude=exclude)[1]
    np.testing.assert_array_equal(ids, np.argsort(-want, axis=-1)[..., [1, 3, 4, 5]])
    np.testing.assert_array_equal(head.sample(hidden, top_k=1), np.argmax(want, axis=-1))
    many = head.sample(tf.repeat(hidden[:1, :1], 4000, axis=0), seed=3).numpy()
    share = np.bincount(many[:, 0], minlength=CLASSES) / 4000
    np.testing.assert_allclose(share, np.exp(want[0, 0]), atol=0.03)


def test_ties_go_to_the_smaller_id():
    head = head_of(kernel_initializer="zeros")
    head.build((None, DIM))
    scores, ids = head.top_k(np.ones((2, DIM), "float32"), 9)
    np.testing.assert_array_equal(ids, np.tile(np.arange(9), (2, 1)))
    np.testing.assert_allclose(scores, np.full((2, 9), -np.log(CLASSES)), rtol=1e-6)


@pytest.mark.parametrize("position", ["all", "last"])
def test_predictor(rng, position, tmp_path):
    model, head = model_of(head_of(), mask_zero=True)
    x, _, _ = data(rng)
    hidden = model.predict(x, verbose=0)
    if position == "last":
        hidden = hidden[np.arange(len(x)), (x != 0).sum(axis=1) - 1]
    serving = head.predictor(model, k=3, position=position)
    out = serving.predict(x, verbose=0)
    np.testing.assert_array_equal(out["ids"], np.argsort(-log_softmax(head, hidden), axis=-1)[..., :3])
    kl.export_saved_model(serving, tmp_path / "export")
    served = tf.saved_model.load(tmp_path / "export")
    np.testing.assert_array_equal(served.serve(tf.constant(x))["ids"], out["ids"])


class Asked:
    """The library's ops, and the arguments of the last call of the gradient."""

    def __getattr__(self, name):
        return getattr(ops, name)

    def largeout_full_softmax_grad(self, *inputs, **attributes):
        self.inputs, self.attributes = inputs, attributes
        return ops.largeout_full_softmax_grad(*inputs, **attributes)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("kind", ["plain", "smoothed", "sampled"])
def test_the_gradients_are_not_computed_again(rng, monkeypatch, kind, policy):
    """What a step asks for is what the head expected: with weights, masks, and a scaled loss."""
    if kind == "sampled":
        head = kl.layers.SampledSoftmax(CLASSES, 9, seed=3, dtype=policy)
    else:
        more = {"label_smoothing": 0.1, "z_loss": 0.01} if kind == "smoothed" else {}
        head = head_of(dtype=policy, **more)
    optimizer = keras.optimizers.LossScaleOptimizer(kl.optimizers.LazyAdam(0.01))
    model, _ = model_of(head, mask_zero=True, optimizer=optimizer, run_eagerly=True)
    asked = Asked()
    monkeypatch.setattr(wrapper, "ops", asked)
    x, y, weight = data(rng, rows=100)
    model.train_on_batch(x, y, sample_weight=weight)
    given = [tf.ones_like(gradient) for gradient in asked.inputs[9:12]]
    again = ops.largeout_full_softmax_grad(*asked.inputs[:9], *given, asked.inputs[12], **asked.attributes)
    factor = np.asarray(again[1]).ravel()[0]  # ones come back, times a factor
    assert factor > 0 and all((np.asarray(part) == np.asarray(part).ravel()[0]).all() for part in again)
