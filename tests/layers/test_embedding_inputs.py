"""The op `embedding` and its input: shapes that are known, unknown or wrong, and the words of its errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl
from keras_largeout.ops._library import ops
from keras_largeout.ops.embedding import wrapper as em


def make(rng, rows=50, dim=17):
    return rng.normal(size=(rows, dim)).astype("float32")


def static_shapes(ids_shape, splits_shape, weights_shape, combiner, grad_shape):
    """The shapes that a graph infers for lookup, gradient (rows) and weights' gradient."""
    with tf.Graph().as_default():
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[50, 17])
        ids = tf.compat.v1.placeholder(tf.int32, ids_shape)
        splits = tf.compat.v1.placeholder(tf.int64, splits_shape)
        weights = tf.compat.v1.placeholder(tf.float32, weights_shape)
        grad = tf.compat.v1.placeholder(tf.float32, grad_shape)
        lookup = ops.largeout_embedding_lookup(handle, ids, splits, weights, tf.float32, combiner)
        unique, rows = ops.largeout_embedding_grad(ids, splits, weights, grad, 50, combiner)
        weights_grad = ops.largeout_embedding_weights_grad(handle, ids, splits, weights, grad, combiner)
        assert unique.shape.as_list() == [None]
        return [x.shape if x.shape.rank is None else x.shape.as_list() for x in (lookup, rows, weights_grad)]


UNKNOWN = tf.TensorShape(None)


@pytest.mark.parametrize(
    ("shapes", "want"),
    [
        (([3, 4], [0], [0], "none", [3, 4, 17]), ([3, 4, 17], [None, 17], [3, 4])),
        (([3, None], [0], [3, None], "sum", [3, 17]), ([3, 17], [None, 17], [3, None])),
        (([7], [0], [7], "mean", [17]), ([17], [None, 17], [7])),
        (([7], [4], [0], "mean", [3, 17]), ([3, 17], [None, 17], [7])),
        (([None], [None], [None], "mean", None), (UNKNOWN, [None, None], [None])),
        ((None, [0], None, "none", None), (UNKNOWN, [None, None], UNKNOWN)),
        ((None, None, None, "sum", [None, None, None]), (UNKNOWN, [None, None], UNKNOWN)),
        (([2, 3, 4], [None], [0], "sum", [2, 3, None]), ([2, 3, 17], [None, None], [2, 3, 4])),
    ],
)
def test_shapes_known_and_unknown(shapes, want):
    assert static_shapes(*shapes) == list(want)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (([3, 4], [5], [0], "none", [3, 4, 17]), r"`row_splits` must be empty .* Received: shape \[5\]"),
        (([3, 4], [5], [0], "sum", [4, 17]), "`ids`|must be rank 1 but is rank 2"),  # splits need flat ids
        (([3, 4], [0, 1], [0], "sum", [3, 17]), "`row_splits`|must be rank 1 but is rank 2"),
        (([3, 4], [0], [3, 5], "sum", [3, 17]), r"`weights`|Shapes are \[3,4\] and \[3,5\]"),
        (([3, 4], [0], [2], "sum", [3, 17]), "`weights`|equal rank, but are 2 and 1"),
        (([], [0], [0], "sum", [17]), "`ids`|must be at least rank 1 but is rank 0"),
        (([3, 4], [0], [0], "sum", [3, 18]), r"`grad`|Shapes are \[3,18\] and \[3,17\]"),
        (([3, 4], [0], [0], "sum", [17]), "`grad`|equal rank, but are 1 and 2"),
    ],
)
def test_wrong_shapes_fail_in_the_graph(shapes, message):
    with pytest.raises(ValueError, match=message):
        static_shapes(*shapes)


def test_unknown_shapes_in_a_graph(rng):
    table = make(rng)
    variable = tf.Variable(table)

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    def ragged(ids):
        output = em.embedding_lookup(variable, ids, combiner="sum")
        assert output.shape.as_list() == [None, 17]
        return output

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
    def sparse(ids):
        output = em.embedding_lookup(variable, ids, combiner="sum")
        assert output.shape.as_list() == [None, 17]
        return output

    @tf.function(input_signature=[tf.TensorSpec(None, tf.int32), tf.TensorSpec(None, tf.float32)])
    def dense(ids, weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = tf.reduce_sum(em.embedding_lookup(variable, ids, weights=weights, combiner="sum"))
        return tape.gradient(loss, weights)

    ids = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int32)
    want = em.embedding_lookup_reference(table, [1, 2, 3], [0, 2, 2, 3], None, "sum")
    np.testing.assert_allclose(ragged(ids), want, rtol=1e-5)
    np.testing.assert_allclose(sparse(tf.cast(ids, tf.int64).to_sparse()), want, rtol=1e-5)
    np.testing.assert_allclose(dense([1, 2], [1.0, 2.0]), table[[1, 2]].sum(-1), rtol=1e-4)


@pytest.mark.parametrize("graph", [False, True])
def test_bad_ids_are_named(rng, request, graph):
    if graph:  # in which a GPU tells with the next call
        request.getfixturevalue("on_cpu")
    variable = tf.Variable(make(rng))
    call = tf.function(em.embedding_lookup) if graph else em.embedding_lookup
    for bad in (50, -1, 2**40):
        message = rf"`ids` must lie in \[0, 50\), the rows of the table. Received: ids\[1, 2\] = {bad}"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            call(variable, tf.constant([[1, 2, 3], [4, 5, bad]], tf.int64), combiner="sum")
    with pytest.raises(tf.errors.InvalidArgumentError, match="`ids` must lie in"):
        ops.largeout_embedding_grad([50], tf.zeros([0], tf.int64), [], tf.zeros([1, 3]), 50)


def raises_in_both(message, f):
    """Eagerly and in a graph."""
    for run in (f, tf.function(f)):
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
            run()


def test_bad_shapes(rng):
    variable = tf.Variable(make(rng))
    lookup = em.embedding_lookup
    none = tf.zeros([0], tf.int64)
    raises_in_both("weights|equal", lambda: lookup(variable, [[1, 2]], weights=[[1.0, 2.0, 3.0]]))
    raises_in_both("ids|rank", lambda: lookup(variable, 3, combiner="sum"))
    raises_in_both("row_splits|rank", lambda: lookup(variable, [1, 2], [[0, 2]], combiner="sum"))
    raises_in_both("row_splits|rank", lambda: lookup(variable, [[1, 2]], [0, 2], combiner="sum"))
    raises_in_both(
        "row_splits",
        lambda: ops.largeout_embedding_lookup(variable.handle, [1], [0, 1], [], dtype=tf.float32),
    )
    raises_in_both("grad|equal", lambda: ops.largeout_embedding_grad([1], none, [], tf.zeros([2, 3]), 50))
    raises_in_both(
        "num_rows|rank", lambda: ops.largeout_embedding_grad([1], none, [], tf.zeros([1, 3]), [50])
    )
    raises_in_both(
        "grad|equal",
        lambda: ops.largeout_embedding_weights_grad(variable.handle, [1], none, [], tf.zeros([1, 3])),
    )
    vector = tf.Variable(tf.zeros([5]))
    raises_in_both("table|rank", lambda: lookup(vector, [1]))
    for splits in ([1, 2], [0, 2, 1, 2], [0, 1], [0, 3]):
        raises_in_both(
            "`row_splits` must begin with 0", lambda s=splits: lookup(variable, [1, 2], s, None, "sum")
        )
    with pytest.raises(tf.errors.InvalidArgumentError, match="`num_rows` must not be negative"):
        ops.largeout_embedding_grad([1], none, [], tf.zeros([1, 3]), -1)


def test_bad_arguments(rng):
    variable = tf.Variable(make(rng))
    ragged, sparse = tf.ragged.constant([[1], [2, 3]]), tf.sparse.from_dense([[1, 2], [0, 3]])
    for kwargs, error, message in [
        ({"combiner": "min"}, ValueError, "`combiner` must be one of"),
        ({"out_of_range": "clip"}, ValueError, "`out_of_range` must be one of"),
        ({"table": tf.zeros([3, 4])}, TypeError, "`table` must be a tf.Variable"),
        ({"table": tf.Variable(tf.zeros([3, 4], tf.float64))}, ValueError, "float32 or bfloat16"),
        ({"ids": [1.0]}, ValueError, "`ids` must be integers"),
        ({"ids": ragged, "row_splits": [0, 1], "combiner": "sum"}, ValueError, "`row_splits` must be None"),
        ({"row_splits": [0, 1]}, ValueError, "`row_splits` must be None"),
        ({"ids": ragged, "weights": [[1.0]]}, TypeError, "`weights` must be a RaggedTensor"),
        ({"weights": sparse}, TypeError, "`weights` must be dense"),
        ({"ids": sparse}, ValueError, "`combiner` must be given"),
        (
            {"ids": ragged, "weights": tf.ragged.constant([[1.0, 2.0], [3.0]])},
            Exception,
            "row splits of `ids`",
        ),
    ]:
        with pytest.raises(error, match=message):
            em.embedding_lookup(**{"table": variable, "ids": [1], **kwargs})


def test_uninitialized_table():
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[3, 4], shared_name="nobody")
    with pytest.raises(tf.errors.FailedPreconditionError, match="`table` must be an initialized variable"):
        ops.largeout_embedding_lookup(handle, [1], tf.zeros([0], tf.int64), [], dtype=tf.float32)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_ids_of_a_type_that_rounds_them(policy):
    """Refused outside of functional models, too. (A subclassed model casts its inputs by its policy.)"""
    layer = kl.layers.ShardedEmbedding(3000, 2, "zeros")
    many = kl.layers.DistributedEmbedding(
        kl.layers.FeatureConfig("f", kl.layers.TableConfig("t", 3000, 2, combiner=None))
    )
    for call in (layer, many, lambda ids: layer(tf.ragged.constant([[1.0]], dtype="float16"))):
        with pytest.raises(NotImplementedError, match="`inputs` must be integers: float16 cannot hold"):
            call(tf.constant([1, 2], tf.float16))
    assert layer(tf.constant([1, 2], tf.float32)).shape == (2, 2)

    class Model(keras.Model):
        def call(self, ids):
            return layer(ids)

    model, ids = Model(dtype=policy), np.array([[2049.0]], "float32")
    if policy == "float32":
        assert model(ids).shape == (1, 1, 2)
    else:
        with pytest.raises(NotImplementedError, match="float16 cannot hold every id below 3000"):
            model(ids)
