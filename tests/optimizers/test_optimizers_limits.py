"""What row updates refuse, and what a constraint does to rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import one_shard

import keras_largeout.optimizers as klo
from keras_largeout.tables.shard import ShardVariable


def rows(values=((1.0, 1.0, 1.0),), indices=(2,)):
    return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(indices))


def variable(table=keras.Variable, **kwargs):
    if table is ShardVariable:
        made = one_shard((5, 3), "ones")
        made.constraint = kwargs.get("constraint")
        return made
    made = keras.Variable(np.ones((5, 3)), dtype=kwargs.get("dtype", "float32"), name="table")
    made.constraint = kwargs.get("constraint")
    return made


both_kinds = pytest.mark.parametrize("table", [keras.Variable, ShardVariable])


EMA = (lambda: klo.Adagrad(use_ema=True), "`use_ema` must be False .* Received: use_ema=True")
AMSGRAD = (lambda: klo.LazyAdam(amsgrad=True), "`amsgrad` must be False .* Received: amsgrad=True")


@pytest.mark.parametrize(
    "table, optimizer, message",
    [(keras.Variable, *EMA), (keras.Variable, *AMSGRAD), (ShardVariable, *AMSGRAD)],
)
def test_what_would_move_every_row_is_refused(table, optimizer, message):
    weight = variable(table)
    with pytest.raises(ValueError, match=message):
        optimizer().apply([rows()], [weight])
    np.testing.assert_array_equal(weight.numpy(), 1.0)
    # Dense weights may have it.
    dense = keras.Variable(np.ones((5, 3), "float32"))
    optimizer().apply([tf.ones((5, 3))], [dense])
    assert (dense.numpy() < 1).all()


def test_types_that_have_no_kernel_are_refused():
    with pytest.raises(
        ValueError, match=r"`dtype` of weights .* must be float32 or bfloat16. Received: dtype=float16"
    ):
        klo.SGD(0.1).apply([rows()], [variable(dtype="float16")])


class OfOthers(keras.constraints.Constraint):
    """A constraint of a user."""

    def __call__(self, w):
        return w


@both_kinds
@pytest.mark.parametrize(
    "constraint", [keras.constraints.MaxNorm(1.0, axis=0), keras.constraints.UnitNorm(), OfOthers()]
)
def test_constraints_across_rows_are_refused(table, constraint):
    with pytest.raises(ValueError, match=r"`constraint` of weights .* must act on each row by itself"):
        klo.SGD(0.1).apply([rows()], [variable(table, constraint=constraint)])


@both_kinds
@pytest.mark.parametrize("constraint", [keras.constraints.NonNeg(), keras.constraints.MaxNorm(1.0, axis=1)])
def test_constraints_act_on_the_rows_updated(table, constraint):
    weight = variable(table, constraint=constraint)
    gradient = rows([[5.0, -5.0, 0.0]] * 2, [2, 2])
    klo.SGD(0.25).apply([gradient], [weight])
    got = weight.numpy()
    np.testing.assert_array_equal(np.delete(got, 2, axis=0), 1.0)
    want = np.array(constraint(tf.constant([[-1.5, 3.5, 1.0]])))[0]
    np.testing.assert_allclose(got[2], want, rtol=1e-6)


def test_an_index_out_of_range_is_named():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`indices` must be in \[0, 5\)"):
        klo.LazyAdam(0.1).apply([rows(indices=[7])], [variable()])


def test_unknown_variables_are_refused():
    optimizer = klo.SGD(0.1)
    optimizer.apply([rows()], [variable()])
    with pytest.raises(ValueError, match="Unknown variable"):
        optimizer.apply([rows()], [variable()])


def test_missing_gradients_are_skipped():
    a, b = variable(), variable()
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        klo.SGD(0.5).apply([None, rows()], [a, b])
    np.testing.assert_array_equal(a.numpy(), 1.0)
    np.testing.assert_array_equal(b.numpy()[2], 0.5)


def test_overwrite_with_gradient_is_kerass():
    scale, weight = keras.Variable(np.float32(1)), variable()
    scale.overwrite_with_gradient = True
    klo.SGD(0.5).apply([tf.constant(7.0), rows()], [scale, weight])
    assert float(scale) == 7.0
    np.testing.assert_array_equal(weight.numpy()[2], 0.5)


def test_overwrite_with_gradient_accumulates_as_keras_does():
    """Beside row gradients and alone (Keras's own path) a scale takes the same values."""
    found = []
    for with_rows in (True, False):
        scale, weight = keras.Variable(1.0), variable()
        scale.overwrite_with_gradient = True
        optimizer = klo.SGD(0.1, gradient_accumulation_steps=2)
        values = []
        for gradient in (3.0, 2.0, 0.5, 0.25):
            first = rows() if with_rows else tf.ones((5, 3))
            optimizer.apply([first, tf.constant(gradient)], [weight, scale])
            values.append(float(scale.numpy()))
        found.append(values)
    assert found[0] == found[1] == [1.0, 3.0, 3.0, 0.5]


def test_row_gradients_under_xla_are_refused():
    optimizer, weight = klo.Adagrad(0.1), variable()
    optimizer.build([weight])

    @tf.function(jit_compile=True)
    def step():
        optimizer.apply([rows()], [weight])

    with pytest.raises(ValueError, match=r"`jit_compile` must be False .* Received: jit_compile=True"):
        step()
    np.testing.assert_array_equal(weight.numpy(), 1.0)


def test_nan_stays_in_its_row():
    weight = variable()
    klo.LazyAdam(0.1).apply([rows([[np.nan] * 3])], [weight])
    assert np.isnan(weight.numpy()[2]).all() and np.isfinite(np.delete(weight.numpy(), 2, axis=0)).all()
