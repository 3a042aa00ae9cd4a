"""`log_probs` and `sample` of heads."""

import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl

CLASSES, DIM = 12, 4
HEADS = {
    "tree": lambda **options: kl.layers.HierarchicalSoftmax(
        CLASSES, counts=np.arange(CLASSES, 0, -1), **options
    ),
    "sparse": lambda **options: kl.layers.SparseOutput(CLASSES, 3, loss="softmax", seed=1, **options),
    "full": lambda **options: kl.layers.FullSoftmax(CLASSES, **options),
}


@pytest.fixture(params=HEADS)
def head(request, rng):
    head = HEADS[request.param]()
    head.build((None, DIM))
    for weight in head.trainable_weights:
        weight.assign(rng.normal(size=weight.shape))
    return head


@pytest.fixture
def hidden(rng):
    return tf.constant(rng.normal(size=(2, 3, DIM)), tf.float32)


def test_log_probs_are_those_of_each_class(head, hidden):
    found = head.log_probs(hidden)
    assert found.shape == (2, 3, CLASSES) and found.dtype == tf.float32
    np.testing.assert_allclose(tf.reduce_sum(tf.exp(found), -1), np.ones((2, 3)), rtol=1e-5)
    for c in range(CLASSES):
        np.testing.assert_allclose(
            found[..., c], head.log_prob(hidden, tf.fill([2, 3], c)), rtol=1e-4, atol=1e-5
        )


def drawn(head, one, draws=20_000, **options):
    """How often each class is drawn for one vector."""
    ids = head.sample(tf.tile(one[None], [draws, 1]), seed=3, **options)
    assert ids.shape == (draws,) and ids.dtype == tf.int32
    return np.bincount(ids, minlength=CLASSES) / draws


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.7}, {"temperature": 2.0, "top_k": 6, "top_p": 0.8}],
    ids=str,
)
def test_classes_are_drawn_as_often_as_they_are_probable(head, hidden, options):
    p = np.exp(np.float64(head.log_probs(hidden[0, 0])) / options.get("temperature", 1.0))
    order = np.argsort(-p)
    p[order[options.get("top_k", CLASSES) :]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= options.get("top_p", 1.1)]] = 0
    p /= p.sum()
    got = drawn(head, hidden[0, 0], **options)
    assert not got[p == 0].any()
    np.testing.assert_allclose(got, p, atol=5 * np.sqrt(0.25 / 20_000))


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 0.4, "presence_penalty": 1.0, "top_k": 3},
        {"repetition_penalty": 2.0, "presence_penalty": 3.0, "temperature": 0.7, "top_k": 5, "top_p": 0.8},
    ],
    ids=str,
)
def test_classes_that_came_before_are_less_probable(head, hidden, options):
    log_p = np.float64(head.log_probs(hidden[0, 0]))
    best = np.argsort(-log_p)
    previous = [best[0], best[1], best[0], best[0], -1]
    for place, times in ((0, 3), (1, 1)):
        log_p[best[place]] *= options.get("repetition_penalty", 1)
        log_p[best[place]] -= options.get("presence_penalty", 0) + times * options.get("frequency_penalty", 0)
    log_p[best[2]] = -np.inf
    order = np.argsort(-log_p)
    p = np.exp(log_p / options.get("temperature", 1))
    p[order[options.get("top_k", CLASSES) :]] = 0
    p /= p.sum()
    p[order[np.cumsum(p[order]) - p[order] >= options.get("top_p", 1.1)]] = 0
    p /= p.sum()
    lists = {"previous": np.tile(previous, [20_000, 1]), "exclude": np.full([20_000, 1], best[2])}
    got = drawn(head, hidden[0, 0], **lists, **options)
    assert not got[p == 0].any()
    np.testing.assert_allclose(got, p, atol=5 * np.sqrt(0.25 / 20_000))


def test_lists_of_previous_and_excluded_classes(head, hidden):
    """One list for each row of a batch, ragged; nothing left; a graph."""
    before = tf.ragged.constant([[0, 1], []], dtype=tf.int64)
    options = {"previous": before, "presence_penalty": 1e9}
    first = head.sample(tf.repeat(hidden, 50, axis=1), seed=2, **options).numpy()
    assert not np.isin(first[0], [0, 1]).any() and np.isin(first[1], [0, 1]).any()
    every = np.tile(np.arange(CLASSES), [2, 1])
    assert (head.sample(hidden, top_k=2, exclude=every).numpy() == -1).all()
    draw = tf.function(lambda h, p: head.sample(h, top_k=1, seed=1, previous=p, presence_penalty=1e9))
    best = head.top_k(hidden, 2)[1].numpy()
    np.testing.assert_array_equal(draw(hidden, tf.constant(best[..., :1])), best[..., 1])


def test_penalties_out_of_range(head, hidden):
    before = np.zeros([2, 1], "int32")
    for name, value in (
        ("repetition_penalty", 0.5),
        ("frequency_penalty", -1),
        ("presence_penalty", float("nan")),
    ):
        with pytest.raises(ValueError, match=f"`{name}` must .*Received: {name}="):
            head.sample(hidden, previous=before, **{name: value})
    with pytest.raises(ValueError, match="`previous` must be class ids"):
        head.sample(hidden, previous=before[0])
    untold = tf.function(
        lambda p: head.sample(hidden, top_k=2, previous=p),
        input_signature=[tf.TensorSpec([2, None], tf.int32)],
    )
    with pytest.raises(ValueError, match="`previous` must have a static last axis where `top_k` is given"):
        untold(before)


def test_shapes_and_seeds(head, hidden):
    ids = tf.function(lambda h: head.sample(h, top_k=3, seed=5))(hidden)
    assert ids.shape == (2, 3)
    np.testing.assert_array_equal(ids, head.sample(hidden, top_k=3, seed=5))
    assert head.sample(hidden[:, :0]).shape == (2, 0)
    assert (
        head.sample(hidden, top_p=1e-9).numpy().tolist() == head.top_k(hidden, 1)[1][..., 0].numpy().tolist()
    )


def test_scores_that_are_no_numbers(head, hidden):
    bad = tf.where(tf.reshape(tf.range(6), (2, 3, 1)) == 4, float("nan"), hidden)
    for sample in (head.sample, tf.function(head.sample)):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"`hidden` must give scores that are numbers"
        ):
            sample(bad)


def slope(f, x, direction, step=3e-3):
    return (float(f(x + step * direction)) - float(f(x - step * direction))) / (2 * step)


SCORES = {
    "log_prob": lambda head, h: head.log_prob(h, tf.constant([[0, 3, 5], [11, 2, 2]])),
    "log_probs": lambda head, h: head.log_probs(h),
    "top_k": lambda head, h: head.top_k(h, 3)[0],
    "exclude": lambda head, h: head.top_k(h, 3, exclude=tf.tile(tf.range(10)[None], [2, 1]))[0][..., :2],
}


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("what", SCORES)
def test_scores_have_gradients(head, hidden, rng, what, in_graph):
    weights = [weight.value for weight in head.trainable_weights]
    upstream = tf.constant(rng.normal(size=SCORES[what](head, hidden).shape), tf.float32)
    same = SCORES[what]
    if what in ("top_k", "exclude"):  # for the finite difference: a step may change the order
        first = 10 if what == "exclude" else 0
        ids = first + tf.argsort(head.log_probs(hidden)[..., first:], direction="DESCENDING")[..., :3]

        def same(head, hidden):
            return tf.gather(head.log_probs(hidden), ids, batch_dims=2)

    def weighed(hidden, scores=same):
        return tf.reduce_sum(upstream * scores(head, hidden))

    def gradients(hidden):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            value = weighed(hidden, SCORES[what])
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(value, [hidden, *weights])]

    of_hidden, *of_weights = (tf.function(gradients) if in_graph else gradients)(hidden)
    direction = tf.constant(rng.normal(size=hidden.shape), tf.float32)
    found = tf.reduce_sum(of_hidden * direction)
    np.testing.assert_allclose(found, slope(weighed, hidden, direction), rtol=1e-2, atol=2e-2)
    for weight, gradient in zip(weights, of_weights):
        direction, before = tf.constant(rng.normal(size=weight.shape), tf.float32), tf.identity(weight)

        def moved(to, weight=weight):
            weight.assign(to)
            return weighed(hidden)

        expected = slope(moved, before, direction)
        weight.assign(before)
        np.testing.assert_allclose(tf.reduce_sum(gradient * direction), expected, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "`temperature` must be positive. Received: temperature=0"),
        ({"top_p": 0.0}, r"`top_p` must be in \(0, 1\]. Received: top_p=0.0"),
        ({"top_k": CLASSES + 1}, "`k` must be"),
    ],
)
def test_wrong_arguments(head, hidden, options, message):
    with pytest.raises(ValueError, match=message):
        head.sample(hidden, **options)


def test_scores_that_are_no_log_probabilities(hidden):
    head = kl.layers.SparseOutput(CLASSES, 3, name="out")
    head.build((None, DIM))
    for call in (head.log_probs, head.sample):
        with pytest.raises(ValueError, match=r"must be a softmax\. Received: SparseOutput 'out' of loss="):
            call(hidden)
