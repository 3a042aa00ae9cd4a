"""`FullSoftmax`: types, configs, files, what is refused, and what is at the ends of ranges."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from layers.heads.softmax._models import CLASSES, DIM, built, data, log_softmax, model_of

import keras_largeout as kl
from keras_largeout.ops.full_softmax import stock

HEADS = {
    "full": lambda **options: kl.layers.FullSoftmax(CLASSES, **options),
    "sampled": lambda **options: kl.layers.SampledSoftmax(CLASSES, 7, **options),
}


@pytest.fixture(params=HEADS)
def make(request):
    return HEADS[request.param]


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16", "mixed_float16", "float16"])
def test_types(rng, policy):
    head = HEADS["full"](dtype=policy, label_smoothing=0.1)
    if policy == "float16":
        with pytest.raises(ValueError, match=r"dtype|float16"):
            head.build((None, DIM))
        return
    model, head = model_of(head)
    assert head.kernel.shards[0].dtype == ("bfloat16" if policy == "bfloat16" else "float32")
    assert head.bias.shards[0].dtype == "float32"
    x, y, _ = data(rng)
    logs = model.fit(x, y, batch_size=6, epochs=2, verbose=0).history["loss"]
    assert np.isfinite(logs).all() and logs[-1] < logs[0]
    hidden = tf.constant(rng.normal(size=(5, DIM)), tf.float16 if policy[-7:] == "float16" else tf.bfloat16)
    want = log_softmax(head, tf.cast(hidden, tf.float32))
    np.testing.assert_allclose(head.log_probs(hidden), want, atol=1e-3)
    targets = rng.integers(0, CLASSES, 5)
    loss = head.loss(targets, head(hidden))
    assert loss.dtype == tf.float32


def test_config_round_trip():
    head = HEADS["full"](
        use_bias=False,
        temperature=0.5,
        label_smoothing=0.1,
        z_loss=1e-4,
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.02, seed=3),
        kernel_constraint="non_neg",
        name="head",
        dtype="mixed_bfloat16",
        trainable=False,
    )
    config = head.get_config()
    again = kl.layers.FullSoftmax.from_config(config)
    assert again.get_config() == config and again.kernel_initializer.stddev == 0.02
    assert isinstance(again.kernel_constraint, keras.constraints.NonNeg) and "kernel" not in config
    other = keras.layers.deserialize(keras.layers.serialize(head))
    assert type(other) is kl.layers.FullSoftmax and other.get_config() == config


def test_a_constraint_holds(rng):
    model, head = model_of(HEADS["full"](kernel_constraint=keras.constraints.UnitNorm(axis=1)))
    x, y, _ = data(rng)
    model.fit(x, y, verbose=0)
    np.testing.assert_allclose(np.linalg.norm(head.kernel.numpy(), axis=1), 1, rtol=1e-5)


def test_saved_and_loaded(rng, tmp_path):
    x, y, _ = data(rng)
    model, _ = model_of(HEADS["full"](label_smoothing=0.1, temperature=0.5, name="head"))
    model.fit(x, y, batch_size=6, shuffle=False, verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert loaded.get_layer("head").get_config() == model.get_layer("head").get_config()
    losses = [
        m.fit(x, y, batch_size=6, shuffle=False, verbose=0, epochs=2).history["loss"] for m in (model, loaded)
    ]
    assert losses[0] == losses[1]


def test_weights_that_do_not_fit_change_nothing(rng):
    with_bias, without = built(HEADS["full"](), rng), built(HEADS["full"](use_bias=False), rng)
    small = kl.layers.FullSoftmax(CLASSES - 1)
    small.build((None, DIM))
    before = with_bias.kernel.numpy()
    for source, target in ((without, with_bias), (with_bias, without), (small, with_bias)):
        store = {}
        source.save_own_variables(store)
        with pytest.raises(ValueError, match=r"bias|shape|rows"):
            target.load_own_variables(store)
    np.testing.assert_array_equal(with_bias.kernel.numpy(), before)


def test_several_heads_in_one_model(rng):
    x = keras.Input((3,))
    hidden = keras.layers.Dense(DIM, name="small")(x)
    heads = {
        "a": kl.layers.FullSoftmax(7, name="a"),
        "b": kl.layers.FullSoftmax(9, label_smoothing=0.1, name="b"),
        "c": kl.layers.SampledSoftmax(9, 3, name="c"),
    }
    model = kl.Model(x, {name: head(hidden) for name, head in heads.items()})
    model.compile("sgd", {name: head.loss for name, head in heads.items()})
    inputs, y = rng.normal(size=(16, 3)).astype("float32"), np.arange(16) % 7
    targets = dict.fromkeys(heads, y)
    logs = model.train_on_batch(inputs, targets, return_dict=True)
    assert logs["loss"] == pytest.approx(sum(logs[f"{name}_loss"] for name in heads), rel=1e-5)
    alone = heads["b"].loss(y, heads["b"](model.get_layer("small")(inputs)))
    model.reset_metrics()  # old versions of Keras go on with what they had
    evaluated = model.test_on_batch(inputs, targets, return_dict=True)
    assert evaluated["b_loss"] == pytest.approx(float(alone), rel=1e-5)


@pytest.mark.parametrize("name", ["label_smoothing", "z_loss", "focal_gamma"])
@pytest.mark.parametrize("bad", [-0.1, float("nan"), 1.0])
def test_ranges(name, bad):
    if name != "label_smoothing" and bad == 1.0:
        return
    with pytest.raises(ValueError, match=rf"`{name}` must .* Received: {name}={bad}"):
        HEADS["full"](**{name: bad})


def test_a_focal_loss_of_other_losses_is_refused():
    head = HEADS["full"](focal_gamma=2)
    assert kl.layers.FullSoftmax.from_config(head.get_config()).focal_gamma == 2.0
    with pytest.raises(ValueError, match=r"`focal_gamma` must be 0 .*=2.0, margin=None, label_smoothing=0.1"):
        HEADS["full"](focal_gamma=2.0, label_smoothing=0.1)
    with pytest.raises(ValueError, match=r"`focal_gamma` must be 0 with a `margin`"):
        HEADS["full"](focal_gamma=2.0, normalize=True, margin=("cosface", 0.2))


def test_an_embedding_with_other_logits_is_refused(make):
    if not hasattr(keras.layers, "ReversibleEmbedding"):
        pytest.skip("a layer of Keras 3.13 and newer")
    untied = keras.layers.ReversibleEmbedding(CLASSES, DIM, tie_weights=False, name="untied")
    with pytest.raises(ValueError, match=r"`tie_weights=True`.* Received: 'untied' with tie_weights=False"):
        make(kernel=untied)
    capped = keras.layers.ReversibleEmbedding(CLASSES, DIM, logit_soft_cap=30.0, name="capped")
    for given in (capped, capped.name):
        with pytest.raises(ValueError, match=r"`logit_soft_cap=None`.* with logit_soft_cap=30\.0"):
            make(kernel=given).build((None, DIM))


def test_arguments(make):
    for bad in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=rf"`temperature` must be positive. Received: temperature={bad}"):
            make(temperature=bad)
    for bad in (0, -3, 2.5):
        with pytest.raises(ValueError, match=rf"`num_classes` must be a positive .* num_classes={bad}"):
            kl.layers.FullSoftmax(bad)
    with pytest.raises(
        ValueError, match=r"`kernel` must be a ShardedEmbedding or a .*, the name of one, or None. .*=3 "
    ):
        make(kernel=3)
    with pytest.raises(ValueError, match="`inputs` must be hidden vectors of a known length"):
        make().build((None, None))


def test_calls(make, rng):
    head = built(make(), rng)
    hidden = np.zeros((2, DIM), "float32")
    for y in ([3, CLASSES], [-2, 3]):
        for training in (False, True):
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=rf"`targets` must be in \[0, {CLASSES}\)"
            ):
                head.loss(np.array(y), head(hidden, training=training))
    for y in ([1, 2, 3], [[1], [2], [3]], 1):
        with pytest.raises(ValueError, match="`y_true` must have the shape of the hidden vectors"):
            head.loss(np.array(y), hidden)
    with pytest.raises(ValueError, match=r"`k` must be an integer in 1 .. num_classes=30. Received: k=31"):
        head.top_k(hidden, 31)


def test_log_prob_refuses_what_is_no_class(make, rng):
    """Also -1, as other heads do: it has no probability."""
    head = built(make(), rng)
    hidden = np.zeros((2, DIM), "float32")
    for bad in (CLASSES, -1):
        with pytest.raises(tf.errors.InvalidArgumentError, match=str(bad)):
            head.log_prob(hidden, [3, bad])
    with pytest.raises(ValueError, match=rf"`hidden` must have the length of the head's rows, {DIM}"):
        head.log_prob(np.zeros((2, DIM + 1), "float32"), [1, 2])
    with pytest.raises(ValueError, match="must have the shape of the hidden vectors"):
        head.log_prob(hidden, [1, 2, 3])


def test_empty_batch_and_nan(make, rng):
    head = built(make(), rng)
    for training in (False, True):
        nobody = head(np.zeros([0, DIM], "float32"), training=training)
        assert float(head.loss(np.zeros([0], "int32"), nobody)) == 0
    assert head.top_k(np.zeros([0, DIM], "float32"), 3)[1].shape == (0, 3)
    nan = np.full((1, DIM), np.nan, "float32")
    assert np.isnan(head.log_prob(nan, [3])).all()
    scores, ids = head.top_k(nan, 2)
    assert np.isnan(scores).all() and ((ids >= 0) & (ids < CLASSES)).numpy().all()


def test_nan_in_one_token(make, rng):
    head = built(make(seed=1) if make is HEADS["sampled"] else make(), rng)
    vectors = rng.normal(size=(5, DIM)).astype("float32")
    losses = []
    for _ in range(2):
        hidden = tf.constant(vectors)
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = head.make_loss(reduction="none")(np.arange(5), head(hidden, training=True))
        losses.append((loss.numpy(), tape.gradient(loss, hidden).numpy()))
        vectors[2, 1] = np.nan
    assert np.isnan(losses[1][0][2]) and np.isnan(losses[1][1][2]).any()
    assert np.isfinite(np.delete(losses[1][0], 2)).all() and np.isfinite(np.delete(losses[1][1], 2, 0)).all()


@pytest.mark.parametrize("classes", [1, 2])
def test_very_few_classes(classes, rng):
    head = built(kl.layers.FullSoftmax(classes), rng)
    hidden = np.ones((2, DIM), "float32")
    np.testing.assert_allclose(np.exp(head.log_probs(hidden)).sum(axis=1), 1, rtol=1e-6)
    assert float(head.loss(np.zeros(2, int), head(hidden, training=True))) >= 0


def test_top_k_keeps_few_logits(make, monkeypatch, rng):
    """However many tokens there are: chunks of classes shrink. The numbers do not change."""
    sizes, sort = [], tf.math.top_k
    monkeypatch.setattr(stock, "_VALUES", 2**8)
    monkeypatch.setattr(stock, "_LEAST", 4)
    monkeypatch.setattr(tf.math, "top_k", lambda x, k: sizes.append(int(tf.size(x))) or sort(x, k))
    head = built(make(), rng)
    hidden = rng.normal(size=(64, DIM)).astype("float32")
    scores, ids = head.top_k(hidden, 3)
    assert max(sizes) <= 64 * (3 + 4)  # where the best so far are joined with a chunk
    want = tf.nn.log_softmax(hidden @ head.kernel.numpy().T + head.bias.numpy())
    np.testing.assert_array_equal(ids, sort(want, 3).indices)
    np.testing.assert_allclose(scores, sort(want, 3).values, atol=1e-5)
    assert head.log_probs(hidden).shape == (64, CLASSES)
