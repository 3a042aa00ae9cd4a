"""A large parameter: created, read, written and saved in chunks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import one_shard

from keras_largeout.ops._library import ops
from keras_largeout.tables import chunks
from keras_largeout.tables.table import ShardedTable


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4 * 4 * 10)  # ten rows of four float32


def test_small_table_is_the_initializer():
    initializer = keras.initializers.RandomUniform(seed=3)
    shard = one_shard((7, 4), initializer)
    np.testing.assert_array_equal(shard.numpy(), initializer((7, 4)))


@pytest.mark.parametrize("name", ["uniform", "glorot_uniform", "he_normal", "lecun_normal", "zeros", "ones"])
def test_chunked_initializer_has_the_same_distribution(monkeypatch, name):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4 * 4 * 1000)
    initializer = keras.initializers.get(name)
    got = one_shard((10_003, 4), initializer).numpy()
    want = np.asarray(initializer((10_003, 4)))
    assert got.shape == want.shape
    np.testing.assert_allclose(got.mean(), want.mean(), atol=4 * want.std() / 200 + 1e-12)
    np.testing.assert_allclose(got.std(), want.std(), rtol=0.05)
    if want.std():
        assert len(np.unique(got[:, 0])) > 0.99 * len(got)  # chunks do not repeat each other


def test_chunked_initializer_is_reproducible(small_chunks):
    a, b = (one_shard((57, 4), keras.initializers.RandomNormal(seed=5)).numpy() for _ in range(2))
    np.testing.assert_array_equal(a, b)


def test_initializer_that_needs_the_whole_table(small_chunks):
    got = one_shard((23, 4), keras.initializers.Orthogonal(seed=1)).numpy()
    np.testing.assert_allclose(got.T @ got, np.eye(4), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 4), (57, 4), (57,)])
def test_save_and_load_rows(small_chunks, monkeypatch, shape, dtype):
    shard = one_shard(shape, keras.initializers.RandomNormal(seed=1), dtype=dtype)
    store = {}
    shard.array.save(store, "t")
    other = one_shard(shape, "zeros", dtype=dtype)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4 * 4 * 7)
    other.array.load(store, "t")
    np.testing.assert_array_equal(other.numpy(), shard.numpy())


def test_load_of_another_size_changes_nothing(small_chunks):
    store = {}
    one_shard((30, 4), "ones").array.save(store, "t")
    shard = one_shard((31, 4), "zeros")
    with pytest.raises(
        ValueError, match=r"does not fit `t`: expected shape \(31, 4\). Received: shape \(30, 4\)"
    ):
        shard.array.load(store, "t")
    with pytest.raises(ValueError, match="holds no rows for `u`"):
        shard.array.load(store, "u")
    assert not shard.numpy().any()


def test_assign(small_chunks, rng):
    values = rng.normal(size=(31, 4)).astype("float32")
    shard = one_shard((31, 4), "zeros")
    shard.assign(values)
    np.testing.assert_array_equal(np.array(shard), values)
    other = one_shard((31, 4), "zeros")
    other.assign(shard)
    np.testing.assert_array_equal(other.numpy(), values)
    with pytest.raises(ValueError, match=r"`value` must have the shape of the weight, \(31, 4\)"):
        shard.assign(values[:3])


def test_slots_sit_beside_their_shard():
    shard = one_shard((5, 3), "ones", dtype="bfloat16", name="w")
    slot, per_row = shard.new_slot("momentum"), shard.new_slot("accumulator", fill=0.1, per_row=True)
    assert tuple(slot.shape) == (5, 3) and slot.dtype == "float32" and not slot.trainable
    np.testing.assert_array_equal(per_row.numpy(), np.full(5, 0.1, "float32"))


def test_slots_of_several_chunks_made_inside_a_traced_step(small_chunks):
    shard = one_shard((25, 4), "zeros", name="table")
    slots = []

    @tf.function
    def step():
        if not slots:
            slots.append(shard.new_slot("velocity", fill=0.5))
        return tf.gather(slots[0].value, [0, 24])

    np.testing.assert_array_equal(step(), np.full((2, 4), 0.5))


def test_layers_track_shards():
    layer = keras.layers.Layer()
    table = ShardedTable((5, 3), "ones", name="w")
    layer.shards = table.shards
    assert [v.path for v in layer.trainable_weights] == [table.shards[0].path]


def test_mixed_precision_does_not_cast_a_table():
    shard = one_shard((5, 3), "ones")
    with tf.GradientTape() as tape:
        tape.watch(shard.value)
        total = tf.reduce_sum(tf.gather(shard.value, [1, 1]))
    assert isinstance(tape.gradient(total, shard.value), tf.IndexedSlices)
    assert shard.dtype == "float32"


def test_empty_table_shapes_and_errors():
    assert ops.largeout_empty_table([3, 0, 2], dtype=tf.bfloat16).shape == (3, 0, 2)

    @tf.function(input_signature=[tf.TensorSpec([2], tf.int64)])
    def unknown(shape):
        table = ops.largeout_empty_table(shape, dtype=tf.float32)
        assert table.shape.as_list() == [None, None]
        return tf.shape(table)

    np.testing.assert_array_equal(unknown([4, 5]), [4, 5])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"-1|rank"):
        ops.largeout_empty_table([-1, 2], dtype=tf.float32)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="rank"):
        ops.largeout_empty_table(3, dtype=tf.float32)


def test_a_constant_matrix_is_cut_into_chunks(small_chunks, rng):
    matrix = rng.normal(size=(97, 3)).astype("float32")
    table = ShardedTable(matrix.shape, keras.initializers.Constant(matrix))
    np.testing.assert_array_equal(table.numpy(), matrix)
