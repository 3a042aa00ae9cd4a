"""Candidates of a sampled softmax: how often each class comes, and what corrects for it."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.ops import candidate_sampling as cs
from keras_largeout.ops.full_softmax.wrapper import full_softmax_terms

CLASSES = 30
COUNTS = np.linspace(1, 40, CLASSES).astype(np.float32)


def sampler_of(distribution, num_sampled=7, unique=True, counts=COUNTS, classes=CLASSES):
    known = None if counts is None else lambda: tf.constant(counts)
    return cs.CandidateSampler(classes, num_sampled, distribution, unique, known)


def probabilities(distribution):
    """Of one draw, float64."""
    classes = np.arange(CLASSES, dtype=np.float64)
    return {
        "log_uniform": np.log1p(1 / (classes + 1)) / np.log(CLASSES + 1),
        "uniform": np.full(CLASSES, 1 / CLASSES),
        "counts": COUNTS / COUNTS.sum(dtype=np.float64),
    }[distribution]


def draws_of(sampler, targets, times, seed=0):
    """`times` draws by seeds of their own: whether each class came, and its correction, `[times, C]`.

    (Of classes that did not come NaN.)
    """
    everyone = tf.range(sampler.num_classes, dtype=tf.int64)
    targets = tf.constant(targets, tf.int64)

    @tf.function
    def draw(at):
        drawn = sampler.draw(targets, tf.stack([seed, at]))
        places = drawn.places_of(everyone)
        safe = tf.maximum(places, 0)
        correction = tf.where(places >= 0, tf.gather(drawn.correction, safe), np.nan)
        return tf.cast(places >= 0, tf.int64), correction

    found = [draw(at) for at in tf.range(times)]
    return tuple(np.stack([one[i].numpy() for one in found]) for i in range(2))


@pytest.mark.parametrize("distribution", ["log_uniform", "uniform", "counts"])
def test_distributions_with_replacement(distribution):
    """Pearson's statistic of 40,000 draws; of 29 degrees of freedom it is above 75 once in 100,000 times."""
    p, n = probabilities(distribution), 40_000
    drawn = sampler_of(distribution, n, unique=False)._some(n, [3, 4]).numpy()
    assert drawn.min() >= 0 and drawn.max() < CLASSES
    statistic = np.sum((np.bincount(drawn, minlength=CLASSES) - n * p) ** 2 / (n * p))
    assert 8 < statistic < 75


@pytest.mark.parametrize(
    "distribution, unique",
    [("log_uniform", True), ("log_uniform", False), ("uniform", True), ("counts", True)],
)
def test_every_class_comes_as_often_as_expected(distribution, unique):
    """What makes the correction right: 1 / expected, times how often it came, is 1 on average."""
    sampler = sampler_of(distribution, unique=unique)
    present, correction = draws_of(sampler, [0], 600)
    weights = np.nan_to_num(np.exp(correction))  # times / expected
    error = weights.std(axis=0) / np.sqrt(len(weights))
    assert (np.abs(weights.mean(axis=0) - 1) < 4.5 * error + 0.03).all()
    if unique:
        assert (present.sum(axis=1) == 7).all()


@pytest.mark.parametrize("unique", [False, True])
def test_expected_is_that_of_tensorflow(unique):
    """`tf.random.log_uniform_candidate_sampler` tells the same of as many tries."""
    classes = tf.range(CLASSES, dtype=tf.int64)
    _, theirs, _ = tf.random.log_uniform_candidate_sampler(
        classes[None], CLASSES, 7, unique=False, range_max=CLASSES, seed=1
    )
    ours = sampler_of("log_uniform", unique=False)._expected(classes, 7.0, None)
    np.testing.assert_allclose(ours, theirs[0], rtol=1e-5)
    want = probabilities("log_uniform")
    for tries in (7.0, 25.0):
        got = sampler_of("log_uniform", 7, unique)._expected(classes, tries, None)
        np.testing.assert_allclose(got, 1 - (1 - want) ** tries if unique else tries * want, rtol=1e-5)


@pytest.mark.parametrize("distribution", ["log_uniform", "uniform", "counts"])
def test_candidates_are_corrected(distribution):
    """By log(how often it was drawn) - log(how often that was expected)."""
    sampler, expected = sampler_of(distribution, unique=False), 7 * probabilities(distribution)
    for at in range(5):
        drawn = sampler.draw(tf.zeros([0], tf.int64), [1, at])
        ids = drawn.ids.numpy()
        assert (np.diff(ids) > 0).all() and drawn.ids.dtype == tf.int64
        times = np.exp(drawn.correction) * expected[ids]
        np.testing.assert_allclose(times, np.round(times), rtol=1e-4)
        assert round(float(times.sum())) == 7


@pytest.mark.parametrize("distribution", cs.DISTRIBUTIONS)
@pytest.mark.parametrize("unique", [False, True])
def test_same_seed_same_candidates(distribution, unique):
    sampler = sampler_of(distribution, 0 if distribution == "in_batch" else 7, unique)
    targets = tf.constant([3, 9, 3], tf.int64)
    one, again, other = (sampler.draw(targets, seed) for seed in ([5, 6], [5, 6], [5, 7]))
    graph = tf.function(sampler.draw)(targets, tf.constant([5, 6], tf.int64))
    tf.nest.map_structure(np.testing.assert_array_equal, one, again)
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), one, graph)
    assert distribution == "in_batch" or one.ids.numpy().tolist() != other.ids.numpy().tolist()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("distribution", ["in_batch", "mixed"])
def test_classes_of_the_batch(distribution, known):
    """Expected: by the counts, or as often as in this batch; with "mixed" uniform ones besides."""
    targets = np.array([4, 7, 4, 4, 29])
    mixed = distribution == "mixed"
    sampler = sampler_of(distribution, 7 if mixed else 0, unique=False, counts=COUNTS if known else None)
    drawn = sampler.draw(tf.constant(targets, tf.int64), [1, 2])
    ids, in_batch = drawn.ids.numpy(), np.bincount(targets, minlength=CLASSES)
    assert set(targets) <= set(ids.tolist()) and (mixed or len(ids) == 3)
    expected = 5 * COUNTS / COUNTS.sum(dtype=np.float64) if known else in_batch.astype(np.float64)
    expected = expected + 7 / CLASSES if mixed else expected
    times = np.exp(drawn.correction.numpy()) * expected[ids]
    np.testing.assert_allclose(times, np.round(times), rtol=1e-4)
    assert round(times.sum()) == 5 + (7 if mixed else 0) and (np.round(times) >= in_batch[ids]).all()


@pytest.mark.parametrize("distribution", ["in_batch", "mixed"])
def test_a_batch_without_targets(distribution):
    sampler = sampler_of(distribution, 7 if distribution == "mixed" else 0)
    for counts in (COUNTS, None):
        sampler = sampler_of(distribution, 7 if distribution == "mixed" else 0, counts=counts)
        drawn = sampler.draw(tf.zeros([0], tf.int64), [1, 2])
        assert drawn.ids.shape[0] == (7 if distribution == "mixed" else 0)
        assert np.isfinite(drawn.correction).all()


@pytest.mark.parametrize("distribution", ["log_uniform", "uniform", "counts"])
@pytest.mark.parametrize("classes", [1, 2, 30, 1000])
def test_as_many_as_there_are(distribution, classes):
    """All of them are certain, and nothing is corrected."""
    counts = np.ones(classes, np.float32)
    sampler = sampler_of(distribution, classes, counts=counts, classes=classes)
    drawn = sampler.draw(tf.range(classes, dtype=tf.int64), [1, 2])
    np.testing.assert_array_equal(drawn.ids, np.arange(classes))
    np.testing.assert_array_equal(drawn.correction, np.zeros(classes))


def test_very_rare_classes_do_not_hang():
    counts = np.full(50, 1e-12, np.float32)
    counts[:3] = 1
    sampler = sampler_of("counts", 40, counts=counts, classes=50)
    drawn = sampler.draw(tf.constant([0, 49], tf.int64), [0, 0])
    assert drawn.ids.numpy().tolist() == [0, 1, 2]
    np.testing.assert_allclose(drawn.correction, np.zeros(3), atol=1e-6)


def test_places():
    drawn = cs.Candidates(tf.constant([2, 5, 9], tf.int64), tf.zeros([3]))
    places = drawn.places_of(tf.constant([9, 0, 2, 3, 10, 5, -1], tf.int64))
    assert places.numpy().tolist() == [2, -1, 0, -1, -1, 1, -1] and places.dtype == tf.int64
    none = cs.Candidates(tf.zeros([0], tf.int64), tf.zeros([0]))
    assert none.places_of(tf.constant([4, 0], tf.int64)).numpy().tolist() == [-1, -1]


def sampled(hidden, targets, table, sampler, others, seed):
    """The mean loss over candidates, and its gradients by the hidden vectors and by the table.

    `others`: the targets of the rest of the batch, whose losses do not count.
    """
    with tf.GradientTape() as tape:
        tape.watch([hidden, table])
        drawn = sampler.draw(tf.concat([targets, others], 0), seed)
        positive = tf.reduce_sum(hidden * tf.gather(table, targets), axis=1)
        terms = full_softmax_terms(
            hidden,
            drawn.places_of(targets),
            tf.gather(table, drawn.ids),
            drawn.correction,
            skip_target=True,
        )
        loss = tf.reduce_mean(tf.math.softplus(terms.lse - positive))
    return loss, *(tf.convert_to_tensor(g) for g in tape.gradient(loss, [hidden, table]))


@pytest.mark.parametrize("distribution", cs.DISTRIBUTIONS)
@pytest.mark.parametrize("unique", [False, True])
def test_more_candidates_come_closer_to_the_full_softmax(rng, distribution, unique):
    """Loss and gradients, averaged over 60 draws: the error falls, and is small with many candidates."""
    classes, tokens = 200, 40
    hidden = tf.constant(rng.normal(size=(tokens, 6)), tf.float32)
    table = tf.constant(rng.normal(size=(classes, 6)) * 0.7, tf.float32)
    p = 1 / np.arange(10, classes + 10)
    targets = tf.constant(rng.choice(classes, tokens, p=p / p.sum()))
    with tf.GradientTape() as tape:
        tape.watch([hidden, table])
        loss = tf.reduce_mean(full_softmax_terms(hidden, targets, table).ce)
    want = [loss, *tape.gradient(loss, [hidden, table])]
    errors = []
    for n in (5, 400) if distribution == "in_batch" or not unique else (5, 195):
        own = distribution in ("in_batch", "mixed")
        others = tf.constant(rng.choice(classes, (60, 10 * n if own else 0), p=p / p.sum()))
        drawn = 0 if distribution == "in_batch" else n
        sampler = sampler_of(distribution, drawn, unique, p.astype(np.float32), classes)
        step = tf.function(functools.partial(sampled, hidden, targets, table, sampler), autograph=False)
        found = [step(more, tf.constant([7, at])) for at, more in enumerate(others)]
        mean = [tf.reduce_mean(tf.stack(parts), axis=0) for parts in zip(*found)]
        errors.append([float(tf.norm(got - w) / tf.norm(w)) for got, w in zip(mean, want)])
    assert max(errors[1]) < 0.05 and max(errors[1]) < max(errors[0]), errors


def test_a_batch_of_all_classes_is_the_full_softmax(rng):
    """Each class four times in the batch, with weights of its own: nothing is left to chance."""
    hidden = tf.constant(rng.normal(size=(4 * CLASSES, 6)), tf.float32)
    table = tf.constant(rng.normal(size=(CLASSES, 6)), tf.float32)
    targets = tf.constant(np.tile(np.arange(CLASSES), 4))
    nobody = tf.zeros([0], tf.int64)
    got = sampled(hidden, targets, table, sampler_of("in_batch", 0, counts=None), nobody, [0, 0])
    with tf.GradientTape() as tape:
        tape.watch([hidden, table])
        loss = tf.reduce_mean(full_softmax_terms(hidden, targets, table).ce)
    for found, want in zip(got, [loss, *tape.gradient(loss, [hidden, table])]):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
