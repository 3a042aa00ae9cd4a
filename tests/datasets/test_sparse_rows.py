"""`SparseRows`: batches of a sparse matrix, and invalid matrices."""

import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl

INDPTR, INDICES, DATA, SHAPE = [0, 2, 2, 5], [1, 4, 0, 2, 3], [1.0, 2, 3, 4, 5], (3, 5)
DENSE = np.array([[0, 1, 0, 0, 2], [0, 0, 0, 0, 0], [3, 0, 4, 5, 0]], "float32")


def rows(targets=(0, 1, 2), **changed):
    parts = {"indptr": INDPTR, "indices": INDICES, "data": DATA, "shape": SHAPE} | changed
    return kl.datasets.SparseRows(tuple(parts.values()), targets)


@pytest.mark.parametrize("layout", ["sparse", "ragged"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 10])
def test_batches_are_the_rows(layout, shuffle, batch_size):
    seen = {}
    for x, targets in rows().dataset(batch_size, shuffle, seed=1, layout=layout):
        assert len(targets) <= batch_size
        if layout == "ragged":
            assert x["ids"].dtype == tf.int64 and x["values"].dtype == tf.float32
            dense = np.zeros((len(targets), 5), "float32")
            for i, (ids, values) in enumerate(zip(x["ids"], x["values"])):
                dense[i, ids] = values
        else:
            assert x.shape[-1] == 5
            dense = tf.sparse.to_dense(x).numpy()
        seen |= dict(zip(targets.numpy().tolist(), dense))
    np.testing.assert_array_equal([seen[i] for i in range(3)], DENSE)


def test_without_targets():
    (batch,) = rows(None).dataset(3)
    np.testing.assert_array_equal(tf.sparse.to_dense(batch), DENSE)
    assert len(rows(None)) == 3


def test_from_scipy():
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.hstack([sparse.coo_matrix(DENSE[:, :2]), sparse.csc_matrix(DENSE[:, 2:])])
    (batch,) = kl.datasets.SparseRows(matrix).dataset(3)
    np.testing.assert_array_equal(tf.sparse.to_dense(batch), DENSE)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"indptr": [0, 3, 2, 5]}, r"`indptr` must not decrease. Received: indptr\[1\]=3, indptr\[2\]=2"),
        ({"indptr": [0, 2, 5]}, "`indptr` must have one number more than there are rows, 4"),
        ({"indptr": [1, 2, 2, 5]}, "`indptr` must go from 0 to the number of elements, 5"),
        ({"indptr": [0, 2, 2, 4]}, "`indptr` must go from 0 .* from 0 to 4"),
        ({"indices": [1, 4, 0, 5, 3]}, r"`indices` must lie in \[0, 5\), the columns. Received: 5 in row 2"),
        ({"indices": [1, -4, 0, 2, 3]}, "Received: -4 in row 0"),
        ({"data": [1.0]}, "`indices` and `data` must be of one length. Received: 5 and 1"),
        ({"targets": [1]}, "`targets` must have one entry for each of the 3 rows. Received: 1"),
    ],
)
def test_what_is_no_matrix(changed, message):
    with pytest.raises(ValueError, match=message):
        rows(**changed)


def test_other_layouts():
    with pytest.raises(ValueError, match="`layout` must be one of"):
        rows().dataset(2, layout="dense")
    with pytest.raises(ValueError, match="`batch_size` must be a positive integer"):
        rows().dataset(0)
