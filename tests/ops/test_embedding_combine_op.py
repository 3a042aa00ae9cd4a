"""The op `embedding_combine`: the numbers of `embedding_lookup` from a tensor, and a dense gradient."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.ops import exchange as ex
from keras_largeout.ops._library import ops
from keras_largeout.ops.embedding import wrapper as em

BFLOAT16 = ml_dtypes.bfloat16
NONE = np.zeros([0], np.int64)


def run(table, ids, graph, lookup, upstream, weights=None, **options):
    """The output and the gradients to the table (dense) and to the weights, of sum(output * upstream)."""
    weights = None if weights is None else tf.constant(weights)
    table = (tf.Variable if lookup is em.embedding_lookup else tf.constant)(table)

    def step(weights):
        with tf.GradientTape() as tape:
            tape.watch([table] if weights is None else [table, weights])
            output = lookup(table, ids, weights=weights, **options)
            loss = tf.reduce_sum(tf.cast(output, tf.float32) * upstream)
        gradient, of_weights = tape.gradient(loss, (table, table if weights is None else weights))
        assert isinstance(gradient, tf.Tensor) == (lookup is em.embedding_combine)
        return output, tf.convert_to_tensor(gradient), 0 if weights is None else of_weights

    return (tf.function(step) if graph else step)(weights)


def check(rng, table, ids, graphs=(False, True), **options):
    """The bits of `embedding_lookup`, which has its own tests against float64."""
    want = em.embedding_lookup_reference(table, ids, **options)
    upstream = rng.normal(size=want.shape).astype("float32")
    for graph in graphs:
        ours, theirs = (
            run(table, ids, graph, lookup, upstream, **options)
            for lookup in (em.embedding_combine, em.embedding_lookup)
        )
        for x, y in zip(ours, theirs):
            assert x.dtype == y.dtype if isinstance(x, tf.Tensor) else x == y
            np.testing.assert_array_equal(x, y)
    tolerance = 1e-2 if table.dtype == BFLOAT16 else 1e-5
    np.testing.assert_allclose(ours[0].numpy().astype("float64"), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("combiner", em.COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
@pytest.mark.parametrize("shape", [(252,), (4, 5, 2), (0, 4)])
def test_equals_lookup(rng, device, combiner, weighted, dtype, shape):
    weights = rng.uniform(0.2, 1.0, shape).astype("float32") if weighted else None
    options = {"combiner": combiner, "weights": weights, "out_of_range": "zero"}
    for ids_dtype in (np.int32, np.int64):
        table = rng.normal(size=(50, 17)).astype(dtype)
        check(rng, table, rng.integers(-5, 55, shape).astype(ids_dtype), **options)  # gaps and duplicates
        few = rng.integers(0, 3, shape).astype(ids_dtype)
        check(rng, table[:3], few, graphs=(False,), **options)  # nearly always all rows


@pytest.mark.parametrize("combiner", em.COMBINERS[1:])
def test_row_splits(rng, combiner):
    table, weights = rng.normal(size=(7, 5)).astype("float32"), rng.uniform(size=9).astype("float32")
    options = {"row_splits": [0, 3, 3, 4, 9, 9], "combiner": combiner, "weights": weights}
    check(rng, table, rng.integers(0, 7, 9), **options, out_of_range="error")


@pytest.mark.parametrize("graph", [False, True])
def test_ragged_and_sparse_ids(rng, graph):
    table = rng.normal(size=(7, 5)).astype("float32")
    ragged = tf.ragged.constant([[1, 2, 6], [], [3], [4, 4, -1]], dtype=tf.int32)
    want = em.embedding_lookup_reference(
        table, ragged.flat_values, ragged.row_splits, None, "mean", out_of_range="zero"
    )
    combine = tf.function(em.embedding_combine) if graph else em.embedding_combine
    np.testing.assert_allclose(combine(table, ragged, combiner="mean"), want, rtol=1e-5)
    sparse = tf.sparse.expand_dims(ragged.to_sparse(), 0)
    np.testing.assert_allclose(combine(table, sparse, combiner="mean"), want[None], rtol=1e-5)
    alone = combine(table, ragged)
    np.testing.assert_array_equal(alone.row_splits, ragged.row_splits)
    np.testing.assert_array_equal(alone.flat_values[:2], table[1:3])


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_gradient_of_numbers(rng, combiner):
    """Against central differences of the op itself, row 1 untouched."""
    ids, upstream = np.array([[0, 2], [2, 2]]), rng.normal(size=(2, 4)).astype("float32")
    arguments = [rng.normal(size=(3, 4)).astype("float32"), rng.uniform(0.5, 1.5, (2, 2)).astype("float32")]

    def f(table, weights):
        return em.embedding_combine(table, ids, weights=weights, combiner=combiner) * upstream

    theory, numbers = tf.test.compute_gradient(f, arguments, delta=1e-2)
    for x, y in zip(theory, numbers):
        np.testing.assert_allclose(x, y, atol=1e-3)


@pytest.mark.parametrize("graph", [False, True])
def test_rows_of_an_exchange(rng, graph):
    """Unique rows gathered from a table, combined: the numbers and the table's gradient of a plain lookup."""
    start, ids = rng.normal(size=(60, 9)).astype("float32"), rng.integers(-3, 60, (40, 5))
    upstream = rng.normal(size=(40, 9)).astype("float32")
    table = tf.Variable(start)

    def step():
        with tf.GradientTape() as tape:
            p = ex.partition_ids(ids, [0, 30, 60], "range", 60, 2, out_of_range="zero")
            rows = em.embedding_lookup(table, p.unique)
            loss = tf.reduce_sum(em.embedding_combine(rows, p.inverse, combiner="mean") * upstream)
        return loss, tape.gradient(loss, table)

    loss, gradient = (tf.function(step) if graph else step)()
    options = {"combiner": "mean", "out_of_range": "zero"}
    want = em.embedding_lookup_reference(start, ids, **options)
    np.testing.assert_allclose(loss, (want * upstream).sum(), rtol=1e-4)
    unique, rows, _ = em.embedding_gradient_reference(start, ids, upstream, **options)
    np.testing.assert_array_equal(gradient.indices, unique)
    np.testing.assert_allclose(gradient.values, rows, rtol=1e-4, atol=1e-5)


def static_shapes(table_shape, ids_shape, grad_shape):
    with tf.Graph().as_default():
        table = tf.compat.v1.placeholder(tf.float32, table_shape)
        ids = tf.compat.v1.placeholder(tf.int32, ids_shape)
        grad = tf.compat.v1.placeholder(tf.float32, grad_shape)
        output = ops.largeout_embedding_combine(table, ids, NONE, [], combiner="sum")
        weights = ops.largeout_embedding_combine_weights_grad(table, ids, NONE, [], grad, combiner="sum")
        num_rows = tf.shape(table, tf.int64)[0] if table_shape is None else table_shape[0] or -1
        if num_rows == -1:
            num_rows = tf.compat.v1.placeholder(tf.int64, [])
        rows = ops.largeout_embedding_combine_grad(ids, NONE, [], grad, num_rows, combiner="sum")
        return [x.shape if x.shape.rank is None else x.shape.as_list() for x in (output, weights, rows)]


def test_shapes():
    assert static_shapes([None, 17], [3, 4], [3, 17]) == [[3, 17], [3, 4], [None, 17]]
    assert static_shapes([9, 17], [3, 4], [3, 17]) == [[3, 17], [3, 4], [9, 17]]
    assert static_shapes(None, [3, 4], [3, None]) == [[3, None], [3, 4], [None, None]]
    unknown = tf.TensorShape(None)
    assert static_shapes(None, None, None) == [unknown, unknown, [None, None]]
    for wrong, message in (
        (([17], [3, 4], [3, 17]), "`table`|must be rank 2 but is rank 1"),
        (([5, 17], [], [17]), "`ids`|must be at least rank 1 but is rank 0"),
        (([5, 17], [3, 4], [3, 18]), r"`grad`|Shapes are \[3,18\] and \[3,17\]"),
    ):
        with pytest.raises(ValueError, match=message):
            static_shapes(*wrong)


@pytest.mark.parametrize("combiner", ["none", "sum", "mean", "sqrtn"])
def test_gradient_of_the_gradient(rng, combiner):
    """It is linear in what comes from above and not in the weights: against central differences."""
    ids = np.array([[0, 2], [2, 4]])
    shape = (2, 2, 4) if combiner == "none" else (2, 4)
    arguments = [rng.normal(size=shape).astype("float32"), rng.uniform(0.5, 1.5, (2, 2)).astype("float32")]
    upstream = rng.normal(size=(5, 4)).astype("float32")
    kwargs = {"combiner": combiner, "out_of_range": "zero"}

    def f(grad, weights):
        return ops.largeout_embedding_combine_grad(ids, NONE, weights, grad, 5, **kwargs) * upstream

    theory, numbers = tf.test.compute_gradient(f, arguments, delta=1e-2)
    np.testing.assert_allclose(theory[0], numbers[0], atol=1e-3)
    if combiner == "sum":  # of the others the gradient to the weights leaves out the divisor
        np.testing.assert_allclose(theory[1], numbers[1], atol=1e-3)


def test_errors_of_the_gradient_of_rows():
    grad, errors = tf.zeros([2, 3]), tf.errors.InvalidArgumentError
    for ids, num_rows, message in [
        ([0, 5], 5, r"`ids` must lie in \[0, 5\).*ids\[1\] = 5"),
        ([0, 1], -2, "-2"),
        ([0, 1, 2], 5, "`grad` must have the shape of the lookup's output"),
    ]:
        with pytest.raises(errors, match=message):
            ops.largeout_embedding_combine_grad(ids, NONE, [], grad, num_rows)
    empty = ops.largeout_embedding_combine_grad(
        tf.zeros([1, 0], tf.int32), NONE, [], grad[:1], 2, combiner="sum"
    )
    np.testing.assert_array_equal(empty, np.zeros((2, 3)))


def test_errors(rng):
    rows = tf.zeros([5, 3])
    for kwargs, error, message in [
        ({"combiner": "min"}, ValueError, "`combiner` must be one of"),
        ({"out_of_range": "clip"}, ValueError, "`out_of_range` must be one of"),
        ({"rows": tf.zeros([5, 3], tf.float64)}, ValueError, "`rows` must be of dtype float32 or bfloat16"),
        ({"rows": tf.zeros([5])}, tf.errors.InvalidArgumentError, "`table` must have shape"),
        ({"ids": [1.0]}, ValueError, "`ids` must be integers"),
        ({"row_splits": [0, 1]}, ValueError, "`row_splits` must be None"),
        ({"ids": [5], "out_of_range": "error"}, tf.errors.InvalidArgumentError, r"ids\[0\] = 5"),
    ]:
        with pytest.raises(error, match=message):
            em.embedding_combine(**{"rows": rows, "ids": [1], **kwargs})
