"""Sample weights of single targets: a token learns a distribution over a few classes, such as a teacher's."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl

CLASSES, DIM, LISTED = 20, 5, 4
HEADS = {
    "tree": kl.layers.HierarchicalSoftmax,
    "full": kl.layers.FullSoftmax,
    "cosine": functools.partial(kl.layers.FullSoftmax, normalize=True, temperature=0.2),
    "class weights": functools.partial(kl.layers.FullSoftmax, class_weight=np.ones(CLASSES)),
    "sampled": functools.partial(kl.layers.SampledSoftmax, num_sampled=4),
}


@pytest.fixture
def batch(rng):
    """Return hidden vectors `[2, 3, dim]`, ids `[2, 3, listed]` and their probabilities."""
    ids = rng.permuted(np.tile(np.arange(CLASSES), (2, 3, 1)), axis=-1)[..., :LISTED]
    ids[0, 0, 2:] = ids[1, 1] = -1  # two targets, and none
    probabilities = rng.dirichlet(np.ones(LISTED), (2, 3)).astype("float32")
    probabilities[0, 0] /= probabilities[0, 0, :2].sum()  # what stands beside a -1 has no effect
    return rng.normal(size=(2, 3, DIM)).astype("float32"), ids, probabilities


def built(kind):
    head = HEADS[kind](CLASSES)
    head.build((None, DIM))
    return head


def dense(ids, probabilities):
    """Return the same distributions over all classes, float64 `[2, 3, classes]`."""
    places = np.eye(CLASSES + 1)[ids][..., :CLASSES]  # of -1: the column that is cut off
    return (probabilities[..., None].astype("float64") * places).sum(-2)


def test_loss_and_gradients_of_a_full_softmax_are_those_of_float64(batch, rng):
    hidden, ids, probabilities = batch
    probabilities *= np.array([2.0, 0.5, 1], "float32")[:, None]  # weights of tokens, times theirs
    head = built("full")
    head.bias.assign(rng.normal(size=CLASSES))
    kernel, bias = (np.float64(table.numpy()) for table in (head.kernel, head.bias))
    given = tf.constant(hidden)
    with tf.GradientTape() as tape:
        tape.watch(given)
        loss = head.loss(ids, given, probabilities)
    variables = head.kernel.variable, head.bias.variable
    d_hidden, d_kernel, d_bias = (tf.convert_to_tensor(d) for d in tape.gradient(loss, [given, *variables]))
    logits = hidden @ kernel.T + bias
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    target = dense(ids, probabilities)
    d_logits = (np.exp(log_p) * target.sum(-1, keepdims=True) - target) / 5  # five tokens have targets
    assert float(loss) == pytest.approx(-(target * log_p).sum() / 5, rel=1e-5)
    np.testing.assert_allclose(d_hidden, d_logits @ kernel, atol=1e-5)
    np.testing.assert_allclose(d_kernel, np.einsum("btc,btd->cd", d_logits, hidden), atol=1e-5)
    np.testing.assert_allclose(d_bias, d_logits.sum((0, 1)), atol=1e-5)


@pytest.mark.parametrize("kind", HEADS)
def test_the_loss_is_the_cross_entropy_of_keras(kind, batch):
    hidden, ids, probabilities = batch
    head, target = built(kind), dense(ids, probabilities).astype("float32")
    log_p, some = head.log_probs(hidden), ids[..., 0] >= 0
    found = head.make_loss(reduction="none")(ids, hidden, probabilities).numpy()[some]
    dense_loss = keras.losses.CategoricalCrossentropy(from_logits=True, reduction="none")
    np.testing.assert_allclose(found, dense_loss(target, log_p).numpy()[some], rtol=1e-4)
    divergence = keras.losses.KLDivergence(reduction="none")(target, tf.exp(log_p)).numpy()[some]
    entropy = -np.sum(target * np.log(np.maximum(target, 1e-9)), -1)[some]
    np.testing.assert_allclose(found, divergence + entropy, rtol=1e-4)
    if kind != "sampled":  # a matrix of probabilities is the same
        np.testing.assert_allclose(head.make_loss(reduction="none")(target, hidden)[some], found, rtol=1e-5)
    mean = head.make_loss(reduction="mean_with_sample_weight")(ids, hidden, 3 * probabilities)
    assert float(mean) == pytest.approx(found.mean(), rel=1e-5)
    one_hot = np.where(np.arange(LISTED) == 1, 1.0, 0.0) * np.ones_like(probabilities)
    hard = head.loss(ids[..., 1], hidden)
    assert float(head.loss(ids, hidden, one_hot)) == pytest.approx(float(hard), rel=1e-5)


def test_ragged_and_sparse_lists(rng):
    head = built("full")
    hidden = rng.normal(size=(3, DIM)).astype("float32")
    ids, weights = np.array([[3, 7], [4, -1], [0, 9]]), np.array([[0.4, 0.6], [2.0, 5.0], [0, 1]], "float32")
    want = float(head.loss(ids, hidden, weights))
    kept = ids >= 0
    rows = tf.RaggedTensor.from_row_lengths
    lists = rows(ids[kept], kept.sum(1)), rows(weights[kept], kept.sum(1))
    assert float(head.loss(lists[0], hidden, lists[1])) == pytest.approx(want)
    sparse = [tf.SparseTensor(np.argwhere(kept), values[kept], [3, 2]) for values in (ids, weights)]
    assert float(head.loss(sparse[0], hidden, sparse[1])) == pytest.approx(want)
    ignoring = head.make_loss(ignore_class=7)(ids, hidden, weights)
    assert float(ignoring) == pytest.approx(float(head.loss(np.where(ids == 7, -1, ids), hidden, weights)))


def teacher_and_student(student):
    """Return two models of the same inputs."""
    models = []
    for head in (kl.layers.FullSoftmax(CLASSES, kernel_initializer="normal"), student):
        x = keras.Input((3, DIM))
        models.append(kl.Model(x, head(keras.layers.Dense(DIM)(x))))
        models[-1].compile(kl.optimizers.LazyAdam(0.1), head.loss, weighted_metrics=[kl.metrics.Perplexity()])
    return models


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_student_learns_the_best_classes_of_a_teacher(devices, rng):
    keras.utils.set_random_seed(3)
    with strategy_of(devices).scope():
        teacher, student = teacher_and_student(kl.layers.HierarchicalSoftmax(CLASSES))
        head = teacher.layers[-1]
        head.kernel.assign(rng.normal(size=(CLASSES, DIM)))
    x = rng.normal(size=(16, 3, DIM)).astype("float32")
    best = head.predictor(teacher, k=LISTED).predict(x, verbose=0)
    ids, weights = best["ids"], keras.ops.convert_to_numpy(keras.ops.softmax(best["scores"]))
    losses = student.fit(x, ids, sample_weight=weights, batch_size=8, epochs=15, verbose=0).history["loss"]
    entropy = -(weights * np.log(weights)).sum(-1).mean()
    assert entropy < losses[-1] < entropy + 0.5 * (losses[0] - entropy)
    loss, perplexity = student.evaluate(x, ids, sample_weight=weights, verbose=0)
    assert perplexity == pytest.approx(np.exp(loss), rel=1e-4)


def test_log_probs_distil_over_all_classes(rng):
    """A loss of one's own over `log_probs`, for small outputs: its gradient reaches all the student has."""
    teacher, student = teacher_and_student(kl.layers.HierarchicalSoftmax(CLASSES))
    x = rng.normal(size=(8, 3, DIM)).astype("float32")
    target = tf.nn.softmax(teacher.layers[-1].log_probs(teacher(x)) / 2.0)
    losses = []
    for _ in range(15):
        with tf.GradientTape() as tape:
            log_p = tf.nn.log_softmax(student.layers[-1].log_probs(student(x, training=True)) / 2.0)
            loss = keras.losses.KLDivergence()(target, tf.exp(log_p))
        gradients = tape.gradient(loss, student.trainable_variables)
        assert all(gradient is not None for gradient in gradients)
        student.optimizer.apply(gradients, student.trainable_variables)
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2


def test_errors(batch):
    hidden, ids, probabilities = batch
    with pytest.raises(ValueError, match="a weight for each target of SparseOutput"):
        head = kl.layers.SparseOutput(CLASSES, fan_in=3)
        head.build((None, DIM))
        head.loss(ids, hidden, probabilities)
    head = built("full")
    target = dense(ids, probabilities).astype("float32")
    with pytest.raises(ValueError, match="one weight per token where `y_true` is a matrix"):
        head.loss(target, hidden, target)
    with pytest.raises(ValueError, match="`sample_weight` must have the shape of `y_true`"):
        head.loss(ids, hidden, probabilities[..., :3])
    with pytest.raises(ValueError, match="`sample_weight` must be one weight per row"):
        kl.metrics.RecallAtK(2).update_state(ids, ids, probabilities)
