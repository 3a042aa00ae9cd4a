"""The op `row_update`: equal to its reference, strict about its input, blind to the rows it was not given."""

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from ops._row_update import HYPER, make

from keras_largeout.ops import _library
from keras_largeout.ops import row_update as ru

BFLOAT16 = ml_dtypes.bfloat16
# The Keras optimizer of a rule with the arguments of `HYPER`, and the attributes that hold its slots.
KERAS = {
    "sgd": (lambda: keras.optimizers.SGD(0.1), ()),
    "momentum": (lambda: keras.optimizers.SGD(0.1, momentum=0.9), ("momentums",)),
    "nesterov": (lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), ("momentums",)),
    "adagrad": (lambda: keras.optimizers.Adagrad(0.1), ("_accumulators",)),
    "lazy_adam": (lambda: keras.optimizers.Adam(0.1), ("_momentums", "_velocities")),
    "ftrl": (
        lambda: keras.optimizers.Ftrl(
            0.1,
            l1_regularization_strength=0.01,
            l2_regularization_strength=0.1,
            l2_shrinkage_regularization_strength=0.01,
            beta=0.1,
        ),
        ("_accumulators", "_linears"),
    ),
}


def run(rule, variable, slots, indices, values, hyper, graph=False):
    variable, slots = tf.Variable(variable), [tf.Variable(slot) for slot in slots]

    def step():
        ru.row_update(rule, variable, slots, indices, values, hyper)

    (tf.function(step) if graph else step)()
    return variable.numpy(), [slot.numpy() for slot in slots]


@pytest.mark.parametrize("rule", ru.RULES)
@pytest.mark.parametrize("shape", [(123, 17), (57,), (40, 3, 5)])
def test_equals_reference(rng, device, rule, shape):
    variable, slots = make(rng, rule, shape)
    indices = rng.integers(0, shape[0], 77).astype("int32")  # unsorted, with duplicates
    values = rng.normal(size=(77,) + shape[1:]).astype("float32")
    hyper = HYPER[rule](0.01)
    got, got_slots = run(rule, variable, slots, indices, values, hyper)
    want, want_slots = ru.row_update_reference(rule, variable, slots, indices, values, hyper)
    # The same operations in the same order; only the mean of row_wise_adagrad is summed in another one, and a
    # GPU rounds a product and a sum once, where FTRL takes a difference of large numbers.
    apart = rule == "row_wise_adagrad" or (rule == "ftrl" and device == "gpu")
    tolerance = 1e-5 if apart else 1e-6
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    for a, b in zip(got_slots, want_slots):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    untouched = np.setdiff1d(np.arange(shape[0]), indices)
    np.testing.assert_array_equal(got[untouched], variable[untouched])


@pytest.mark.parametrize("rule", ru.RULES)
@pytest.mark.parametrize(("values_dtype", "index_dtype"), [(np.float32, "int32"), (BFLOAT16, "int64")])
def test_bfloat16_variable_with_float32_slots(rng, device, rule, values_dtype, index_dtype):
    variable, slots = make(rng, rule, (50, 17), BFLOAT16)
    indices = np.sort(rng.permutation(50)[:20]).astype(index_dtype)
    values = rng.normal(size=(20, 17)).astype(values_dtype)
    got, got_slots = run(rule, variable, slots, indices, values, HYPER[rule](0.0), graph=True)
    want, want_slots = ru.row_update_reference(rule, variable, slots, indices, values, HYPER[rule](0.0))
    assert got.dtype == BFLOAT16
    np.testing.assert_allclose(got.astype("float32"), want.astype("float32"), rtol=1e-2, atol=1e-2)
    for a, b in zip(got_slots, want_slots):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", ru.RULES)
def test_error_against_float64_is_not_above_tensorflows(rng, rule):
    """The float64 truth; the measure is the float32 step of Keras's optimizer, in TensorFlow's ops."""
    variable, slots = make(rng, rule, (200, 64))
    values = rng.normal(size=(200, 64)).astype("float32")
    indices, hyper = np.arange(200), HYPER[rule](0.0)
    got, _ = run(rule, variable, slots, indices, values, hyper)
    framework = keras_step(rule, variable, slots, values)
    truth, _ = _float64(rule, variable, slots, values, hyper.numpy().astype("float64"))
    assert np.abs(got - truth).max() <= 1.1 * np.abs(framework - truth).max() + 1e-9


def keras_step(rule, variable, slots, values):
    """The table after the step of `HYPER` (without decay) by the Keras optimizer of the rule."""
    variable = keras.Variable(variable)
    if rule == "row_wise_adagrad":  # Keras has none: the formula in TensorFlow's ops
        total = slots[0] + tf.reduce_mean(tf.square(values), axis=1)
        return (variable.value - 0.1 * values * tf.math.rsqrt(total + 1e-7)[:, None]).numpy()
    optimizer, names = KERAS[rule]
    optimizer = optimizer()
    optimizer.build([variable])
    for name, slot in zip(names, slots):
        getattr(optimizer, name)[0].assign(slot)
    if rule == "lazy_adam":
        optimizer.iterations.assign(2)  # ALPHA is that of the third step
    optimizer.apply([tf.constant(values)], [variable])
    return variable.numpy()


def _float64(rule, w, slots, g, hyper):
    w, g = w.astype("float64"), g.astype("float64")
    s = [slot.astype("float64") for slot in slots]
    rate = hyper[0]
    if rule == "sgd":
        return w - rate * g, s
    if rule in ("momentum", "nesterov"):
        m = s[0] * hyper[2] - rate * g
        return w + (m * hyper[2] - rate * g if rule == "nesterov" else m), [m]
    if rule == "adagrad":
        return w - rate * g / np.sqrt(s[0] + g * g + hyper[2]), s
    if rule == "row_wise_adagrad":
        return w - rate * g / np.sqrt(s[0] + np.mean(g * g, axis=1) + hyper[2])[:, None], s
    if rule == "lazy_adam":
        m, v = s[0] + (g - s[0]) * hyper[2], s[1] + (g * g - s[1]) * hyper[3]
        return w - rate * m / (np.sqrt(v) + hyper[4]), s
    after = s[0] + g * g
    z = s[1] + g + 2 * hyper[5] * w - (np.sqrt(after) - np.sqrt(s[0])) / rate * w
    return (np.clip(z, -hyper[3], hyper[3]) - z) / (np.sqrt(after) / rate + 2 * hyper[4]), s


def test_bias_takes_a_column_too(rng, device):
    variable, slots = make(rng, "adagrad", (30,))
    values = rng.normal(size=4).astype("float32")
    flat = run("adagrad", variable, slots, [1, 2, 5, 7], values, HYPER["adagrad"](0.0))
    column = run("adagrad", variable, slots, [1, 2, 5, 7], values[:, None], HYPER["adagrad"](0.0))
    np.testing.assert_array_equal(flat[0], column[0])


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("indices, position", [([3, 50, 1], 1), ([3, 4, -2], 2)])
def test_index_out_of_range_changes_nothing(rng, device, graph, indices, position):
    data, slot_data = make(rng, "lazy_adam", (50, 8))
    variable, slots = tf.Variable(data), [tf.Variable(slot) for slot in slot_data]

    def step(indices):
        ru.row_update("lazy_adam", variable, slots, indices, tf.ones((3, 8)), HYPER["lazy_adam"](0.0))

    expected = rf"`indices` must be in \[0, 50\).*indices\[{position}\] = {indices[position]}; nothing was"
    if graph and device == "gpu":  # which tells with the next call
        expected = expected.removesuffix("; nothing was")
    call = tf.function(step) if graph else step
    with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
        call(tf.constant(indices, tf.int64))
        variable.numpy()
        call(tf.constant([0, 1, 2], tf.int64))
    np.testing.assert_array_equal(variable.numpy(), data)
    for slot, before in zip(slots, slot_data):
        np.testing.assert_array_equal(slot.numpy(), before)


WRONG = {  # change, the op's words, the words of its shape function
    "slots": ({"slots": []}, *["`slots` of rule `adagrad` must be 1 variables. Received: 0"] * 2),
    "slot shape": (
        {"slots": [(9, 4)]},
        r"`slots` of rule `adagrad` must have the shape \[10,4\]",
        r"`slots` of|Shapes are \[9,4\] and \[10,4\]",
    ),
    "indices": (
        {"indices": [[1, 2]]},
        r"`indices` must have the shape \[n\]",
        "`indices` must|must be rank 1",
    ),
    "values width": (
        {"values": (2, 3)},
        r"`values` must have the shape \[2,4\].*Received: \[2,3\]",
        r"`values` must|Shapes are \[4\] and \[3\]",
    ),
    "values rows": (
        {"values": (3, 4)},
        r"`values` must have the shape \[2,4\].*Received: \[3,4\]",
        "`values` must|must be equal, but are 2 and 3",
    ),
    "hyper": (
        {"hyper": [0.1]},
        r"`hyper` of rule `adagrad` must have the shape \[3\]",
        "`hyper` of|must be 3 but is 1",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_shapes(case):
    change, message, inferred = WRONG[case]
    args = {"slots": [(10, 4)], "indices": [1, 2], "values": (2, 4), "hyper": HYPER["adagrad"](0.0), **change}
    variable, slots = tf.Variable(tf.ones((10, 4))), [tf.Variable(tf.ones(s)) for s in args["slots"]]
    values = tf.ones(args["values"])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ru.row_update("adagrad", variable, slots, args["indices"], values, args["hyper"])
    # In a graph the shape function speaks first, where shapes are known.
    with pytest.raises(ValueError, match=inferred):
        tf.function(ru.row_update)("adagrad", variable, slots, args["indices"], values, args["hyper"])
    np.testing.assert_array_equal(variable.numpy(), np.ones((10, 4)))


def test_unknown_shapes_are_checked_when_run():
    variable, slot = tf.Variable(tf.zeros((10, 4))), tf.Variable(tf.ones((10, 4)))

    @tf.function(input_signature=[tf.TensorSpec(None, tf.int64), tf.TensorSpec(None)])
    def step(indices, values):
        ru.row_update("adagrad", variable, [slot], indices, values, HYPER["adagrad"](0.0))

    step(tf.constant([1, 1, 3], tf.int64), tf.ones((3, 4)))
    assert set(np.flatnonzero(variable.numpy().any(axis=1))) == {1, 3}
    with pytest.raises(tf.errors.InvalidArgumentError, match="`values` must have the shape"):
        step(tf.constant([1], tf.int64), tf.ones((1, 5)))


def test_types_and_variables_are_checked():
    variable = tf.Variable(tf.zeros((4, 2)))
    hyper = HYPER["momentum"](0.0)
    half = tf.Variable(tf.zeros((4, 2), tf.bfloat16))
    with pytest.raises(tf.errors.InvalidArgumentError, match="`slots` must be of type float"):
        ru.row_update("momentum", variable, [half], [0], tf.ones((1, 2)), hyper)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be different variables"):
        ru.row_update("momentum", variable, [variable], [0], tf.ones((1, 2)), hyper)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=r'allowed=\["sgd", "momentum"'):
        _library.ops.largeout_row_update(
            variable=variable.handle, slots=[], indices=[0], values=tf.ones((1, 2)), hyper=[0.1, 0.0],
            rounding=tf.zeros([0], tf.int64), rule="adam", dtype=tf.float32,
        )  # fmt: skip


def test_rows_of_a_gradient_are_known_to_increase(rng):
    table = tf.Variable(tf.zeros((9, 3)))

    @tf.function
    def step(ids):
        rows, sums = ru.merge_rows(ids, tf.ones((2, 3)), 9)
        ru.row_update("sgd", table, [], rows, sums, ru.sgd_hyper(1.0))
        rows, sums = _library.ops.largeout_embedding_grad(
            ids=ids,
            row_splits=tf.zeros([0], tf.int64),
            weights=tf.zeros([0]),
            grad=tf.ones((2, 3)),
            num_rows=tf.constant(9, tf.int64),
        )
        ru.row_update("sgd", table, [], rows, sums, ru.sgd_hyper(1.0))

    graph = step.get_concrete_function(tf.constant([4, 4])).graph
    updates = [op for op in graph.get_operations() if op.type == "Largeout>RowUpdate"]
    assert [op.get_attr("increasing") for op in updates] == [False, True]
    assert all(op.get_attr("late_errors") for op in updates)
    step(tf.constant([4, 4]))
    np.testing.assert_array_equal(table[4], [-4.0] * 3)


@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_a_gpu_tells_late(device):
    """The call itself changes nothing and raises nothing; the next one names the index."""
    table = tf.Variable(tf.zeros((5, 2)))

    @tf.function
    def step(indices):
        ru.row_update("sgd", table, [], indices, tf.ones((2, 2)), ru.sgd_hyper(1.0))

    step(tf.constant([1, 7], tf.int64))
    assert not table.numpy().any()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"in \[0, 5\).*indices\[1\] = 7 in an earlier"):
        step(tf.constant([1, 2], tf.int64))
    step(tf.constant([1, 2], tf.int64))
    assert table.numpy().sum() == -4.0


def test_a_reader_keeps_what_it_read(device):
    variable = tf.Variable(tf.zeros((4, 2)))
    before = variable.read_value()
    ru.row_update("sgd", variable, [], [1], tf.ones((1, 2)), ru.sgd_hyper(1.0))
    assert not before.numpy().any()
    np.testing.assert_array_equal(variable.numpy()[1], [-1, -1])


@pytest.mark.parametrize("shape", [(5,), (5, 4), (5, 2, 3)])
@pytest.mark.parametrize("indices", [[3, 1, 3, 0, 1], [0, 1, 1, 4], [0, 1, 3, 4, 7], []])
def test_merge_rows(rng, device, shape, indices):
    values = rng.normal(size=(len(indices),) + shape[1:]).astype("float32")
    rows, sums = ru.merge_rows(tf.constant(indices, tf.int32), tf.constant(values), 9)
    assert rows.dtype == tf.int32 and sums.dtype == tf.float32
    np.testing.assert_array_equal(rows, np.unique(indices))
    want = [values[np.equal(indices, row)].sum(axis=0) for row in np.unique(indices)]
    np.testing.assert_allclose(sums, np.reshape(want, (-1,) + shape[1:]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_sum_rows(rng, device, dtype):
    """In float32; zeros where no index is, and any number of axes."""
    for shape, indices in (((5,), [3, 1, 3, 0, 1]), ((3, 2, 3), [0, 4, 0]), ((0, 2), [])):
        values = rng.integers(-8, 8, shape).astype(dtype)
        sums = ru.sum_rows(tf.constant(indices, tf.int64), tf.constant(values), 5)
        want = np.zeros((5, *shape[1:]))
        np.add.at(want, np.array(indices, int), values.astype("float64"))
        assert sums.dtype == dtype
        np.testing.assert_array_equal(sums.numpy().astype("float64"), want)


def test_merge_rows_names_an_index_out_of_range(device):
    with pytest.raises(tf.errors.InvalidArgumentError, match="9"):
        ru.merge_rows(tf.constant([3, 9, 3]), tf.ones((3, 2)), 9)


@pytest.mark.parametrize("copy_on_read", [True, False])
def test_what_was_read_before_an_update_stays(copy_on_read):
    """Whether reads copy or share memory: nobody sees an update in a value that was read before it."""
    variable, slot = tf.Variable(tf.ones([8, 4])), tf.Variable(tf.zeros([8, 4]))

    def update():
        ru.row_update(
            "momentum",
            variable,
            [slot],
            tf.range(8),
            tf.ones([8, 4]),
            ru.momentum_hyper(0.5, 0.9),
            copy_on_read=copy_on_read,
        )

    update()
    before, kept = variable.read_value(), variable.read_value().numpy()
    velocity = slot.read_value()
    update()
    np.testing.assert_array_equal(before, kept)
    np.testing.assert_array_equal(velocity, -0.5)
    np.testing.assert_allclose(variable, kept - 0.95)
    np.testing.assert_allclose(slot, -0.95)
