"""Records in files: no update copies one, another one takes its place, rows are asked for."""

import os

import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.ops import records as rec
from keras_largeout.ops import row_update as ru
from keras_largeout.ops._library import ops
from tests.ops.records._records import file_of, in_file, mapped

pytestmark = pytest.mark.usefixtures("on_cpu")

WRONG = (tf.errors.InvalidArgumentError, ValueError)


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_is_never_copied(rng, tmp_path, shared):
    """Whoever shares the memory: updates are in the file, and 8 GB of it are not in memory."""
    shape = [10_000_000, 200]
    path = tmp_path / "records"
    table = ops.largeout_mapped_table(str(path), shape, dtype=tf.float32)
    variable = tf.Variable(table, trainable=False)
    if not shared:
        del table
    for step in range(3):  # the first one, and then in copy-on-read mode
        ids = tf.constant([7, 9_999_999, 7], tf.int64)
        rec.record_update("sgd", variable, ids, tf.ones([3, 8]), ru.sgd_hyper(0.5), "float32", 8)
        found = file_of(path, shape)[[7, 8, 9_999_999], 1:10]
        want = np.outer([-(step + 1.0), 0, -(step + 1) / 2], [1] * 8 + [0])
        np.testing.assert_array_equal(found, want)
        rows, _ = rec.gather_records(variable, ids, "float32", 8)
        np.testing.assert_array_equal(rows[:, 0], want[[0, 2, 0], 0])
    # TensorFlow's own scattered write and RowUpdate find the same memory.
    variable.scatter_update(tf.IndexedSlices(tf.ones([1, 200]), [8]))
    ru.row_update("sgd", variable, [], [8], tf.ones([1, 200]), ru.sgd_hyper(0.25))
    assert file_of(path, shape)[8, 5] == 0.75
    assert os.stat(path).st_blocks * 512 < 1 << 20


def test_a_read_only_file_is_an_error(tmp_path):
    np.ones([4, 3], np.float32).tofile(tmp_path / "records")
    path = str(tmp_path / "records")
    variable = mapped(path, [4, 3], read_only=True)
    rows, written = rec.gather_records(variable, [3], "float32", 2)
    assert rows.numpy().all() and written.numpy().all()
    with pytest.raises(tf.errors.FailedPreconditionError, match="opened to be read only"):
        rec.record_update("sgd", variable, [1], tf.ones([1, 2]), ru.sgd_hyper(1.0), "float32", 2)
    with pytest.raises(tf.errors.FailedPreconditionError, match="opened to be read only"):
        ru.row_update("sgd", variable, [], [1], tf.ones([1, 3]), ru.sgd_hyper(1.0))
    rec.remap_variable(variable, path, [4, 3])  # to be written too
    rec.record_update("sgd", variable, [1], tf.ones([1, 2]), ru.sgd_hyper(1.0), "float32", 2)
    assert file_of(path, (4, 3))[1, 1:].tolist() == [0, 0]


def test_prefetch_brings_rows(rng, tmp_path):
    records = rng.normal(size=(5000, 193)).astype("float32")
    variable = in_file(tmp_path / "records", records)
    ids = rng.integers(0, 5000, 300)
    for indices in (tf.constant(ids), tf.constant(ids, tf.int32), ids[:0]):
        rec.prefetch_rows(variable, indices)
        tf.function(rec.prefetch_rows)(variable, indices)
    np.testing.assert_array_equal(variable, records)
    for dtype in ("float32", "bool", "int64"):  # memory that is no file, of any type
        ordinary = tf.Variable(tf.ones([20, 3], dtype))
        rec.prefetch_rows(ordinary, [0, 19])
        np.testing.assert_array_equal(ordinary, np.ones([20, 3]))
    rec.prefetch_rows(tf.Variable(tf.zeros([3, 0])), [2])


@pytest.mark.parametrize("graph", [False, True])
def test_remap_after_sparse_updates(tmp_path, graph):
    """In copy-on-read mode, where an assignment would copy 7.7 GB into memory."""
    shape, paths = [10_000_000, 193], [tmp_path / "a", tmp_path / "b"]
    variable = mapped(paths[0], shape)

    def update():
        rec.record_update("sgd", variable, [3, 9_999_999], tf.ones([2, 4]), ru.sgd_hyper(1.0), "float32", 4)

    def remap(path):
        rec.remap_variable(variable, path, shape)

    remap = tf.function(remap) if graph else remap
    updates = [0, 0]  # of each file
    for turn in range(5):
        update()
        updates[turn % 2] += 1
        for path, count in zip(paths[: turn + 1], updates):
            assert file_of(path, shape)[9_999_999, 1:5].tolist() == [-count] * 4
        remap(tf.constant(str(paths[(turn + 1) % 2])))
        rows, _ = rec.gather_records(variable, [3], "float32", 4)
        assert rows.numpy().tolist() == [[-updates[(turn + 1) % 2]] * 4]
    assert all(os.stat(path).st_blocks * 512 < 1 << 20 for path in paths)


def test_remap_to_other_sizes(tmp_path):
    variable = mapped(tmp_path / "a", [10, 7])
    rec.remap_variable(variable, str(tmp_path / "b"), tf.constant([10, 9]))
    assert tf.shape(variable).numpy().tolist() == [10, 9]
    rec.remap_variable(variable, str(tmp_path / "b"), [10, 9], read_only=True)
    with pytest.raises(
        WRONG, match=r"`shape` must be one that `variable` may have: \[10,\?\]. Rec.*\[11,9\]"
    ):
        rec.remap_variable(variable, str(tmp_path / "c"), [11, 9])
    with pytest.raises(WRONG, match="must be equal, but are 10 and 11"):
        tf.function(rec.remap_variable)(variable, str(tmp_path / "c"), [11, 9])
    assert not (tmp_path / "c").exists()
    with pytest.raises(tf.errors.FailedPreconditionError, match="it must have 320 bytes, and has 360"):
        rec.remap_variable(variable, str(tmp_path / "b"), [10, 8])
    with pytest.raises(tf.errors.FailedPreconditionError, match="it cannot be opened: No such file"):
        rec.remap_variable(variable, str(tmp_path / "c"), [10, 9], read_only=True)
    assert tf.shape(variable).numpy().tolist() == [10, 9]
    half = tf.Variable(tf.zeros([2, 2], tf.bfloat16))
    rec.remap_variable(half, str(tmp_path / "d"), [2, 2])
    assert os.path.getsize(tmp_path / "d") == 8
    with pytest.raises(WRONG, match=r"must be of type bfloat16\. Received: float"):
        ops.largeout_remap_variable(variable.handle, str(tmp_path / "b"), [10, 9], dtype=tf.bfloat16)
