"""`SparseDense`: a matrix product that is never dense, its gradient, and what it refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl

WIDTH = 50


def sparse_batch(rng, rows=6, width=WIDTH, density=0.2):
    dense = rng.normal(size=(rows, width)) * (rng.random((rows, width)) < density)
    return dense.astype("float32"), tf.sparse.from_dense(dense.astype("float32"))


@pytest.mark.parametrize("units", [1, 2, 3, 4, 8, 17])
def test_equals_a_dense_layer_in_value_and_gradient(rng, units):
    dense, x = sparse_batch(rng)
    layer = kl.layers.SparseDense(units, activation="tanh")
    layer(x)
    layer.bias.assign(rng.normal(size=units))
    truth = keras.layers.Dense(units, activation="tanh")
    truth.build((None, WIDTH))
    truth.set_weights([layer.kernel.numpy(), layer.bias.numpy()])

    def of(layer, x):
        with tf.GradientTape() as tape:
            y = layer(x)
            loss = tf.reduce_sum(y * y)
        weights = [w for w in layer.trainable_weights if w.shape != (0,)]
        return y, tape.gradient(loss, weights)

    (y, (kernel, bias)), (want, (want_kernel, want_bias)) = of(layer, x), of(truth, dense)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    assert isinstance(kernel, tf.IndexedSlices)
    np.testing.assert_array_equal(kernel.indices, np.flatnonzero((dense != 0).any(0)))
    np.testing.assert_allclose(tf.convert_to_tensor(kernel), want_kernel, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(bias, want_bias, rtol=1e-5, atol=1e-6)


def test_every_kind_of_input_gives_the_same(rng):
    dense, x = sparse_batch(rng)
    layer = kl.layers.SparseDense(3, input_dim=WIDTH)
    want = layer(x)
    rows = [np.flatnonzero(row) for row in dense]
    ids = tf.ragged.constant([r.tolist() for r in rows], dtype=tf.int64, ragged_rank=1)
    values = tf.ragged.constant(
        [row[r].tolist() for row, r in zip(dense, rows)], dtype=tf.float32, ragged_rank=1
    )
    np.testing.assert_allclose(layer(ids, values), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer(ids.to_tensor(0), values.to_tensor(0.0)), want, rtol=1e-5, atol=1e-6)
    # Without values each feature counts as one; a rank more; integers; nothing at all.
    ones = tf.cast(tf.sparse.from_dense((dense != 0).astype("int32")), tf.int32)
    np.testing.assert_allclose(layer(ids), layer(ones), rtol=1e-5, atol=1e-6)
    cube = tf.sparse.reshape(x, [2, 3, WIDTH])
    np.testing.assert_allclose(layer(cube), np.reshape(want, (2, 3, 3)), rtol=1e-5, atol=1e-6)
    assert layer(tf.sparse.from_dense(np.zeros((0, WIDTH), "float32"))).shape == (0, 3)
    np.testing.assert_array_equal(
        layer(tf.sparse.from_dense(np.zeros((2, WIDTH), "float32"))), np.zeros((2, 3))
    )


@pytest.mark.parametrize("own", [False, True], ids=["of the model", "of the layer"])
def test_ftrl_with_l1_leaves_weights_of_exactly_zero(rng, own):
    dense, _ = sparse_batch(rng, 400)
    y = (dense[:, :3].sum(1) > 0).astype("float32")  # three features matter
    ftrl = keras.optimizers.Ftrl(0.5, l1_regularization_strength=2.0)
    inputs = keras.Input((WIDTH,), sparse=True)
    layer = kl.layers.SparseDense(
        1, activation="sigmoid", kernel_initializer="zeros", optimizer=ftrl if own else None
    )
    model = kl.Model(inputs, layer(inputs))
    ours = kl.optimizers.Ftrl(0.5, l1_regularization_strength=2.0)
    model.compile("sgd" if own else ours, "binary_crossentropy")
    rows = kl.datasets.SparseRows((*_csr(dense), dense.shape), y)
    model.fit(rows.dataset(20), epochs=5, verbose=0)
    kernel = layer.table.numpy()[:, 0]
    assert layer.count_nonzero() == np.count_nonzero(kernel) < WIDTH
    assert np.all(np.abs(kernel[:3]) > np.abs(kernel[3:]).max())


def _csr(dense):
    rows, columns = np.nonzero(dense)
    return np.searchsorted(rows, np.arange(len(dense) + 1)), columns, dense[rows, columns]


def test_l1_penalty_of_the_rows_that_are_used(rng):
    dense, x = sparse_batch(rng)
    layer = kl.layers.SparseDense(2, kernel_regularizer=keras.regularizers.L1(0.1))
    layer(x)
    used = (dense != 0).any(0)
    np.testing.assert_allclose(layer.losses[0], 0.1 * np.abs(layer.kernel.numpy()[used]).sum(), rtol=1e-5)


def test_scipy_matrices_go_into_fit(rng):
    scipy = pytest.importorskip("scipy.sparse")
    dense, _ = sparse_batch(rng, 40)
    inputs = keras.Input((WIDTH,), sparse=True)
    model = kl.Model(inputs, kl.layers.SparseDense(1, kernel_initializer="zeros")(inputs))
    model.compile(kl.optimizers.SGD(0.1), "mse")
    blocks = scipy.hstack([scipy.csr_matrix(dense[:, :20]), scipy.csr_matrix(dense[:, 20:])])
    y = rng.normal(size=40)
    of_fit = model.fit(blocks.tocsr(), y, batch_size=8, shuffle=False, verbose=0).history["loss"]
    model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    of_rows = model.fit(kl.datasets.SparseRows(blocks, y).dataset(8), verbose=0).history["loss"]
    np.testing.assert_allclose(of_fit, of_rows, rtol=1e-6)


def test_files(rng, tmp_path):
    _, x = sparse_batch(rng)
    inputs = keras.Input((WIDTH,), sparse=True)
    model = kl.Model(inputs, kl.layers.SparseDense(3, name="wide")(inputs))
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")(x), model(x))
    model.save_weights(tmp_path / "wide.weights.h5")
    wider = keras.Input((WIDTH + 1,), sparse=True)
    wider = kl.Model(wider, kl.layers.SparseDense(3, name="wide")(wider))
    with pytest.raises(ValueError, match=r"does not fit"):
        wider.load_weights(tmp_path / "wide.weights.h5")


def test_export(rng, tmp_path):
    ids = keras.Input((None,), dtype="int64")
    model = kl.Model(ids, kl.layers.SparseDense(2, input_dim=WIDTH)(ids))
    kl.export_saved_model(model, str(tmp_path / "saved"))
    chosen = rng.integers(0, WIDTH, (4, 5))
    saved = tf.saved_model.load(str(tmp_path / "saved"))
    (served,) = tf.nest.flatten(saved.serve(tf.constant(chosen)))
    np.testing.assert_allclose(served, model(chosen), rtol=1e-5, atol=1e-6)


def test_what_it_refuses(rng):
    dense, x = sparse_batch(rng)
    layer = kl.layers.SparseDense(2, input_dim=WIDTH, name="wide")
    with pytest.raises(ValueError, match=r"`inputs` of 'wide' must be a tf.SparseTensor .*dtype.*float32"):
        layer(tf.constant(dense))
    with pytest.raises(ValueError, match=r"`inputs` of 'wide' must be .* float32"):
        layer(keras.Input((WIDTH,)))
    with pytest.raises(ValueError, match=r"`inputs` of 'wide' must have 50 columns"):
        layer(sparse_batch(rng, width=WIDTH + 1)[1])
    with pytest.raises(ValueError, match=r"`values` must be None where `inputs` are a tf.SparseTensor"):
        layer(x, x)
    with pytest.raises(ValueError, match=r"`input_dim` of 'open' must be given"):
        kl.layers.SparseDense(2, name="open")(tf.ragged.constant([[1, 2]]))
    with pytest.raises(ValueError, match=r"`units` must be a positive integer"):
        kl.layers.SparseDense(0)
    with pytest.raises(ValueError, match=r"`out_of_range` must be one of"):
        kl.layers.SparseDense(1, out_of_range="wrap")
    unsorted = tf.SparseTensor([[1, 0], [0, 3]], [1.0, 2.0], [2, WIDTH])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"must be in order"):
        layer(unsorted)
    outside = tf.SparseTensor([[0, 0], [2, 3]], [1.0, 2.0], [2, WIDTH])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"inside its shape"):
        layer(outside)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{WIDTH}"):
        layer(tf.constant([[1, WIDTH]]))
    assert kl.layers.SparseDense(2, WIDTH, out_of_range="zero")(tf.constant([[WIDTH]])).shape == (1, 2)
