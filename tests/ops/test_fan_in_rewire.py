"""Connections of fan-in layers: as the references draw, prune and regrow them."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.ops import _library
from keras_largeout.ops.fan_in import rewire as fr
from keras_largeout.ops.fan_in import wrapper as fi

SEED = (3, 7)


def different(rows):
    return all(len(set(row)) == len(row) for row in np.asarray(rows).tolist())


class Layer:
    def __init__(self, rng, classes=60, fan_in=8, num_inputs=50, dtype=np.float32, index_dtype=np.uint16):
        self.num_inputs = num_inputs
        order = rng.permuted(np.tile(np.arange(num_inputs), (classes, 1)), axis=1)
        self.indices = order[:, :fan_in].astype(index_dtype)
        self.weights = rng.normal(size=(classes, fan_in)).astype(dtype)
        self.weights[:, ::3] = 0  # ties
        self.slots = [rng.random((classes, fan_in), np.float32) + 1 for _ in range(2)]

    def rewire(self, **options):
        """What the op makes of it, and what the reference does."""
        weights, indices = tf.Variable(self.weights), tf.Variable(self.indices)
        slots = [tf.Variable(slot) for slot in self.slots]
        first_row = options.pop("first_row", 0)
        changes = fr.fan_in_rewire(
            weights, indices, self.num_inputs, SEED, slots, first_row=first_row, **options
        )
        options["first_class"] = options.get("first_class", 0) + first_row
        want = fr.fan_in_rewire_reference(
            self.weights[first_row:],
            self.indices[first_row:],
            self.num_inputs,
            SEED,
            [slot[first_row:] for slot in self.slots],
            **options,
        )
        got = [v.numpy() for v in (weights, indices, *slots)]
        for array, start in zip(got, (self.weights, self.indices, *self.slots)):
            np.testing.assert_array_equal(array[:first_row], start[:first_row])
        for array, expected in zip(got, (*want[:2], *want[2])):
            np.testing.assert_array_equal(array[first_row:], expected)
        assert changes.dtype == tf.int64 and int(changes) == want[3]
        assert different(got[1])
        return got, int(changes)


@pytest.mark.parametrize("num_inputs", [8, 30, 1000])
def test_connections_equal_the_reference(device, num_inputs):
    got = fr.fan_in_connections(100, 8, num_inputs, SEED)
    assert got.dtype == tf.uint16 and different(got)
    np.testing.assert_array_equal(got, fr.fan_in_connections_reference(100, 8, num_inputs, SEED))
    part = tf.function(fr.fan_in_connections)(30, 8, num_inputs, SEED, first_class=70, dtype=tf.uint32)
    assert part.dtype == tf.uint32
    np.testing.assert_array_equal(part, got[70:])


def test_connections_of_many_inputs():
    got = fr.fan_in_connections(100, 3, 1 << 20, SEED)
    assert got.dtype == tf.uint32 and different(got) and got.numpy().max() > 1 << 19
    np.testing.assert_array_equal(got, fr.fan_in_connections_reference(100, 3, 1 << 20, SEED))
    assert fr.fan_in_connections(0, 3, 5, SEED).shape == (0, 3)


def test_candidates_equal_the_reference(rng, device):
    for index_dtype, num_inputs, count in ((np.uint16, 50, 5), (np.uint32, 50, 42), (np.uint16, 3000, 8)):
        layer = Layer(rng, num_inputs=num_inputs, index_dtype=index_dtype)
        got = fr.fan_in_candidates(tf.Variable(layer.indices), num_inputs, SEED, count, 20, 30, 5)
        want = fr.fan_in_candidates_reference(layer.indices[20:50], num_inputs, SEED, count, 25)
        np.testing.assert_array_equal(got, want)
        assert different(np.concatenate([got, layer.indices[20:50]], 1))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("index_dtype", [np.uint16, np.uint32])
def test_rewire_equals_the_reference(rng, device, dtype, index_dtype):
    for fraction, num_inputs in ((0.0, 50), (0.1, 50), (0.5, 2000), (1.0, 50), (0.25, 8)):
        layer = Layer(rng, dtype=dtype, index_dtype=index_dtype, num_inputs=num_inputs)
        _, changes = layer.rewire(fraction=fraction, first_class=100)
        assert changes == 60 * int(fraction * 8 + 0.5)
        layer.rewire(fraction=fraction, first_row=25)


def test_one_global_threshold(rng, device):
    layer = Layer(rng)
    for fraction in (0.0, 0.1, 0.4, 1.0):
        threshold = fr.fan_in_prune_threshold(tf.Variable(layer.weights), fraction, SEED, 9)
        assert int(threshold) == fr.fan_in_prune_threshold_reference(layer.weights, fraction, SEED, 9)
        _, changes = layer.rewire(threshold=int(threshold), first_class=9)
        assert changes == int(fraction * 480 + 0.5)
        parts = [tf.Variable(layer.weights[:13]), tf.Variable(layer.weights[13:])]
        assert int(fr.fan_in_prune_threshold(parts, fraction, SEED, [9, 22])) == int(threshold)


def test_growth_by_score(rng, device):
    layer = Layer(rng)
    candidates = rng.integers(0, 50, (60, 12)).astype(np.int32)  # some twice, some connected
    scores = rng.normal(size=(60, 12)).round(1).astype(np.float32)
    scores[:, 5] = np.nan
    for fraction in (0.25, 1.0):
        layer.rewire(fraction=fraction, candidates=candidates, scores=scores)
    layer = Layer(rng, num_inputs=10)
    layer.rewire(fraction=0.5, candidates=candidates % 10, scores=scores)


def test_candidate_gradient(rng, device):
    layer = Layer(rng)
    inputs = rng.normal(size=(20, 50)).astype(np.float32)
    labels, row_splits = rng.integers(0, 60, 40), np.arange(21) * 2
    weights, indices = tf.Variable(layer.weights), tf.Variable(layer.indices)
    candidates = fr.fan_in_candidates(indices, 50, SEED, 7, 10, 30)
    for loss in fi.LOSSES:
        _, gradients = fi.fan_in_loss_reference(
            inputs, labels, row_splits, weights, indices.numpy(), loss=loss
        )
        want = fr.fan_in_candidate_gradient_reference(inputs, gradients["logits"], candidates, 10)
        forward = fi.fan_in_forward(inputs, labels, row_splits, weights, indices, loss=loss)
        for known in (None, forward):
            got = fr.fan_in_candidate_gradient(
                inputs,
                labels,
                row_splits,
                weights,
                indices,
                candidates,
                loss=loss,
                forward=known,
                first_row=10,
            )
            np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())
    # For existing connections it is the gradient of their weights.
    got = fr.fan_in_candidate_gradient(
        inputs, labels, row_splits, weights, indices, layer.indices.astype(np.int32), loss="softmax"
    )
    np.testing.assert_allclose(got, gradients["weights"], atol=1e-5)


def test_degrees(rng, device):
    layer = Layer(rng)
    got = fr.fan_in_degrees(tf.Variable(layer.indices), 50)
    assert got.dtype == tf.int64
    np.testing.assert_array_equal(got, np.bincount(layer.indices.ravel(), minlength=50))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`indices` must be in \[0, 20\)"):
        fr.fan_in_degrees(tf.Variable(layer.indices), 20)


def test_shapes_are_inferred(rng):
    layer = Layer(rng)
    weights, indices = tf.Variable(layer.weights), tf.Variable(layer.indices)

    @tf.function
    def shapes(rows, count):
        found.extend(
            t.shape.as_list()
            for t in (
                fr.fan_in_connections(rows, 8, 50, SEED),
                fr.fan_in_connections(5, 8, 50, SEED),
                fr.fan_in_candidates(indices, 50, SEED, count),
                fr.fan_in_degrees(indices, 50),
                fr.fan_in_rewire(weights, indices, 50, SEED, fraction=0.1),
                fr.fan_in_prune_threshold(weights, 0.1, SEED),
            )
        )

    found = []
    shapes(tf.constant(3), tf.constant(2))
    assert found == [[None, 8], [5, 8], [None, None], [50], [], []]


def test_what_is_wrong_is_named(rng):
    layer = Layer(rng)
    weights, indices = tf.Variable(layer.weights), tf.Variable(layer.indices)
    with pytest.raises(ValueError, match=r"`fan_in` must be in .*Received: fan_in=9"):
        fr.fan_in_connections(3, 9, 8, SEED)
    with pytest.raises(ValueError, match="`dtype` must be uint32, or uint16 where"):
        fr.fan_in_connections(3, 9, 65537, SEED, dtype="uint16")
    with pytest.raises(ValueError, match="One of `fraction` and `threshold`"):
        fr.fan_in_rewire(weights, indices, 50, SEED)
    with pytest.raises(ValueError, match="`fraction` must be in"):
        fr.fan_in_rewire(weights, indices, 50, SEED, fraction=1.5)
    with pytest.raises(ValueError, match="`candidates` and `scores` must be given together"):
        fr.fan_in_rewire(weights, indices, 50, SEED, fraction=0.1, candidates=np.zeros((60, 1), np.int32))
    wrong = tf.errors.InvalidArgumentError
    with pytest.raises(wrong, match="`num_inputs` must be at least"):
        fr.fan_in_candidates(indices, 50, SEED, 43)
    with pytest.raises(wrong, match="`first_row` and `num_rows` must name rows"):
        fr.fan_in_candidates(indices, 50, SEED, 4, 31, 30)
    with pytest.raises(wrong, match="`candidates` must have the shape"):
        bad = np.zeros((59, 1))
        fr.fan_in_rewire(
            weights, indices, 50, SEED, fraction=0.1, candidates=bad.astype(np.int32), scores=bad.astype("f")
        )
    with pytest.raises((ValueError, wrong), match=r"must be equal|must have the shape"):
        fr.fan_in_rewire(weights, tf.Variable(layer.indices[:, :3]), 50, SEED, fraction=0.1)
    for call in (
        lambda: fr.fan_in_rewire(weights, indices, 20, SEED, fraction=0.1),
        lambda: fr.fan_in_candidates(indices, 20, SEED, 2),
    ):
        with pytest.raises(wrong, match=r"`indices` must be in \[0, 20\)"):
            call()
    candidates = np.full((60, 2), 50, np.int32)
    with pytest.raises(wrong, match=r"`candidates` must be in \[0, 50\).*row 0"):
        fr.fan_in_rewire(
            weights, indices, 50, SEED, fraction=0.5, candidates=candidates, scores=candidates.astype("f")
        )
    np.testing.assert_array_equal(weights, layer.weights)
    with pytest.raises(wrong, match=r"`num_inputs` must be in \[0, 2\^31\)"):
        fr.fan_in_degrees(indices, 2**31)
    with pytest.raises((ValueError, wrong), match=r"rank|shape"):
        _library.ops.largeout_fan_in_connections(
            num_rows=[3], fan_in=2, num_inputs=5, first_class=0, seed=SEED, dtype=tf.uint32
        )


def test_sums_and_products_that_overflow(rng):
    layer, huge = Layer(rng), 2**63 - 1
    weights, indices = tf.Variable(layer.weights), tf.Variable(layer.indices)
    inputs, labels = rng.normal(size=(2, 50)).astype(np.float32), ([3, 4], [0, 1, 2])
    candidates = np.zeros((60, 1), np.int32)
    wrong = tf.errors.InvalidArgumentError
    rows = "`first_row` and `num_rows` must name rows"
    for message, call in (
        (rows, lambda: fr.fan_in_candidates(indices, 50, SEED, 2, huge, 30)),
        (rows, lambda: fr.fan_in_candidates(indices, 50, SEED, 2, 30, huge)),
        (rows, lambda: fr.fan_in_rewire(weights, indices, 50, SEED, (), 0.5, first_row=huge, num_rows=60)),
        ("`num_inputs` must be at least", lambda: fr.fan_in_candidates(indices, 50, SEED, huge)),
        ("`num_inputs` must be", lambda: fr.fan_in_degrees(indices, huge)),
        ("`num_rows` must be in", lambda: fr.fan_in_connections(huge, 8, 50, SEED)),
        (
            "`first_row` and `candidates` must name rows",
            lambda: fr.fan_in_candidate_gradient(
                inputs, *labels, weights, indices, candidates, first_row=huge, loss="squared_hinge"
            ),
        ),
        (
            "`num_classes` at least",
            lambda: fi.fan_in_loss(
                inputs, *labels, weights, indices, first_class=huge, num_classes=100 - huge
            ),
        ),
        (
            "`num_classes` at least",
            lambda: fi.fan_in_loss(inputs, *labels, weights, indices, first_class=huge, num_classes=huge),
        ),
    ):
        with pytest.raises(wrong, match=message):
            call()


def test_every_value_of_uint16_is_an_input(rng):
    num_inputs, x = 2**16, rng.normal(size=(3, 2**16)).astype(np.float32)
    all_inputs = rng.permutation(num_inputs).reshape(-1, 8).astype(np.uint16)
    indices, weights = tf.Variable(all_inputs), tf.Variable(rng.normal(size=all_inputs.shape).astype("f"))
    np.testing.assert_allclose(
        fi.fan_in_logits(x, weights, indices),
        np.einsum("ck,bck->bc", weights.numpy(), x[:, all_inputs]),
        atol=1e-4,
    )
    np.testing.assert_array_equal(fr.fan_in_degrees(indices, num_inputs), np.ones(num_inputs))
    with tf.GradientTape() as tape:
        tape.watch(inputs := tf.constant(x))
        loss = fi.fan_in_loss(inputs, [0, 1, 2], [0, 1, 2, 3], weights, indices)
    assert np.all(np.isfinite(loss)) and np.all(np.isfinite(tape.gradient(loss, inputs)))
    fr.fan_in_rewire(weights, indices, num_inputs, SEED, fraction=0.5)
    assert different(indices) and indices.numpy().max() == num_inputs - 1
    assert fr.fan_in_candidates(indices, num_inputs, SEED, 3).numpy().max() > num_inputs - 100
    got = fr.fan_in_connections(5000, 50, num_inputs, SEED)
    assert got.dtype == tf.uint16 and different(got) and got.numpy().max() == num_inputs - 1
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`indices` must be in \[0, 65535\)"):
        fi.fan_in_logits(x[:, :-1], tf.Variable(weights), tf.Variable(all_inputs))
