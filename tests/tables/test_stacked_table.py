"""Several tables stacked into one: values, views, placement."""

import keras
import numpy as np
import pytest
from _tables import strategy_of

from keras_largeout.tables import chunks, stacked
from keras_largeout.tables.row_range import RowRange
from keras_largeout.tables.stacked import StackedTable
from keras_largeout.tables.table import ShardedTable

DIM = 3
INITIALIZERS = {
    "normal": (23, keras.initializers.RandomNormal(seed=1)),
    "scaled": (1, keras.initializers.VarianceScaling(mode="fan_out", seed=2)),
    "constant": (11, keras.initializers.Constant(2.0)),
    "fan_in": (40, keras.initializers.GlorotUniform(seed=3)),
    "whole": (14, keras.initializers.Orthogonal(seed=4)),
}


def stack(**options):
    return StackedTable(INITIALIZERS, DIM, name="stack", **options)


@pytest.mark.parametrize("rows", [1, 7, 1000], ids=["chunk of 1", "chunks of 7", "one chunk"])
@pytest.mark.parametrize("devices", [1, 3])
def test_values_of_each_table_alone(monkeypatch, devices, rows):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", rows * DIM * 4)
    with strategy_of(devices).scope():
        table = stack(placement="modulo")
    for name, (count, initializer) in INITIALIZERS.items():
        alone = ShardedTable((count, DIM), initializer).numpy()
        np.testing.assert_array_equal(table.span(name).numpy(), alone, err_msg=name)


def test_initializers_without_a_seed_draw_for_each_table():
    unseeded = keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(3))
    table = StackedTable({"a": (5, unseeded), "b": (5, unseeded)}, DIM)
    assert not np.array_equal(table.span("a").numpy(), table.span("b").numpy())


def test_small_tables_are_replicated_and_large_ones_cut(monkeypatch):
    monkeypatch.setattr(stacked, "REPLICATED_BYTES", 20 * DIM * 4)
    with strategy_of(2).scope():
        placement = stack().placement
        monkeypatch.setattr(stacked, "REPLICATED_BYTES", 0)
        cut = stack().placement
        monkeypatch.setattr(stacked, "REPLICATED_BYTES", 1 << 20)
        replicated = stack().placement
    owners, _ = placement.locate(np.arange(89))
    expected = np.concatenate([np.full(n, n <= 20) for n, _ in INITIALIZERS.values()])
    np.testing.assert_array_equal(owners == -1, expected)
    assert (cut.kind, cut.num_hot, replicated.kind) == ("permutation", 0, "replicated")
    assert stack().placement.kind == "range"


def test_span_is_a_view():
    with strategy_of(2).scope():
        table = stack(placement="range")
    span = table.span("constant")
    assert (span.shape, span.dtype) == ((11, 3), "float32")
    before = table.numpy()
    span.assign(np.full((11, 3), 5.0))
    np.testing.assert_array_equal(span.read(2, 4), np.full((2, 3), 5.0))
    np.testing.assert_array_equal(np.asarray(span, "float64"), np.full((11, 3), 5.0))
    after = table.numpy()
    np.testing.assert_array_equal(np.flatnonzero((after != before).any(1)), np.arange(24, 35))
    with pytest.raises(ValueError, match=r"`value` must have the shape of the table, \(11, 3\)"):
        span.assign(np.zeros((10, 3)))
    assert RowRange(table.array).shape == (89, 3)
    assert "rows 24 on, shape=(11, 3)" in repr(span)
