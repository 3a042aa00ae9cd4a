"""Placements: every row has one position, and the arithmetic leads there and back."""

import dataclasses

import numpy as np
import pytest

from keras_largeout.planning.placement import REPLICATED, Placement

MAKERS = {
    "replicated": Placement.replicated,
    "range": Placement.by_range,
    "modulo": Placement.by_modulo,
    "permutation": Placement.by_permutation,
    "permutation, seed 7": lambda rows, devices: Placement.by_permutation(rows, devices, seed=7),
    "table": lambda rows, devices: Placement.on_device(rows, devices, devices // 2),
    "explicit": lambda rows, devices: Placement.explicit(np.arange(rows) * 7 % 5 % devices, devices),
    "explicit with hot rows and room": lambda rows, devices: Placement.explicit(
        np.arange(rows) * 7 % 5 % (devices + 1) - 1, devices, sizes=(rows + 3,) * devices
    ),
}
SHARDED = ("range", "modulo", "permutation", "permutation, seed 7", "table")
SIZES = [(1, 1), (1, 4), (2, 3), (7, 8), (100, 1), (101, 2), (252, 8), (1000, 7)]


def check(placement):
    """The contract, by brute force."""
    rows = np.arange(placement.rows)
    positions = placement.position(rows)
    assert positions.dtype == np.int64 and len(np.unique(positions)) == placement.rows
    assert positions.min() >= 0 and positions.max() < placement.offsets[-1]
    assert np.array_equal(placement.rows_at(positions), rows)
    back = placement.rows_at(np.arange(placement.offsets[-1]))
    assert np.array_equal(np.sort(back[back >= 0]), rows)
    owner, local = placement.locate(rows)
    assert np.array_equal(np.flatnonzero(owner == REPLICATED), np.sort(rows[positions < placement.num_hot]))
    assert np.array_equal(local[owner < 0], positions[owner < 0])
    assert len(placement.sizes) == placement.devices
    for shard, size in enumerate(placement.sizes):
        mine = local[owner == shard]
        assert len(np.unique(mine)) == len(mine)
        assert np.all((mine >= 0) & (mine < size))
    # A matrix of rows works as a vector does.
    pair = np.stack([rows, rows[::-1]])
    assert np.array_equal(placement.position(pair), positions[pair])
    assert placement == dataclasses.replace(placement)


@pytest.mark.parametrize("rows, devices", SIZES)
@pytest.mark.parametrize("name", MAKERS)
def test_every_row_has_one_position(name, rows, devices):
    check(MAKERS[name](rows, devices))


@pytest.mark.parametrize("rows, devices", [(2, 3), (101, 2), (252, 8)])
@pytest.mark.parametrize("name", SHARDED)
def test_hot_rows(name, rows, devices):
    plain = MAKERS[name](rows, devices)
    hot = np.unique([0, rows // 3, rows - 1])
    placement = plain.with_hot_rows(hot[::-1])
    check(placement)
    assert placement.num_hot == len(hot) and np.array_equal(placement.position(hot), np.arange(len(hot)))
    cold = np.setdiff1d(np.arange(rows), hot)
    for ours, before in zip(placement.locate(cold), plain.locate(cold)):
        assert np.array_equal(ours, before)  # the cold rows stay where they were
    assert plain.with_hot_rows([]) == plain != placement


def test_what_the_kinds_say():
    assert Placement.by_range(10, 4).sizes == (3, 3, 3, 1)
    assert Placement.by_range(9, 8).sizes == (2, 2, 2, 2, 1, 0, 0, 0)
    assert Placement.by_modulo(10, 4).sizes == (3, 3, 2, 2)
    assert np.array_equal(Placement.by_modulo(10, 4).locate([5, 8])[0], [1, 0])
    assert np.array_equal(Placement.by_range(10, 4).locate([5, 9])[1], [2, 0])
    assert Placement.on_device(10, 3, 1).sizes == (0, 10, 0)
    replicated = Placement.replicated(10, 3)
    assert replicated.num_hot == 10 and replicated.sizes == (0, 0, 0)
    columns = Placement.by_columns(10, 7, 3)
    assert columns.columns == ((0, 2), (2, 4), (4, 7)) and columns.sizes == (10, 10, 10)
    assert np.array_equal(columns.position([3, 9]), [3, 9]) and np.array_equal(columns.rows_at([3]), [3])
    with pytest.raises(ValueError, match="no offsets"):
        columns.locate([0])
    explicit = Placement.explicit([1, -1, 0, 1], 2, sizes=(2, 3))
    assert explicit.sizes == (2, 3) and np.array_equal(explicit.table_positions, [3, 0, 1, 4])
    assert np.array_equal(explicit.rows_at(np.arange(6)), [1, 2, -1, 0, 3, -1])


@pytest.mark.parametrize("rows", [1000, 99_991, 9_000_000])
def test_a_permutation_spreads_runs_of_rows(rows):
    placement = Placement.by_permutation(rows, 8)
    for start in (0, rows // 2, rows - 160):
        owner, _ = placement.locate(np.arange(start, start + 160))
        counts = np.bincount(owner, minlength=8)
        assert counts.sum() == 160 and np.abs(counts - 20).max() <= 5


def test_large_tables_do_not_overflow():
    for rows in (2**31 + 11, 3_000_000_000):
        for placement in (Placement.by_permutation(rows, 8), Placement.by_permutation(rows, 8, seed=1)):
            some = np.array([0, 1, rows // 3, rows - 2, rows - 1])
            positions = placement.position(some)
            assert positions.min() >= 0 and positions.max() < rows
            assert np.array_equal(placement.rows_at(positions), some)
    with pytest.raises(ValueError, match="`rows` must be at most"):
        Placement.by_permutation(3_000_000_001, 8)


def test_many_devices():
    owners = np.arange(600) % 300
    placement = Placement.explicit(owners, 300)
    check(placement)
    assert np.array_equal(placement.locate(np.arange(600))[0], owners)
    assert Placement.explicit(np.arange(128), 128).owners.max() == 127


def test_equality():
    a, b = Placement.by_permutation(100, 4), Placement.by_permutation(100, 4)
    assert a == b and a != Placement.by_permutation(100, 4, seed=1) and a != Placement.by_range(100, 4)
    assert a != "a placement"
    assert Placement.explicit([0, 1], 2) == Placement.explicit(np.array([0, 1], np.int64), 2)
    assert Placement.explicit([0, 1], 2) != Placement.explicit([1, 0], 2)
    assert repr(a.with_hot_rows([1])) == "Placement(permutation: 100 rows on 4 devices, 1 hot rows)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        a.rows = 3
    with pytest.raises(ValueError, match="read-only"):
        Placement.explicit([0, 1], 2).owners[0] = 1


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Placement.by_range(0, 2), "`rows` and `devices` must be positive.*rows=0"),
        (lambda: Placement.by_modulo(3, 0), "devices=0"),
        (lambda: Placement.by_columns(10, 2, 3), "`dim` must be at least devices=3.*dim=2"),
        (lambda: Placement.on_device(10, 2, 2), "`device` must be in.*device=2"),
        (lambda: Placement.on_device(10, 2, -1), "device=-1"),
        (lambda: Placement.explicit([0, 2], 2), r"`owners` must lie in \[-1, devices=2\).*0 .. 2"),
        (lambda: Placement.explicit([0, -2], 2), "-2 .. 0"),
        (lambda: Placement.explicit([0.0, 1.0], 2), "`owners` must be a vector of integers.*float64"),
        (lambda: Placement.explicit(np.zeros((2, 2), int), 2), "vector of integers"),
        (lambda: Placement.explicit(3, 2), "vector of integers"),
        (lambda: Placement.explicit(np.zeros(0, int), 2), "rows=0"),
        (lambda: Placement.explicit([0, 0, 1], 2, sizes=(1, 5)), r"`sizes` must have room.*\(1, 5\)"),
        (lambda: Placement.explicit([0, 0, 1], 2, sizes=(2, 1, 0)), "`sizes`"),
        (lambda: Placement.by_range(4, 2).with_hot_rows([4]), r"`hot` must lie in \[0, rows=4\).*4 .. 4"),
        (lambda: Placement.by_range(4, 2).with_hot_rows([-1, 2]), "-1 .. 2"),
        (lambda: Placement.by_range(4, 2).with_hot_rows([1.5]), "`hot` must be integers.*float64"),
        (lambda: Placement.replicated(4, 2).with_hot_rows([1]), "Hot rows go with a placement"),
        (lambda: Placement.by_range(4, 2).with_hot_rows([1]).with_hot_rows([2]), "that has none"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_digests_tell_placements_apart():
    placements = [
        Placement.by_range(100, 4),
        Placement.by_range(100, 5),
        Placement.by_modulo(100, 4),
        Placement.by_permutation(100, 4),
        Placement.by_permutation(100, 4, seed=1),
        Placement.by_range(100, 4).with_hot_rows([1, 2]),
        Placement.by_range(100, 4).with_hot_rows([1, 3]),
        Placement.explicit(np.arange(100) % 4, 4),
        Placement.explicit(np.arange(100)[::-1] % 4, 4),
    ]
    assert len({placement.digest for placement in placements}) == len(placements)
    assert Placement.by_permutation(100, 4).digest == placements[3].digest
    assert Placement.explicit((np.arange(100) % 4).astype("int16"), 4).digest == placements[7].digest
