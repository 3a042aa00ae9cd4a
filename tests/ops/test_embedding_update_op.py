"""The op `embedding_update`: the bits of the gradient followed by `row_update`, in one pass."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from ops._row_update import HYPER, make

from keras_largeout.ops import row_update as ru
from keras_largeout.ops._library import ops
from keras_largeout.ops.embedding import update as eu

BFLOAT16 = ml_dtypes.bfloat16
ROWS = 40


def draw(rng, kind, dim, dtype=np.float32, ids_dtype=np.int64):
    """A `LookupGradient`: kind -> the bags that ids make, with duplicates."""
    splits, combiner, shape, leading = np.zeros(0, np.int64), "none", (77,), (77,)
    if kind == "bags":
        combiner, shape, leading = "mean", (21, 3), (21,)
    if kind == "ragged":
        splits, combiner, shape, leading = np.array([0, 3, 3, 4, 60, 60]), "sqrtn", (60,), (5,)
    if kind == "empty":
        combiner, shape, leading = "sum", (0, 4), (0,)
    weighted = kind in ("bags", "ragged")
    ids = rng.integers(-3, ROWS + 3, shape)
    weights = rng.uniform(0.2, 1, shape) if weighted else np.zeros(0)
    grad = rng.normal(size=(*leading, dim)).astype(dtype)
    return eu.LookupGradient(
        tf.constant(ids.astype(ids_dtype)),
        tf.constant(splits, tf.int64),
        tf.constant(weights, tf.float32),
        tf.constant(grad),
        combiner,
        "zero",
    )


def one_pass(rule, variable, slots, lookup, hyper, graph=False):
    variable, slots = tf.Variable(variable), [tf.Variable(slot) for slot in slots]

    def step():
        eu.embedding_update(rule, variable, slots, lookup, hyper)

    (tf.function(step) if graph else step)()
    return variable.numpy(), [slot.numpy() for slot in slots]


def two_passes(rule, variable, slots, lookup, hyper):
    variable, slots = tf.Variable(variable), [tf.Variable(slot) for slot in slots]
    num_rows = tf.constant(variable.shape[0], tf.int64)
    rows, sums = ops.largeout_embedding_grad(
        *lookup.tensors, num_rows, combiner=lookup.combiner, out_of_range=lookup.out_of_range
    )
    ru.row_update(rule, variable, slots, rows, sums, hyper)
    return variable.numpy(), [slot.numpy() for slot in slots]


@pytest.mark.parametrize("rule", ru.RULES)
@pytest.mark.parametrize("kind", ["ids", "bags", "ragged", "empty"])
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_the_bits_of_two_passes(rng, device, rule, kind, dtype):
    for dim, ids_dtype, graph in [(17, np.int64, True), (4, np.int32, False)]:
        variable, slots = make(rng, rule, (ROWS, dim), dtype)
        lookup, hyper = draw(rng, kind, dim, dtype, ids_dtype), HYPER[rule](0.01)
        got, got_slots = one_pass(rule, variable, slots, lookup, hyper, graph)
        want, want_slots = two_passes(rule, variable, slots, lookup, hyper)
        if device == "cpu":
            assert got.tobytes() == want.tobytes()
            for a, b in zip(got_slots, want_slots):
                assert a.tobytes() == b.tobytes()
        tolerance = 1e-5 if dtype is np.float32 else 1e-2
        for a, b in zip([got, *got_slots], [want, *want_slots]):
            np.testing.assert_allclose(
                a.astype("float32"), b.astype("float32"), rtol=tolerance, atol=tolerance
            )


@pytest.mark.parametrize("rule", ru.RULES)
@pytest.mark.parametrize("kind", ["ids", "bags", "ragged"])
def test_equals_reference(rng, device, rule, kind):
    variable, slots = make(rng, rule, (ROWS, 9))
    lookup, hyper = draw(rng, kind, 9), HYPER[rule](0.01)
    options = {
        "row_splits": lookup.row_splits.numpy() if kind == "ragged" else None,
        "weights": lookup.weights.numpy() if kind != "ids" else None,
        "combiner": None if kind == "ids" else lookup.combiner,
        "out_of_range": "zero",
    }
    want, want_slots = eu.embedding_update_reference(
        rule, variable, slots, lookup.ids.numpy(), lookup.grad.numpy(), hyper, **options
    )
    got, got_slots = one_pass(rule, variable, slots, lookup, hyper)
    for a, b in zip([got, *got_slots], [want, *want_slots]):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    untouched = np.setdiff1d(np.arange(ROWS), lookup.ids)
    np.testing.assert_array_equal(got[untouched], variable[untouched])


@pytest.mark.parametrize("graph", [False, True])
def test_an_id_out_of_range_changes_nothing(rng, graph):
    variable, slots = make(rng, "lazy_adam", (ROWS, 8))
    table, beside = tf.Variable(variable), [tf.Variable(slot) for slot in slots]
    ids = tf.constant([*rng.integers(0, ROWS, 76), -5], tf.int64)
    lookup = draw(rng, "ids", 8)._replace(ids=ids, out_of_range="error")

    def step():
        eu.embedding_update("lazy_adam", table, beside, lookup, HYPER["lazy_adam"](0.0))

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`ids` must lie in \[0, 40\).*ids\[76\] = -5"):
        (tf.function(step) if graph else step)()
    np.testing.assert_array_equal(table.numpy(), variable)
    for slot, before in zip(beside, slots):
        np.testing.assert_array_equal(slot.numpy(), before)


WRONG = {  # change, the op's words, the words of its shape function
    "slots": ({"slots": []}, *["`slots` of rule `adagrad` must be 1 variables. Received: 0"] * 2),
    "slot shape": (
        {"slots": [(9, 4)]},
        r"`slots` of rule `adagrad` must have the shape \[10,4\]",
        r"`slots` of|Shapes are \[9,4\] and \[10,4\]",
    ),
    "grad": (
        {"grad": (2, 3)},
        r"`grad` must have the shape of the lookup's output, \[2\] \+ \[4\]",
        r"`grad` must|must be equal, but are",
    ),
    "row_splits": ({"row_splits": [0, 2]}, "`row_splits` must be empty", "`row_splits` must be empty"),
    "weights": ({"weights": [1.0] * 3}, "`weights` must be empty", "`weights` must|must be equal, but are"),
    "hyper": (
        {"hyper": [0.1]},
        r"`hyper` of rule `adagrad` must have the shape \[3\]",
        "`hyper` of|must be 3 but is 1",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_shapes(case):
    change, message, inferred = WRONG[case]
    args = {"slots": [(10, 4)], "row_splits": [], "weights": [], "grad": (2, 4), **change}
    table, slots = tf.Variable(tf.ones((10, 4))), [tf.Variable(tf.ones(s)) for s in args["slots"]]
    lookup = eu.LookupGradient(
        tf.constant([1, 2]),
        tf.constant(args["row_splits"], tf.int64),
        tf.constant(args["weights"], tf.float32),
        tf.ones(args["grad"]),
    )

    def step():
        eu.embedding_update("adagrad", table, slots, lookup, args.get("hyper", HYPER["adagrad"](0.0)))

    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        step()
    with pytest.raises(ValueError, match=inferred):  # the shape function speaks first
        tf.function(step)()
    np.testing.assert_array_equal(table.numpy(), np.ones((10, 4)))


def test_unknown_shapes_are_checked_when_run():
    table = tf.Variable(tf.zeros((10, 4)))

    @tf.function(input_signature=[tf.TensorSpec(None, tf.int64), tf.TensorSpec(None)])
    def step(ids, grad):
        lookup = eu.LookupGradient(ids, tf.zeros([0], tf.int64), tf.zeros([0]), grad)
        eu.embedding_update("sgd", table, [], lookup, ru.sgd_hyper(1.0))

    step(tf.constant([[1], [3]], tf.int64), tf.ones((2, 1, 4)))
    assert set(np.flatnonzero(table.numpy().any(axis=1))) == {1, 3}
    with pytest.raises(tf.errors.InvalidArgumentError, match="`grad` must have the shape"):
        step(tf.constant([1], tf.int64), tf.ones((1, 5)))


def test_a_table_has_two_axes():
    lookup = eu.LookupGradient(tf.constant([1]), tf.zeros([0], tf.int64), tf.zeros([0]), tf.ones((1, 2)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`variable` must have the shape \[rows, dim\]"):
        eu.embedding_update("sgd", tf.Variable(tf.zeros((4, 2, 1))), [], lookup, ru.sgd_hyper(1.0))


def test_what_was_read_before_an_update_stays(device):
    table = tf.Variable(tf.zeros((4, 2)))
    before = table.read_value()
    lookup = eu.LookupGradient(tf.constant([1]), tf.zeros([0], tf.int64), tf.zeros([0]), tf.ones((1, 2)))
    eu.embedding_update("sgd", table, [], lookup, ru.sgd_hyper(1.0))
    assert not before.numpy().any()
    np.testing.assert_array_equal(table.numpy()[1], [-1, -1])
