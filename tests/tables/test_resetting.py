"""Rows that begin again: the first values, and those of the slots, wherever the rows are."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of

import keras_largeout as kl
from keras_largeout.tables import resetting
from keras_largeout.tables.resetting import RowReset
from keras_largeout.tables.table import ShardedTable

ROWS = 20
HOT = kl.distribute.Placement.of_kind("modulo", ROWS, 3, 2).with_hot_rows([0, 4, 7])
PLACEMENTS = {
    "one device": (1, "auto"),
    **{kind: (2, kind) for kind in ("replicated", "range", "modulo", "permutation", "columns")},
    "hot rows": (2, HOT),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_rows_and_slots(placement, dtype, monkeypatch):
    devices, placement = PLACEMENTS[placement]
    monkeypatch.setattr(resetting, "_KEPT_ROWS", 8)
    initializer = keras.initializers.RandomNormal(seed=1)
    with strategy_of(devices).scope():
        table = ShardedTable((ROWS, 3), initializer, dtype=dtype, placement=placement)
        first = table.numpy()
        for shard in table.shards:
            shard.new_slot("accumulator", 0.1)
            shard.new_slot("per_row", 0.5, per_row=True)
        reset = RowReset(table, initializer, 4, ROWS)  # the rows of a stack from 4 on
        values = initializer((ROWS - 4, 3), dtype=dtype)
        for array in table.array.arrays():
            array.assign(np.full(array.shape, 7.0))
        rows = tf.constant([3, 0, 13], tf.int64)
        tf.function(reset)(rows)
    want = np.full(first.shape, 7.0, first.dtype)
    for row in rows.numpy():
        want[4 + row] = values[row % 8]
    np.testing.assert_array_equal(table.numpy(), want)
    changed = np.isin(np.arange(ROWS), 4 + rows.numpy())
    accumulator, per_row = (array.numpy() for array in table.array.arrays()[1:])
    np.testing.assert_array_equal(accumulator[:, 1], np.where(changed, np.float32(0.1), 7))
    np.testing.assert_array_equal(per_row, np.where(changed, np.float32(0.5), 7))
    for shard in table.shards:  # all copies of mirrored rows
        for component in shard.copies[1:]:
            np.testing.assert_array_equal(component, shard.copies[0])


def test_no_rows():
    table = ShardedTable((ROWS, 3), "ones")
    RowReset(table, keras.initializers.Ones(), 0, ROWS)(tf.zeros([0], tf.int64))
    np.testing.assert_array_equal(table.numpy(), 1)
