"""The partitioner: even loads, room kept."""

import numpy as np
import pytest

from keras_largeout.planning.partitioner import pack


def held(owner, values, devices):
    return np.bincount(owner, values, devices)


def test_longest_processing_time_first_by_hand():
    # 7 and 6, then 5 to the second, 4 to the first, which makes 11 each, then 3.
    assert np.array_equal(pack([[3], [7], [4], [5], [6]], [1, 1]), [0, 0, 0, 1, 1])
    # Twice as fast a device gets twice as much.
    owner = pack(np.ones((300, 1)), [2, 1])
    assert np.array_equal(np.bincount(owner), [200, 100])


@pytest.mark.parametrize("devices", [1, 2, 5, 8])
@pytest.mark.parametrize("units", [0, 1, 100, 5_000, 60_000])
def test_every_kind_of_load_is_even(units, devices):
    rng = np.random.default_rng(0)
    loads = rng.pareto(1.5, (units, 3)) * [1, 1e9, 1e-9]
    loads[:, 2] = loads[:, 0] * 2
    owner = pack(loads, np.ones(devices))
    assert owner.dtype == np.int16 and owner.shape == (units,)
    assert np.all((owner >= 0) & (owner < devices))
    for kind in loads.T:
        sums = held(owner, kind, devices)
        assert units == 0 or sums.max() <= max(1.1 * sums.mean(), 1.1 * kind.max())


@pytest.mark.parametrize("units", [64, 4096, 50_000])
def test_equal_units_are_dealt_out_in_turn(units):
    owner = pack(np.ones((units, 1)), np.ones(8))
    assert np.array_equal(np.bincount(owner, minlength=8), [units // 8] * 8)
    for start in range(0, units - 8, units // 16):
        assert len(np.unique(owner[start : start + 8])) == 8


@pytest.mark.parametrize("units", [40, 30_000])
def test_room_is_kept(units):
    rng = np.random.default_rng(1)
    loads = 1 / np.arange(1, units + 1)
    room = np.array([units // 2, units // 4, units - units // 2 - units // 4])
    owner = pack(loads[:, None], np.ones(3), np.ones(units, int), room)
    assert np.array_equal(np.bincount(owner), room)
    assert held(owner, loads, 3).max() <= 1.05 * loads.sum() / 3 + loads[0]
    # Units of several rows, and just enough room for the largest wherever it goes last.
    rows = rng.integers(1, 9, units)
    room = np.full(4, -(-rows.sum() // 4) + 8)
    owner = pack(loads[:, None], np.ones(4), rows, room)
    assert np.all(held(owner, rows, 4) <= room)
    with pytest.raises(ValueError, match="fits on no device"):
        pack(loads[:, None], np.ones(3), np.ones(units, int), [units // 3 - 1] * 3)


def test_what_is_there_already_counts():
    owner = pack(np.ones((100, 1)), [1, 1], base=[[60], [0]])
    assert np.array_equal(np.bincount(owner), [20, 80])
    # A device that is twice as fast has half as much of its share already.
    owner = pack(np.ones((90, 1)), [2, 1], base=[[30], [30]])
    assert np.array_equal(np.bincount(owner), [70, 20])


def test_no_load_at_all():
    assert np.array_equal(np.bincount(pack(np.zeros((10, 2)), [1, 1])), [5, 5])
