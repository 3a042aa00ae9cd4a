"""The op that makes a file the memory of a variable."""

import os

import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.ops._library import ops
from keras_largeout.ops.embedding.wrapper import embedding_lookup
from keras_largeout.ops.row_update import row_update, sgd_hyper
from keras_largeout.replicas.devices import plain_variable

pytestmark = pytest.mark.usefixtures("on_cpu")

FAILED = (tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError, ValueError)


def variable_of(path, shape, dtype="float32"):
    return plain_variable(lambda: ops.largeout_mapped_table(str(path), shape, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_a_new_file_is_sparse_and_keeps_what_is_written(tmp_path, dtype):
    shape = [10_000_000, 64]
    table = variable_of(tmp_path / "rows", shape, dtype)
    assert table.shape == shape
    table.scatter_update(tf.IndexedSlices(tf.ones([2, 64], dtype), [3, 9_999_999]))
    del table
    logical = 640_000_000 * tf.as_dtype(dtype).size
    assert os.path.getsize(tmp_path / "rows") == logical
    assert os.stat(tmp_path / "rows").st_blocks * 512 < 1 << 20
    again = variable_of(tmp_path / "rows", shape, dtype)
    found = tf.cast(tf.gather(again, [0, 3, 9_999_998, 9_999_999]), "float32")
    np.testing.assert_array_equal(found[:, 0], [0, 1, 0, 1])


def test_our_ops_work_in_place(tmp_path):
    """Lookup, gradient and update on the file's own memory: no copy of it is made."""
    table = variable_of(tmp_path / "rows", [50_000_000, 8])  # 1.6 GB
    ids = tf.constant([[1, 2], [2, 49_999_999]], tf.int64)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(embedding_lookup(table, ids, combiner="sum"))
    gradient = tape.gradient(total, table)
    row_update("sgd", table, [], gradient.indices, gradient.values, sgd_hyper(0.5))
    whole = np.memmap(tmp_path / "rows", np.float32, "r", shape=(50_000_000, 8))
    np.testing.assert_array_equal(whole[[0, 1, 2, 49_999_999], 0], [0, -0.5, -1, -0.5])
    assert os.stat(tmp_path / "rows").st_blocks * 512 < 1 << 20


def test_read_only(tmp_path):
    np.arange(6, dtype=np.float32).tofile(tmp_path / "rows")
    found = ops.largeout_mapped_table(str(tmp_path / "rows"), [3, 2], dtype=tf.float32, read_only=True)
    np.testing.assert_array_equal(found, [[0, 1], [2, 3], [4, 5]])
    with pytest.raises(FAILED, match="it cannot be opened: No such file"):
        ops.largeout_mapped_table(str(tmp_path / "none"), [3, 2], dtype=tf.float32, read_only=True)
    assert not (tmp_path / "none").exists()


def test_shapes_and_errors(tmp_path):
    path = str(tmp_path / "rows")
    assert ops.largeout_mapped_table(path, [3, 0], dtype=tf.float32).shape == (3, 0)
    assert not os.path.exists(path)

    @tf.function(input_signature=[tf.TensorSpec([2], tf.int64)])
    def unknown(shape):
        table = ops.largeout_mapped_table(path, shape, dtype=tf.float32)
        assert table.shape.as_list() == [None, None]
        return tf.shape(table)

    np.testing.assert_array_equal(unknown([4, 5]), [4, 5])
    with pytest.raises(
        FAILED, match=r"table of shape \[4,6\]. Received: .*rows; it must have 96 bytes, and has 80"
    ):
        ops.largeout_mapped_table(path, [4, 6], dtype=tf.float32)
    with pytest.raises(FAILED, match="it cannot be opened: No such file"):
        ops.largeout_mapped_table(str(tmp_path / "no" / "rows"), [4, 6], dtype=tf.float32)
    with pytest.raises(FAILED, match=r"-1|rank"):
        ops.largeout_mapped_table(path, [-1, 2], dtype=tf.float32)
    with pytest.raises(FAILED, match="rank"):
        ops.largeout_mapped_table(path, 3, dtype=tf.float32)
    with pytest.raises(FAILED, match=r"scalar|rank"):
        ops.largeout_mapped_table([path], [3], dtype=tf.float32)
    with pytest.raises(FAILED, match=r"2\^60"):
        ops.largeout_mapped_table(path, [2**59, 2], dtype=tf.float32)
