"""The op `exchange`: what a batch asks of each shard equals the reference for every placement."""

import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.ops import exchange as ex
from keras_largeout.ops._library import ops
from keras_largeout.planning.placement import Placement

ROWS = 123
NONE = np.zeros([0], np.int64)


def placements(rng, rows=ROWS, devices=5):
    hot = rng.permutation(rows)[: rows // 4]
    plain = [
        Placement.by_range(rows, devices),
        Placement.by_modulo(rows, devices),
        Placement.by_permutation(rows, devices),
        Placement.by_permutation(rows, devices, seed=3),
        Placement.on_device(rows, devices, devices // 2),
    ]
    owners = rng.integers(-1, devices, rows)
    roomy = np.bincount(owners + 1, minlength=devices + 1)[1:] + 3
    return [
        *plain,
        *(p.with_hot_rows(hot) for p in plain),
        plain[1].with_hot_rows(np.arange(rows)),  # all of them
        Placement.replicated(rows, devices),
        Placement.explicit(owners, devices),
        Placement.explicit(owners, devices, sizes=roomy),
        Placement.explicit(np.full(rows, devices - 1), devices),  # the other shards are empty
    ]


def partition(p, ids, graph=False, **options):
    explicit = {"position_of": p.table_positions} if p.kind == "explicit" else {}

    def call(ids):
        return ex.partition_ids(
            ids,
            p.offsets,
            p.kind,
            p.rows,
            p.devices,
            p.multiplier,
            p.addend,
            hot=p.hot,
            **explicit,
            **options,
        )

    return (tf.function(call) if graph else call)(tf.constant(ids))


def check(p, ids, **options):
    want = ex.partition_ids_reference(p, ids, **options)
    for graph in (False, True):
        got = partition(p, ids, graph, **options)
        for name, ours, theirs in zip(ex.Partition._fields, got, want):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"{name} of {p}")
        assert [x.dtype for x in got] == [tf.int64, tf.int64, tf.int32, tf.int64]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(252,), (4, 1, 7), (), (3, 0)])
def test_equals_reference(rng, dtype, shape):
    for p in placements(rng):
        check(p, rng.integers(0, ROWS, shape).astype(dtype))


def test_rows_come_back(rng):
    """A table cut up by the placement, gathered run by run, gives the rows of the ids."""
    table, ids = rng.normal(size=(ROWS, 4)), rng.integers(0, ROWS, (50, 3))
    for p in placements(rng):
        owner, local = p.locate(np.arange(ROWS))
        shards = [np.zeros((p.offsets[-1], 4)) for _ in range(p.devices + 1)]
        for row in range(ROWS):
            shards[owner[row] + 1][local[row]] = table[row]
        got = partition(p, ids)
        cuts = got.boundaries.numpy()
        runs = [shard[got.local[a:b]] for shard, a, b in zip(shards, cuts[:-1], cuts[1:])]
        np.testing.assert_array_equal(np.concatenate(runs)[got.inverse], table[ids])


def test_out_of_range_zero_drops_ids(rng):
    for p in placements(rng):
        check(p, rng.integers(-20, ROWS + 20, (40, 3)), out_of_range="zero")
        check(p, np.array([-1, ROWS]), out_of_range="zero")
        check(p, np.array([2**40 + 1, -(2**40), 3]), out_of_range="zero")  # no wrapping to 32 bits


@pytest.mark.parametrize("graph", [False, True])
def test_bad_ids_are_named(rng, graph):
    for p in placements(rng):
        for bad in (ROWS, -1, 2**40):
            message = (
                rf"`ids` must lie in \[0, {ROWS}\), the rows of the table. Received: ids\[1, 2\] = {bad}"
            )
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                partition(p, np.array([[1, 2, 3], [4, 5, bad]]), graph)


def test_other_integers(rng):
    p = Placement.by_modulo(ROWS, 5)
    ids = rng.integers(0, ROWS, 60)
    want = ex.partition_ids_reference(p, ids)
    for dtype in (np.uint8, np.int16, np.uint32):
        np.testing.assert_array_equal(partition(p, ids.astype(dtype)).inverse, want.inverse)


def test_placement_changes_between_steps(rng):
    """A rebalanced table: offsets and positions are variables, the graph stays."""
    first, second = (Placement.explicit(rng.integers(0, 5, ROWS), 5) for _ in range(2))
    offsets, positions = tf.Variable(first.offsets), tf.Variable(first.table_positions)
    ids = rng.integers(0, ROWS, (20, 3))

    @tf.function
    def step(ids):
        return ex.partition_ids(ids, offsets, "explicit", ROWS, 5, position_of=positions)

    for p in (first, second):
        offsets.assign(p.offsets)
        positions.assign(p.table_positions)
        for ours, theirs in zip(step(ids), ex.partition_ids_reference(p, ids)):
            np.testing.assert_array_equal(ours, theirs)
    assert step.experimental_get_tracing_count() == 1


def static_shapes(ids_shape, offsets_shape, position_shape, hot_shape, kind):
    with tf.Graph().as_default():
        ids = tf.compat.v1.placeholder(tf.int32, ids_shape)
        others = [tf.compat.v1.placeholder(tf.int64, s) for s in (offsets_shape, position_shape, hot_shape)]
        outputs = ops.largeout_partition_ids(ids, *others, kind=kind, rows=50, devices=4)
        return [x.shape if x.shape.rank is None else x.shape.as_list() for x in outputs]


@pytest.mark.parametrize(
    ("shapes", "inverse"),
    [
        (([3, 4], [5], [0], [0], "identity"), [3, 4]),
        (([3, None], [None], [None], [None], "modulo"), [3, None]),
        (([], [5], [50], [0], "explicit"), []),
        ((None, None, None, None, "explicit"), tf.TensorShape(None)),
    ],
)
def test_shapes_known_and_unknown(shapes, inverse):
    assert static_shapes(*shapes) == [[None], [None], inverse, [6]]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (([3], [4], [0], [0], "identity"), r"`offsets`|Shapes are \[4\] and \[5\]"),
        (([3], [5, 1], [0], [0], "identity"), "`offsets`|equal rank, but are 2 and 1"),
        (([3], [5], [50], [0], "modulo"), r"`position_of`|Shapes are \[50\] and \[0\]"),
        (([3], [5], [0], [0], "explicit"), r"`position_of`|Shapes are \[0\] and \[50\]"),
        (([3], [5], [0], [0, 1], "permutation"), "`hot`|must be rank 1 but is rank 2"),
    ],
)
def test_wrong_shapes_fail_in_the_graph(shapes, message):
    with pytest.raises(ValueError, match=message):
        static_shapes(*shapes)


OFFSETS = [2, 6, 10, 14]  # 3 devices, 12 rows, 2 of them hot


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offsets": [2, 6, 14]}, "offsets|equal"),
        ({"offsets": [[2, 6, 10, 14]]}, "offsets|rank"),
        ({"offsets": [2, 10, 6, 14]}, r"`offsets` must not be negative .* Received: offsets\[2\] = 6"),
        ({"offsets": [-1, 6, 10, 14]}, r"`offsets` must not be negative .* Received: offsets\[0\] = -1"),
        ({"offsets": [1, 6, 10, 14]}, r"begin with the number of `hot` rows, 2. Received: offsets\[0\] = 1"),
        ({"offsets": [2, 6, 10, 13]}, "room for all rows, 12. Received: offsets of 11 positions"),
        (
            {"kind": "modulo", "offsets": [2, 5, 10, 14]},
            "room for the rows of each shard, 4 in shard 0. Received: 3 positions",
        ),
        ({"hot": [3, 12]}, r"`hot` must be ascending .* Received: hot\[1\] = 12"),
        ({"hot": [3, 3]}, r"`hot` must be ascending .* Received: hot\[1\] = 3"),
        ({"hot": [-1, 3]}, r"`hot` must be ascending .* Received: hot\[0\] = -1"),
        ({"hot": [[1, 3]]}, "hot|rank"),
        ({"kind": "explicit", "position_of": range(11)}, "position_of|equal"),
        (
            {"kind": "explicit", "position_of": [0, 1, 2, 14, *range(4, 12)]},
            r"`position_of` must lie in \[0, 14\).* Received: position_of\[3\] = 14",
        ),
        ({"kind": "explicit", "position_of": [-1] * 12}, r"Received: position_of\[0\] = -1"),
        (
            {"kind": "permutation", "multiplier": 3},
            r"`multiplier` must lie in \[1, rows = 12\] .* Received: 3",
        ),
        ({"kind": "permutation", "multiplier": 0}, "`multiplier` must lie in .* Received: 0"),
        ({"kind": "permutation", "addend": 12}, r"`addend` must lie in \[0, rows = 12\). Received: 12"),
        ({"rows": 0}, "rows"),
        ({"devices": 0}, "devices"),
        ({"kind": "zipf"}, "`kind` must be one of"),
        ({"out_of_range": "clip"}, "`out_of_range` must be one of"),
        ({"ids": [1.0]}, "`ids` must be integers"),
        ({"kind": "explicit"}, "`position_of` must be given"),
    ],
)
def test_wrong_arguments(changes, message):
    arguments = {
        "ids": [0, 3],
        "offsets": OFFSETS,
        "kind": "identity",
        "rows": 12,
        "devices": 3,
        "hot": [1, 3],
    }
    arguments |= {name: list(v) if isinstance(v, range) else v for name, v in changes.items()}
    call = lambda: ex.partition_ids(**arguments)  # noqa: E731
    for run in (call, tf.function(call)):
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
            run()


def test_op_refuses_what_the_wrapper_never_passes():
    call = ops.largeout_partition_ids
    with pytest.raises(tf.errors.InvalidArgumentError, match="`hot` must be a vector, empty where"):
        call([0], OFFSETS, range(12), [1, 3], kind="explicit", rows=12, devices=3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`rows` must be at most 3000000000"):
        call([0], [0, 2**32], NONE, NONE, kind="permutation", rows=2**32, devices=1)


@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_gpu_equals_reference(rng, device):
    for p in placements(rng):
        for dtype in (np.int32, np.int64):
            check(p, rng.integers(0, ROWS, (200, 3)).astype(dtype))
        check(p, rng.integers(-20, ROWS + 20, (40, 3)), out_of_range="zero")
        assert "GPU" in partition(p, [1, 2]).unique.device
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids\[1\] = 123"):
            partition(p, [1, 123])
