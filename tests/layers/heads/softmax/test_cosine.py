"""Heads whose scores are cosines: `normalize`, in every path that computes scores."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of
from _training import assert_same, fit
from layers.heads.softmax._models import CLASSES, DIM, LENGTH, built, data, loss_and_gradients, model_of

import keras_largeout as kl

TEMPERATURE = 0.2
HEADS = {
    "full": lambda **options: kl.layers.FullSoftmax(CLASSES, **options),
    "sampled": lambda **options: kl.layers.SampledSoftmax(CLASSES, 7, seed=3, **options),
}


def head_of(kind="full", **options):
    return HEADS[kind](**{"normalize": True, "temperature": TEMPERATURE, "name": "head", **options})


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def cosine_log_probs(head, hidden):
    """log p of all classes in float64."""
    hidden, kernel = (np.asarray(x).astype(np.float64) for x in (hidden, head.kernel.numpy()))
    logits = unit(hidden) @ unit(kernel).T / head.temperature
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def by_dense(vectors, kernel, y, temperature=TEMPERATURE):
    """The losses and their gradients, all logits at once, in float64."""
    vectors, kernel = (tf.constant(x, tf.float64) for x in (vectors, kernel))
    with tf.GradientTape() as tape:
        tape.watch([vectors, kernel])
        rows = kernel / tf.norm(kernel, axis=1, keepdims=True)
        logits = (vectors / tf.norm(vectors, axis=1, keepdims=True)) @ tf.transpose(rows) / temperature
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
    return losses, tape.gradient(losses, [vectors, kernel])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind, options", [("full", {}), ("sampled", {"num_sampled": CLASSES})])
def test_losses_and_gradients_are_those_of_all_logits(rng, kind, options, training):
    """A `SampledSoftmax` that draws all classes is exact."""
    if kind == "sampled":
        head = kl.layers.SampledSoftmax(
            CLASSES, CLASSES, distribution="uniform", normalize=True, temperature=TEMPERATURE
        )
    else:
        head = head_of()
    built(head, rng)
    vectors, y = rng.normal(size=(9, DIM)).astype("float32"), rng.integers(0, CLASSES, 9)
    want, (of_vectors, of_kernel) = by_dense(vectors, head.kernel.numpy(), y)
    loss, vectors = head.make_loss(reduction="sum"), tf.constant(vectors)
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        got = loss(y, head(vectors, training=training))
    found = tape.gradient(got, [vectors, head.kernel.variable])
    np.testing.assert_allclose(got, tf.reduce_sum(want), rtol=1e-5)
    np.testing.assert_allclose(found[0], of_vectors, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tf.convert_to_tensor(found[1]), of_kernel, rtol=1e-4, atol=1e-5)


def test_candidates_alone_are_normalized(rng):
    """The loss of a step by its formula, and gradients of no other rows."""
    head = built(head_of("sampled"), rng)
    drawn, draw = [], head._sampler.draw
    head._sampler.draw = lambda *args: drawn.append(draw(*args)) or drawn[-1]
    vectors, y = tf.constant(rng.normal(size=(9, DIM)), tf.float32), rng.integers(0, CLASSES, 9)
    with tf.GradientTape() as tape:
        got = head.make_loss(reduction="none")(y, head(vectors, training=True))
        total = tf.reduce_sum(got)
    ids, correction = (x.numpy() for x in drawn[-1])
    scores = unit(vectors.numpy().astype(np.float64)) @ unit(head.kernel.numpy()).T / TEMPERATURE
    for token, (row, target) in enumerate(zip(scores, y)):
        others = np.exp(row[ids] + correction)[ids != target].sum()
        np.testing.assert_allclose(got[token], np.log1p(others / np.exp(row[target])), rtol=1e-5)
    gradient = tape.gradient(total, head.kernel.variable)
    assert isinstance(gradient, tf.IndexedSlices)
    assert set(gradient.indices.numpy()) <= set(ids) | set(y)


@pytest.mark.full
@pytest.mark.parametrize("kind", HEADS)
def test_every_path_has_the_same_scores(rng, kind, tmp_path):
    model, head = model_of(head_of(kind), metrics=[kl.metrics.Perplexity(), kl.metrics.TopKAccuracy(3)])
    x, y, _ = data(rng)
    model.fit(x, y, verbose=0)
    hidden = model.predict(x, verbose=0)
    want = cosine_log_probs(head, hidden)
    assert head.bias is None
    of_targets = np.take_along_axis(want, y[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(head.log_prob(hidden, y), of_targets, rtol=1e-4)
    np.testing.assert_allclose(head.log_probs(hidden), want, rtol=1e-4)
    best = np.argsort(-want, axis=-1)[..., :3]
    of_best = np.take_along_axis(want, best, axis=-1)
    told = model.evaluate(x, y, verbose=0, return_dict=True)
    assert told["loss"] == pytest.approx(-of_targets.mean(), rel=1e-4)
    assert told["perplexity"] == pytest.approx(np.exp(-of_targets.mean()), rel=1e-4)
    assert told["top_3_accuracy"] == pytest.approx((best == y[..., None]).any(axis=-1).mean())
    predictor = head.predictor(model, k=3)
    kl.export_saved_model(predictor, tmp_path / "served")
    served = tf.saved_model.load(tmp_path / "served")
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    again = loaded.get_layer("head").predictor(loaded, k=3)
    for found in (predictor.predict(x, verbose=0), served.serve(tf.constant(x)), again.predict(x, verbose=0)):
        np.testing.assert_array_equal(found["ids"], best)
        np.testing.assert_allclose(found["scores"], of_best, rtol=1e-4)
    np.testing.assert_array_equal(head.sample(hidden, top_k=1), best[..., 0])
    left = head.top_k(hidden, 2, exclude=best[..., :1])
    np.testing.assert_array_equal(left[1], best[..., 1:])


def test_lengths_make_no_difference(rng):
    head = built(head_of(), rng)
    vectors, y = rng.normal(size=(5, DIM)).astype("float32"), rng.integers(0, CLASSES, 5)
    before = head.log_prob(vectors, y).numpy()
    head.kernel.assign(head.kernel.numpy() * rng.uniform(0.1, 10, (CLASSES, 1)).astype("float32"))
    np.testing.assert_allclose(head.log_prob(vectors * np.float32(7), y), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", HEADS)
def test_vectors_of_length_zero_have_finite_gradients(rng, kind):
    head = head_of(kind, kernel_initializer="zeros")
    vectors = tf.zeros([3, DIM])
    head(vectors)
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        losses = head.make_loss(reduction="none")([0, 1, 2], head(vectors))
    np.testing.assert_allclose(losses, np.log(CLASSES), rtol=1e-6)
    assert np.isfinite(tape.gradient(losses, vectors)).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16"])
@pytest.mark.parametrize("kind", HEADS)
def test_bfloat16(rng, kind, dtype):
    head = built(head_of(kind, dtype=dtype), rng)
    vectors, y = tf.constant(rng.normal(size=(9, DIM)), tf.bfloat16), rng.integers(0, CLASSES, 9)
    kernel = head.kernel.numpy().astype(np.float32)
    want, (of_vectors, of_kernel) = by_dense(tf.cast(vectors, tf.float32).numpy(), kernel, y)
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        losses = head.make_loss(reduction="none")(y, head(vectors))
    np.testing.assert_allclose(tf.cast(losses, tf.float64), want, rtol=0.03, atol=0.03)
    found = tape.gradient(losses, [vectors, head.kernel.variable])
    for gradient, exact in zip(found, (of_vectors, of_kernel)):
        np.testing.assert_allclose(tf.cast(gradient, tf.float64), exact, atol=0.05 * np.abs(exact).max())


def test_no_bias():
    with pytest.raises(ValueError, match=r"`use_bias` must be False or None where `normalize` is True"):
        head_of(use_bias=True)
    assert head_of(use_bias=False).use_bias is head_of().use_bias is False
    assert kl.layers.FullSoftmax(CLASSES).use_bias is True


@pytest.mark.parametrize("kind", HEADS)
def test_config(kind):
    head = type(head_of(kind)).from_config(head_of(kind).get_config())
    assert head.normalize and head.temperature == TEMPERATURE and not head.use_bias


class Subclassed(kl.Model):
    def __init__(self, head):
        super().__init__()
        self.words, self.head = kl.layers.ShardedEmbedding(CLASSES, DIM), head

    def call(self, ids, training=False):
        return self.head(self.words(ids), training=training)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_subclassed_and_eager_models(rng, kind, eager):
    head = head_of(kind)
    model = Subclassed(head)
    model.compile(kl.optimizers.LazyAdam(0.05), loss=head.loss, run_eagerly=eager)
    x = rng.integers(0, CLASSES, (60, LENGTH)).astype("int32")
    y = (7 * x + 3) % CLASSES
    losses = fit(model, (x, y), batch=20, epochs=4)
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("keras_embedding", [False, True])
def test_a_shared_kernel_is_normalized_in_the_head_alone(rng, kind, keras_embedding):
    layer = keras.layers.Embedding if keras_embedding else kl.layers.ShardedEmbedding
    words = layer(CLASSES, DIM, name="words")
    ids = keras.Input((LENGTH,), dtype="int32")
    head = head_of(kind, kernel=words)
    model = kl.Model(ids, head(words(ids)))
    model.compile("sgd" if keras_embedding else kl.optimizers.SGD(0.1), loss=head.loss)
    x, y, _ = data(rng)
    hidden = model.predict(x, verbose=0)
    table = head.kernel.numpy()
    np.testing.assert_array_equal(hidden, table[x])
    of_targets = np.take_along_axis(cosine_log_probs(head, hidden), y[..., None], axis=-1)
    assert model.evaluate(x, y, verbose=0) == pytest.approx(-of_targets.mean(), rel=1e-4)
    _, gradients = loss_and_gradients(model, x, y, training=False)
    (gradient,) = (tf.convert_to_tensor(found) for found in gradients.values())
    _, (of_vectors, of_kernel) = by_dense(hidden.reshape(-1, DIM), table, y.reshape(-1))
    of_kernel = of_kernel.numpy()
    np.add.at(of_kernel, x.reshape(-1), of_vectors.numpy())
    np.testing.assert_allclose(gradient, of_kernel / y.size, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", HEADS)
def test_an_optimizer_of_its_own_trains_it_alike(rng, kind):
    x, y, _ = data(rng)
    found = []
    for own in (None, kl.optimizers.SGD(0.5)):
        model, head = model_of(head_of(kind, optimizer=own), optimizer=kl.optimizers.SGD(0.5))
        losses = fit(model, (x, y), batch=6)
        found.append({"losses": np.array(losses), "kernel": head.kernel.numpy()})
    assert_same(found[1], found[0])


@pytest.mark.full
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_two_devices_have_the_numbers_of_one(rng, kind, tied):
    x, y, weight = data(rng, rows=16)
    y[3] = -1
    found = []
    for devices in (1, 2):
        with strategy_of(devices).scope():
            keras.utils.set_random_seed(7)
            words = kl.layers.ShardedEmbedding(CLASSES, DIM, placement="range" if devices > 1 else "auto")
            ids = keras.Input((LENGTH,), dtype="int32")
            hidden = keras.layers.Dense(DIM, name="small")(words(ids))
            head = head_of(kind, kernel=words if tied else None)
            model = kl.Model(ids, head(hidden))
            head.kernel.assign(np.random.default_rng(7).normal(size=(CLASSES, DIM)).astype("float32"))
            model.compile(kl.optimizers.LazyAdam(0.01), loss=head.loss)
        losses = fit(model, (x, y, weight), batch=8)
        top = head.predictor(model, k=3).predict(x, verbose=0)["scores"]
        evaluated = model.evaluate(x[:13], y[:13], batch_size=8, verbose=0)
        arrays = {"losses": losses, "kernel": head.kernel.numpy(), "top": top, "evaluated": evaluated}
        found.append({name: np.array(value) for name, value in arrays.items()})
    assert_same(found[1], found[0])
