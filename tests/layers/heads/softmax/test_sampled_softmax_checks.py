"""`SampledSoftmax`: its arguments, its config and its file."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from layers.heads.softmax._models import CLASSES, DIM, built, data, model_of

import keras_largeout as kl

COUNTS = np.linspace(1, 40, CLASSES)


def head_of(num_sampled=7, distribution="log_uniform", **options):
    return kl.layers.SampledSoftmax(CLASSES, num_sampled, distribution, **options)


def test_arguments():
    for wrong, words in (
        ({"num_sampled": 31}, r"`num_sampled` must be at most num_classes=30. Received: num_sampled=31"),
        ({"num_sampled": 0}, r"`num_sampled` must be a positive .* num_sampled=0"),
        ({"num_sampled": -2}, r"`num_sampled` must be a positive .* num_sampled=-2"),
        ({"num_sampled": 2.5}, r"`num_sampled` must be a positive .* num_sampled=2.5"),
        ({"distribution": "zipf"}, r"`distribution` must be one of \('log_uniform'.* distribution='zipf'"),
        ({"distribution": "counts"}, r'`counts` must be given where `distribution` is "counts"'),
        ({"distribution": "in_batch"}, r'`num_sampled` must be 0 where .* "in_batch".* num_sampled=7'),
        ({"loss": "hinge"}, r"`loss` must be one of .* loss='hinge'"),
        ({"calibration": 1.5}, r"`calibration` must be in \[0, 1\]. Received: calibration=1.5"),
        ({"calibration": float("nan")}, r"`calibration` must be in \[0, 1\]. Received: calibration=nan"),
        ({"negative_margin": 1.0}, r"`negative_margin` must be in \[-1, 1\). Received: negative_margin=1.0"),
        ({"negative_weight": 0}, "`negative_weight` must be positive. Received: negative_weight=0"),
        ({"loss": "cosine_contrastive"}, "`normalize` must be True and `temperature` 1 .* normalize=False"),
        (
            {"loss": "cosine_contrastive", "normalize": True, "temperature": 0.1},
            "`normalize` must be True and `temperature` 1 .* normalize=True, temperature=0.1",
        ),
        ({"counts": COUNTS[1:]}, r"`counts` must have the shape \(num_classes,\) = \(30,\)"),
        (
            {"counts": COUNTS[:, None]},
            r"`counts` must have the shape \(num_classes,\) .* counts.shape=\(30, 1\)",
        ),
        ({"counts": -COUNTS}, r"`counts` must be finite and at least 0.* counts\[0\]=-1"),
        ({"counts": COUNTS * np.inf}, "`counts` must be finite"),
        ({"counts": np.zeros(CLASSES)}, "`counts` must be .* not all 0"),
        ({"counts": ["a"] * CLASSES}, "`counts` must hold integers or floats"),
    ):
        with pytest.raises(ValueError, match=words):
            head_of(**wrong)
    assert head_of(0, "in_batch").num_sampled == head_of(None, "in_batch").num_sampled == 0
    assert head_of(CLASSES).num_sampled == CLASSES


def test_counts_that_are_given_are_drawn_from():
    assert kl.layers.SampledSoftmax(CLASSES, 3).distribution == "log_uniform"
    head = kl.layers.SampledSoftmax(CLASSES, 3, counts=np.arange(1, CLASSES + 1))
    assert (
        head.distribution == "counts" == keras.layers.deserialize(keras.layers.serialize(head)).distribution
    )
    asked = kl.layers.SampledSoftmax(CLASSES, 3, "log_uniform", np.arange(1, CLASSES + 1))
    assert asked.distribution == "log_uniform"


def test_counts_of_zero_are_worth_one_warning(rng):
    counts = COUNTS.copy()
    counts[3] = 0
    with pytest.warns(UserWarning, match="`counts` of 0 are taken as 1, the smallest other one") as seen:
        head = built(head_of(distribution="counts", counts=counts), rng)
    assert len(seen) == 1
    np.testing.assert_allclose(head._counts.variable.numpy(), np.where(counts == 0, 1, counts), rtol=1e-6)


def test_the_warning_speaks_of_candidates():
    """And not of a tree, of which this head has none."""
    with pytest.warns(UserWarning) as seen:
        head_of(distribution="counts", counts=np.arange(CLASSES))
    assert "tree" not in str(seen[0].message)


def test_config_round_trip():
    head = head_of(
        5,
        "mixed",
        counts=COUNTS,
        unique=False,
        loss="bpr",
        calibration=0.5,
        seed=4,
        temperature=0.1,
        name="head",
    )
    config = head.get_config()
    assert config["counts"] is True and config["num_sampled"] == 5 and config["seed"] == 4
    again = keras.layers.deserialize(keras.layers.serialize(head))
    assert again.get_config() == config
    head = head_of(
        loss="cosine_contrastive", normalize=True, negative_margin=0.25, negative_weight=30.0, name="head"
    )
    config = head.get_config()
    assert (config["negative_margin"], config["negative_weight"]) == (0.25, 30.0)
    assert keras.layers.deserialize(keras.layers.serialize(head)).get_config() == config
    for distribution, sampled in (("in_batch", 0), ("log_uniform", 7)):
        config = head_of(sampled, distribution).get_config()
        assert kl.layers.SampledSoftmax.from_config(config).get_config() == config


def test_a_config_does_not_know_the_counts(rng):
    head = built(head_of(5, "counts", counts=COUNTS, seed=1), rng)
    again = kl.layers.SampledSoftmax.from_config(head.get_config())
    again.build((None, DIM))
    hidden, y = rng.normal(size=(3, DIM)).astype("float32"), np.arange(3)
    with pytest.raises(
        ValueError, match=r"`counts` of the head '.*' are not known: .* Received: counts=True"
    ):
        again.loss(y, again(hidden, training=True))
    assert np.isfinite(again.loss(y, again(hidden)))  # evaluation needs none
    store = {}
    head.save_own_variables(store)
    again.load_own_variables(store)
    for training in (True, False):
        got, want = (float(h.loss(y, h(hidden, training=training))) for h in (again, head))
        assert got == want


def test_files_with_and_without_counts(rng):
    with_counts, without = built(head_of(counts=COUNTS), rng), built(head_of(), rng)
    before = with_counts.kernel.numpy()
    for source, target in ((with_counts, without), (without, with_counts)):
        store = {}
        source.save_own_variables(store)
        with pytest.raises(ValueError, match="`counts` must be in both, or in neither"):
            target.load_own_variables(store)
    np.testing.assert_array_equal(with_counts.kernel.numpy(), before)


def test_clone_and_set_weights(rng):
    model, head = model_of(head_of(distribution="counts", counts=COUNTS, name="head"))
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    other = clone.get_layer("head")
    np.testing.assert_array_equal(other._counts.variable.numpy(), head._counts.variable.numpy())
    clone.compile(kl.optimizers.LazyAdam(0.01), other.loss)
    x, y, _ = data(rng)
    assert np.isfinite(clone.fit(x, y, verbose=0).history["loss"]).all()


def test_a_target_that_is_no_class_is_named(rng):
    """However long the batch, in training as in evaluation."""
    head = built(head_of(), rng)
    y = np.arange(20)
    y[17] = 1234
    for training in (True, False):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"`targets` must be in \[0, 30\)") as info:
            head.loss(y, head(tf.zeros([20, DIM]), training=training))
        assert "1234" in str(info.value)


def test_a_step_that_fails_changes_nothing(rng):
    model, _ = model_of(head_of(distribution="mixed"))
    x, y, _ = data(rng)
    model.train_on_batch(x, y)
    before = [w.numpy() for w in [*model.weights, *model.optimizer.variables]]
    y[-1, -1] = CLASSES
    with pytest.raises(tf.errors.InvalidArgumentError, match="`targets` must be in"):
        model.train_on_batch(x, y)
    for old, new in zip(before, [*model.weights, *model.optimizer.variables]):
        np.testing.assert_array_equal(old, new.numpy(), err_msg=new.path)


@pytest.mark.full
@pytest.mark.parametrize(
    "policy, loss",
    [("bfloat16", "softmax"), ("mixed_bfloat16", "bpr"), ("mixed_float16", "binary_crossentropy")],
)
def test_types(rng, policy, loss):
    model, head = model_of(head_of(10, loss=loss, dtype=policy))
    x, y, _ = data(rng)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        logs = model.fit(x, y, batch_size=6, epochs=6, verbose=0).history["loss"]
    assert np.isfinite(logs).all() and np.mean(logs[-2:]) < np.mean(logs[:2])
    assert head.kernel.shards[0].dtype == ("bfloat16" if policy == "bfloat16" else "float32")
