"""The op `embedding`: its numbers, and those of its gradients, equal the reference for every kind of ids."""

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.ops.embedding import wrapper as em

BFLOAT16 = ml_dtypes.bfloat16
RAGGED = [0, 3, 3, 4, 9, 9]  # row splits with empty bags, also the last one


def make(rng, rows=50, dim=17, dtype=np.float32):
    return rng.normal(size=(rows, dim)).astype(dtype)


def run(table, ids, graph=False, upstream=None, **options):
    """The output and the gradients to the table and to the weights, of sum(output * upstream)."""
    variable = tf.Variable(table)
    weights = options.pop("weights", None)
    weights = None if weights is None else tf.constant(weights)

    def step(weights):
        with tf.GradientTape() as tape:
            if weights is not None:
                tape.watch(weights)
            output = em.embedding_lookup(variable, ids, weights=weights, **options)
            loss = tf.reduce_sum(tf.cast(output, tf.float32) * (1.0 if upstream is None else upstream))
        return output, tape.gradient(loss, (variable, weights) if weights is not None else (variable,))

    output, gradients = (tf.function(step) if graph else step)(weights)
    return output, gradients[0], gradients[1] if weights is not None else None


def check(rng, table, ids, tolerance=1e-5, **options):
    want = em.embedding_lookup_reference(table, ids, **options)
    upstream = rng.normal(size=want.shape).astype(table.dtype).astype("float32")
    rows_dtype = 1e-2 if table.dtype == BFLOAT16 else tolerance
    unique, rows, want_weights = em.embedding_gradient_reference(table, ids, upstream, **options)
    for graph in (False, True):
        output, gradient, weights = run(table, ids, graph, upstream, **options)
        assert output.dtype == table.dtype and output.shape == want.shape
        np.testing.assert_allclose(output.numpy().astype("float64"), want, rtol=rows_dtype, atol=rows_dtype)
        assert isinstance(gradient, tf.IndexedSlices) and gradient.values.dtype == table.dtype
        np.testing.assert_array_equal(gradient.indices, unique)
        np.testing.assert_array_equal(gradient.dense_shape, table.shape)
        values = gradient.values.numpy().astype("float64")
        np.testing.assert_allclose(values, rows, rtol=rows_dtype, atol=rows_dtype)
        if weights is not None:
            np.testing.assert_allclose(weights, want_weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("combiner", em.COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(252,), (4, 5, 2), (0, 4)])
def test_dense_ids_equal_reference(rng, combiner, weighted, shape):
    table = make(rng)
    ids = rng.integers(0, 50, shape)
    weights = rng.uniform(0.2, 1.0, shape).astype("float32") if weighted else None
    check(rng, table, ids, combiner=combiner, weights=weights)


def test_a_row_that_most_ids_ask_for(rng):
    """Threads share its columns."""
    ids = np.where(rng.uniform(size=4000) < 0.9, 7, rng.integers(0, 50, 4000))
    check(rng, make(rng), ids, tolerance=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
@pytest.mark.parametrize("ids_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("combiner", [None, "sqrtn"])
def test_dtypes(rng, dtype, ids_dtype, combiner):
    ids = rng.integers(0, 123, (63, 4)).astype(ids_dtype)
    weights = rng.uniform(0.2, 1.0, (63, 4)).astype("float32")
    check(rng, make(rng, 123, 17, dtype), ids, combiner=combiner, weights=weights)


@pytest.mark.parametrize("combiner", em.COMBINERS[1:])
@pytest.mark.parametrize("weighted", [False, True])
def test_row_splits(rng, combiner, weighted):
    ids = rng.integers(0, 50, 9)
    weights = rng.uniform(0.2, 1.0, 9).astype("float32") if weighted else None
    check(rng, make(rng), ids, row_splits=RAGGED, combiner=combiner, weights=weights)
    check(rng, make(rng), np.zeros([0], np.int64), row_splits=[0, 0, 0], combiner=combiner)


@pytest.mark.parametrize("combiner", em.COMBINERS)
def test_out_of_range_zero_drops_ids(rng, combiner):
    ids = rng.integers(-20, 70, (40, 3))
    ids[0] = [-1, 50, 2**31 - 1]  # a bag of nothing
    weights = rng.uniform(0.2, 1.0, ids.shape).astype("float32")
    check(rng, make(rng), ids, combiner=combiner, weights=weights, out_of_range="zero")
    check(rng, make(rng), ids, combiner=combiner, out_of_range="zero")
    wide = np.array([[1, 2**40 + 1], [-(2**40), 3]])  # no wrapping to 32 bits
    check(rng, make(rng), wide, combiner=combiner, out_of_range="zero")


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_gradient_of_numbers(rng, combiner):
    """Against central differences of the op itself."""
    ids, weights = np.array([[0, 2], [2, 2]]), rng.uniform(0.5, 1.5, (2, 2)).astype("float32")
    variable = tf.Variable(make(rng, 3, 4))
    upstream = rng.normal(size=(2, 4)).astype("float32")

    def f(weights):
        return em.embedding_lookup(variable, ids, weights=weights, combiner=combiner) * upstream

    theory, numbers = tf.test.compute_gradient(f, [weights], delta=1e-2)
    np.testing.assert_allclose(theory[0], numbers[0], atol=1e-3)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("combiner", em.COMBINERS)
def test_gradients_of_gradients(rng, combiner, in_graph):
    """Against those of a gather, with an id outside the table."""
    ids, weights = (
        tf.constant([[0, 3], [3, 3], [-1, 1]]),
        tf.constant(rng.uniform(0.5, 1.5, (3, 2)), tf.float32),
    )
    variable, weighted = tf.Variable(make(rng, 5, 4)), combiner not in (None, "max")

    def gather(weights):
        there = tf.cast(ids >= 0, tf.float32)
        rows, factors = tf.gather(variable, tf.maximum(ids, 0)), (weights * there)[..., None]
        if combiner is None:
            return rows * there[..., None]
        if combiner == "max":
            return tf.reduce_max(tf.where(there[..., None] > 0, rows, rows.dtype.min), 1)
        divisors = {"sum": 1.0, "mean": tf.reduce_sum(factors, 1)}
        divisors["sqrtn"] = tf.sqrt(tf.reduce_sum(factors**2, 1))
        return tf.reduce_sum(rows * factors, 1) / divisors[combiner]

    def lookup(weights):
        weights = weights if weighted else None
        return em.embedding_lookup(variable, ids, weights=weights, combiner=combiner, out_of_range="zero")

    def second(f):
        with tf.GradientTape() as outer:
            outer.watch(weights)
            with tf.GradientTape() as inner:
                value = tf.reduce_sum(f(weights) ** 3)
            gradient = tf.convert_to_tensor(inner.gradient(value, variable))
            value = tf.reduce_sum(gradient**2)
        sources = [variable, weights] if weighted else [variable]
        return [tf.convert_to_tensor(found) for found in outer.gradient(value, sources)]

    got = (tf.function(second) if in_graph else second)(lookup)
    for one, other in zip(got, second(gather)):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def test_rows_that_tie_share_the_gradient_of_max(rng):
    """As the rows of TensorFlow's segment maximum; an id that occurs twice in a bag has two shares."""
    table = rng.integers(0, 2, (6, 4)).astype("float32")
    ids, splits = np.array([0, 1, 2, 2, 3, 4, 5, 4]), [0, 4, 4, 8]
    check(rng, table, ids, row_splits=splits, combiner="max")
    check(rng, table, ids.reshape(2, 4), combiner="max")
    left_out = (ids != 2).astype("float32")
    check(rng, table, ids, row_splits=splits, combiner="max", weights=left_out)
    check(rng, table - 9, np.array([[1, -1], [-1, -1]]), combiner="max", out_of_range="zero")


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_error_against_float64_is_not_above_tensorflows(rng, combiner):
    table, splits = make(rng, 300, 64), np.arange(0, 4001, 8)
    ids = rng.integers(0, 300, 4000)
    weights = rng.uniform(0.1, 1.0, 4000).astype("float32")
    want = em.embedding_lookup_reference(table, ids, splits, weights, combiner)
    ours = em.embedding_lookup(tf.Variable(table), ids, splits, weights, combiner)
    rows = np.repeat(np.arange(500), 8)
    indices = np.stack([rows, np.tile(np.arange(8), 500)], 1)
    theirs = tf.nn.embedding_lookup_sparse(
        tf.constant(table),
        tf.SparseTensor(indices, ids, [500, 8]),
        tf.SparseTensor(indices, weights, [500, 8]),
        combiner=combiner,
    )
    assert np.abs(ours - want).max() <= 1.25 * np.abs(theirs - want).max()

    upstream = rng.normal(size=(4000, 64)).astype("float32")
    _, gradient, _ = run(table, ids, upstream=upstream)
    _, want_rows, _ = em.embedding_gradient_reference(table, ids, upstream)
    theirs = tf.math.unsorted_segment_sum(upstream, ids, 300)
    assert np.abs(gradient.values - want_rows).max() <= 1.25 * np.abs(theirs - want_rows).max()


@pytest.mark.parametrize("combiner", em.COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_ragged_ids(rng, combiner, weighted):
    table, flat = make(rng), rng.integers(0, 50, 9)
    weights = rng.uniform(0.2, 1.0, 9).astype("float32") if weighted else None
    ids = tf.RaggedTensor.from_row_splits(flat, RAGGED)
    ragged_weights = None if weights is None else tf.RaggedTensor.from_row_splits(weights, RAGGED)
    got = em.embedding_lookup(tf.Variable(table), ids, weights=ragged_weights, combiner=combiner)
    splits = None if combiner is None else RAGGED
    want = em.embedding_lookup_reference(table, flat, splits, weights, combiner)
    if combiner is None:
        np.testing.assert_array_equal(got.row_splits, RAGGED)
        got = got.flat_values
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_nested_ragged_ids(rng):
    table = make(rng)
    ids = tf.ragged.constant([[[1, 2], []], [], [[3], [4, 4, 4]]])
    got = em.embedding_lookup(tf.Variable(table), ids, combiner="sum")
    want = em.embedding_lookup_reference(table, [1, 2, 3, 4, 4, 4], [0, 2, 2, 3, 6], None, "sum")
    np.testing.assert_array_equal(got.row_splits, [0, 2, 2, 4])
    np.testing.assert_allclose(got.values, want, rtol=1e-5)
    inner = tf.RaggedTensor.from_row_splits([[1, 2], [3, 4], [5, 6]], [0, 1, 3])  # [2, (k), 2]
    got = em.embedding_lookup(tf.Variable(table), inner, combiner="mean")
    np.testing.assert_allclose(got.values, table[[[1, 2], [3, 4], [5, 6]]].mean(1), rtol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_ids(rng, weighted):
    table = make(rng)
    variable = tf.Variable(table)
    indices = [[0, 1], [0, 5], [2, 0], [2, 1], [2, 7]]  # row 1 and row 3 are empty
    flat = [4, 5, 6, 4, 4]
    weights = rng.uniform(0.2, 1.0, 5).astype("float32") if weighted else None
    ids = tf.SparseTensor(indices, tf.constant(flat, tf.int64), [4, 9])
    sparse_weights = None if weights is None else tf.SparseTensor(indices, weights, [4, 9])
    want = em.embedding_lookup_reference(table, flat, [0, 2, 2, 5, 5], weights, "mean")
    got = em.embedding_lookup(variable, ids, weights=sparse_weights, combiner="mean")
    np.testing.assert_allclose(got, want, rtol=1e-5)
    cube = tf.sparse.reshape(ids, [2, 2, 9])
    cube_weights = None if weights is None else tf.sparse.reshape(sparse_weights, [2, 2, 9])
    got = em.embedding_lookup(variable, cube, weights=cube_weights, combiner="mean")
    np.testing.assert_allclose(got, want.reshape(2, 2, -1), rtol=1e-5)


@pytest.mark.parametrize("device", ["gpu"], indirect=True)
@pytest.mark.parametrize("combiner", em.COMBINERS)
def test_gpu_equals_reference(rng, device, combiner):
    for dtype in (np.float32, BFLOAT16):
        ids = np.where(rng.uniform(size=(200, 3)) < 0.5, 7, rng.integers(-3, 53, (200, 3)))  # row 7 is hot
        weights = rng.uniform(0.2, 1.0, ids.shape).astype("float32")
        options = {"combiner": combiner, "out_of_range": "zero"}
        check(rng, make(rng, 50, 64, dtype), ids, 1e-4, weights=weights, **options)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`ids` must lie in"):
        em.embedding_lookup(tf.Variable(make(rng)), [1, 50])


class Words(keras.layers.Layer):
    def __init__(self, rows, dim):
        super().__init__(autocast=False)
        self.supports_jit = False
        self.table = self.add_weight(shape=(rows, dim), initializer="uniform", name="table")

    def call(self, ids):
        return em.embedding_lookup(self.table, ids, combiner="mean")


def test_fit_equals_keras_embedding(rng):
    ids, y = rng.integers(0, 30, (64, 4)), rng.normal(size=(64, 1))
    start = rng.normal(size=(30, 8)).astype("float32")
    results = []
    for words in (Words(30, 8), keras.layers.Embedding(30, 8)):
        inputs = keras.Input((4,), dtype="int32")
        x = words(inputs)
        if not isinstance(words, Words):
            x = keras.layers.GlobalAveragePooling1D()(x)
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(x))
        words.set_weights([start])
        model.compile(keras.optimizers.SGD(0.5), "mse")
        history = model.fit(ids, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
        results.append((history.history["loss"], words.get_weights()[0]))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-4)
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-4, atol=1e-5)
    assert results[0][0][-1] < results[0][0][0]


@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_a_gpu_tells_late(rng, device):
    """Bad ids are dropped in their own call; the next one names them."""
    table = tf.Variable(make(rng))
    lookup = tf.function(lambda ids: em.embedding_lookup(table, ids))
    got = lookup(tf.constant([3, 70, 4])).numpy()
    np.testing.assert_array_equal(got[1], np.zeros(17))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0, 50\).*Received: 70 at position 1 of the"):
        lookup(tf.constant([3, 2, 4]))
    np.testing.assert_array_equal(lookup(tf.constant([3, 2, 4])), table.numpy()[[3, 2, 4]])


@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_a_gpu_tells_of_bad_splits_late(rng, device):
    table, ids = tf.Variable(make(rng)), tf.constant([3, 2, 4])
    lookup = tf.function(lambda splits: em.embedding_lookup(table, ids, row_splits=splits, combiner="sum"))
    lookup(tf.constant([0, 2**40, 3])).numpy()  # waits
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`row_splits` must begin.*position 1"):
        lookup(tf.constant([0, 1, 3]))
