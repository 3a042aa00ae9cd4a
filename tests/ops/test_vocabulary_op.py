"""The ops of `vocabulary`: the same bits as the reference, step after step; what they refuse."""

import os
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.ops._library import ops
from keras_largeout.ops.vocabulary import reference
from keras_largeout.ops.vocabulary.stock import stock_find
from keras_largeout.ops.vocabulary.wrapper import EMPTY, EVICT, find, find_reference, update, update_reference
from tests._cluster import Running

pytestmark = pytest.mark.usefixtures("on_cpu")

WILD = [0, -1, 1, EMPTY, EMPTY + 1, 2**63 - 1, 2**32, -(2**32), 0x61C8864680B583EB]


def arrays(capacity=64, blocks=2):
    return [
        np.full(capacity, EMPTY),
        np.zeros(capacity, np.int64),
        np.zeros((blocks, 64), np.uint8),
        np.zeros(2, np.int64),
    ]


def variables(*values):
    return [tf.Variable(value) for value in values or arrays()]


def check(state, kept, ids, graph=False, **rules):
    """A step of the op on variables equals one of the reference on arrays."""
    want = update_reference(*kept, ids, **rules)
    call = lambda ids: update(*state, ids, **rules)  # noqa: E731
    got = (tf.function(call) if graph else call)(tf.constant(ids))
    for ours, theirs in zip((*got, *state), (*want, *kept)):
        np.testing.assert_array_equal(ours, theirs)
    assert [x.dtype for x in got] == [tf.int64, tf.int64]
    for there in (find(state[0], ids), stock_find(state[0], ids), find_reference(kept[0], ids)):
        np.testing.assert_array_equal(there, want[0])
    return want


@pytest.mark.parametrize("evict", EVICT)
@pytest.mark.parametrize("admit_after", [1, 2, 255])
def test_equals_reference(rng, evict, admit_after):
    """Tables fill up, ids come and go, the sketch is halved."""
    kept = arrays(blocks=1 if admit_after > 1 else 0)
    state, replaced, halved, additions = variables(*kept), 0, 0, 0
    for step in range(80):
        ids = np.minimum(rng.zipf(1.2, (int(rng.integers(0, 40)), 3)), 10**6) * 0x9E3779B97F4A7C1
        ids[rng.random(ids.shape) < 0.02] = rng.choice(WILD)
        _, gone = check(state, kept, ids, graph=step < 2, admit_after=admit_after, evict=evict)
        replaced += len(gone)
        halved += kept[3][1] < additions
        additions = kept[3][1]
    assert kept[3][0] == 80
    assert (replaced > 0) == (admit_after <= 2) and (halved > 0) == (admit_after > 1)


@pytest.mark.parametrize("evict", EVICT)
def test_a_step_of_several_calls(rng, evict):
    """No id of a step loses its row to those of a later call of the step."""
    kept, replaced = arrays(16, 0), 0
    state = variables(*kept)
    for step in range(20):
        first, second = rng.integers(0, 60, (2, 12))
        rules = {"admit_after": 1, "evict": evict}
        rows, gone = check(state, kept, first, graph=step < 2, **rules)
        check(state, kept, second, graph=step < 2, begins_step=False, **rules)
        np.testing.assert_array_equal(find(state[0], first), rows)
        replaced += len(gone)
    assert kept[3][0] == 20 and replaced > 20


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (17,), (2, 3, 4)])
def test_ids_of_any_shape(rng, shape):
    kept = arrays(1024, 0)
    state = variables(*kept)
    for graph in (False, True):
        rows, _ = check(state, kept, rng.integers(-9, 9, shape), graph, admit_after=1, evict="lru")
        assert rows.shape == shape


def test_ids_of_all_bits(rng):
    kept = arrays(4096, 0)
    state = variables(*kept)
    ids = np.concatenate([WILD, rng.integers(-(2**63), 2**63 - 1, 3000)])
    rows, _ = check(state, kept, ids, admit_after=1, evict="lfu")
    assert rows[WILD.index(EMPTY)] == -1 and len(np.unique(rows)) > 2500


def test_other_integers():
    state = variables(*arrays(64, 0))
    rows = update(*state, [3, 200], 1, "lru").rows
    for dtype in (tf.int32, tf.uint8, tf.int16, tf.uint32, tf.uint64):
        np.testing.assert_array_equal(find(state[0], tf.constant([3, 200], dtype)), rows)
    top = update(*state, tf.constant([2**64 - 5], tf.uint64), 1, "lru").rows
    np.testing.assert_array_equal(find(state[0], [-5]), top)


def test_mixes_as_published():
    assert reference.mix(0) == 0xE220A8397B1DCDAF  # the first number of SplitMix64 with the seed 0


def test_a_step_without_ids_is_a_step():
    state = variables(*arrays())
    rows, replaced = update(*state, tf.zeros([0], tf.int64), 2, "lfu")
    assert rows.shape == replaced.shape == [0] and state[3].numpy().tolist() == [1, 0]


def test_steps_of_one_function_do_not_merge():
    """Both read and write the same variables: neither may be taken for the other."""
    state = variables(*arrays())

    @tf.function
    def twice(ids):
        before = find(state[0], ids)
        first = update(*state, ids, 2, "lfu").rows
        second = update(*state, ids, 2, "lfu").rows
        return before, first, second, find(state[0], ids)

    before, first, second, after = (x.numpy()[0] for x in twice(tf.constant([7])))
    assert before == first == -1 and second == after >= 0


def test_reads_keep_what_they_read():
    """An update does not change a tensor that was read before it."""
    state = variables(*arrays())
    read = [v.read_value() for v in state]
    update(*state, [1, 1, 2], 2, "lfu")
    for tensor, before in zip(read, arrays()):
        np.testing.assert_array_equal(tensor, before)


def static_shapes(shapes, ids, **attributes):
    """What the shape functions say of variables and ids of these shapes: of `rows`, `replaced`; of `find`."""
    attributes = {"admit_after": 2, "evict": "lfu"} | attributes
    with tf.Graph().as_default():
        types = (tf.int64, tf.int64, tf.uint8, tf.int64)
        handles = [
            tf.compat.v1.placeholder(tf.resource, [])
            if shape is None
            else tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=f"v{i}")
            for i, (shape, dtype) in enumerate(zip(shapes, types))
        ]
        ids = tf.compat.v1.placeholder(tf.int64, ids)
        outputs = [*ops.largeout_vocabulary_update(*handles, ids, **attributes)]
        outputs.append(ops.largeout_vocabulary_find(handles[0], ids))
        return [x.shape.as_list() for x in outputs]


SHAPES = ([64], [64], [2, 64], [2])


@pytest.mark.parametrize(("ids", "rows"), [([5], [5]), ([None], [None]), (None, [None])])
@pytest.mark.parametrize("shapes", [SHAPES, (None,) * 4, ([64], None, [0, 64], None)])
def test_shapes_known_and_unknown(shapes, ids, rows):
    assert static_shapes(shapes, ids, admit_after=1) == [rows, [None], rows]


WRONG_SHAPES = [
    (0, [40], r"`keys` must .* a multiple of 16, .* Received: shape \[40\]"),
    (0, [0], r"`keys` must .* a multiple of 16, .* Received: shape \[0\]"),
    (0, [4, 16], r"`keys` must have the shape \[capacity\]. Received: shape \[4,16\]"),
    (1, [48], r"`scores` must have the shape \[64\]. Received: shape \[48\]"),
    (1, [64, 1], r"`scores` must have the shape \[.*\]. Received: shape \[64,1\]"),
    (2, [2, 32], r"`sketch` must have the shape \[blocks, 64\]. Received: shape \[2,32\]"),
    (2, [64], r"`sketch` must have the shape \[blocks, 64\]. Received: shape \[64\]"),
    (2, [0, 64], r"`sketch` must have from 1 .* if `admit_after` is 2. Received: shape \[0,64\]"),
    (3, [3], r"`clock` must have the shape \[2\]. Received: shape \[3\]"),
    (3, [], r"`clock` must have the shape \[.*\]. Received: shape \[\]"),
]


@pytest.mark.parametrize(("which", "shape", "message"), WRONG_SHAPES)
def test_wrong_shapes(which, shape, message):
    """They fail when the graph is built, and where the graph did not know them, in the kernel."""
    shapes = [shape if i == which else known for i, known in enumerate(SHAPES)]
    with pytest.raises(ValueError, match=message):
        static_shapes(shapes, [5])
    types = (np.int64, np.int64, np.uint8, np.int64)
    state = variables(*(np.zeros(s, t) for s, t in zip(shapes, types)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        update(*state, [1, 2], 2, "lfu")
    assert not any(v.numpy().any() for v in state)  # nothing was written
    if which == 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            find(state[0], [1, 2])


def test_ids_of_the_op_are_a_vector():
    state = variables()
    handles = [v.handle for v in state]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`ids` must have the shape \[n\].*\[1,2\]"):
        ops.largeout_vocabulary_update(*handles, [[1, 2]], admit_after=1, evict="lfu")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`ids` must have the shape \[n\].*\[\]"):
        ops.largeout_vocabulary_find(handles[0], 1)
    with pytest.raises(ValueError, match=r"`ids` must have the shape \[n\]. Received: shape \[1,2\]"):
        static_shapes(SHAPES, [1, 2])


@pytest.mark.parametrize("admit_after", [0, -1, 256, 2**40])
def test_admit_after_out_of_range(admit_after):
    message = rf"`admit_after` must lie in \[1, 255\]. Received: admit_after={admit_after}"
    state = variables()
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        update(*state, [1], admit_after, "lfu")
    with pytest.raises(ValueError, match=message):
        static_shapes(SHAPES, [5], admit_after=admit_after)


def test_wrong_arguments():
    keys, scores, sketch, clock = state = variables()
    with pytest.raises(ValueError, match=r"`evict` must be one of .* Received: evict='fifo'"):
        update(*state, [1], 2, "fifo")
    with pytest.raises(ValueError, match=r"`ids` must be integers. Received: dtype=float32"):
        find(keys, [1.0])
    with pytest.raises(TypeError, match=r"`scores` must be a tf.Variable. Received: ndarray"):
        update(keys, np.zeros(64, np.int64), sketch, clock, [1], 2, "lfu")
    with pytest.raises(ValueError, match=r"`sketch` must be of dtype uint8. Received: dtype=int64"):
        update(keys, scores, scores, clock, [1], 2, "lfu")
    with pytest.raises(ValueError, match=r"`keys` must be of dtype int64. Received: dtype=uint8"):
        find(sketch, [1])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"must be different variables. Received: one"):
        update(keys, keys, sketch, clock, [1], 2, "lfu")
    handles = [v.handle for v in state]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`clock` must be of type int64. .* uint8"):
        ops.largeout_vocabulary_update(*handles[:3], sketch.handle, [1], admit_after=2, evict="lfu")
    unset = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[64], shared_name="unset_keys")
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"`keys` must be an initialized variable"):
        ops.largeout_vocabulary_find(unset, [1])


def test_runs_beside_its_variables():
    with tf.device("cpu:3"):
        state = variables()
    step = lambda: (*update(*state, [1], 1, "lfu"), find(state[0], [1]))  # noqa: E731
    with tf.device("cpu:1"):
        assert [x.device[-5:] for x in step()] == ["CPU:3"] * 3
        nodes = tf.function(step).get_concrete_function().graph.as_graph_def().node
    assert {node.device[-5:] for node in nodes if node.op.startswith("Largeout")} == {"CPU:3"}


def test_stock_find_of_a_constant(rng):
    """As in an exported model: any shape, unknown when the graph is built."""
    kept = arrays(256, 0)
    ids = rng.integers(-(2**63), 2**63 - 1, 300)
    update_reference(*kept, ids, 1, "lru")
    function = tf.function(stock_find).get_concrete_function(
        tf.TensorSpec([256], tf.int64), tf.TensorSpec(None, tf.int64)
    )
    for shape in ((300,), (20, 15), (3, 4, 25)):
        got = function(tf.constant(kept[0]), tf.constant(ids.reshape(shape)))
        np.testing.assert_array_equal(got, find_reference(kept[0], ids).reshape(shape))
    names = {node.op for node in function.graph.as_graph_def().node}
    assert not [name for name in names if name.startswith("Largeout")]


THREADS = """
import hashlib, sys
import numpy as np
import tensorflow as tf
tf.config.set_visible_devices([], "GPU")
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from keras_largeout.ops.vocabulary.wrapper import EMPTY, find, update
rng, bits = np.random.default_rng(0), hashlib.sha256()
for evict in ("lfu", "lru"):
    state = [np.full(4096, EMPTY), np.zeros(4096, "int64"), np.zeros((64, 64), "uint8"), np.zeros(2, "int64")]
    state = [tf.Variable(value) for value in state]
    for _ in range(20):
        ids = rng.zipf(1.1, 20000)
        for x in (*update(*state, ids, 2, evict), *state, find(state[0], ids)):
            bits.update(x.numpy().tobytes())
print(tf.config.threading.get_intra_op_parallelism_threads(), bits.hexdigest())
"""


@pytest.mark.full
def test_same_bits_for_any_number_of_threads(tmp_path):
    script = tmp_path / "bits.py"
    script.write_text(THREADS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "2"}
    runs = [Running([str(script), str(threads)], environment, forked=True) for threads in (1, 2, 4)]
    bits = [run.wait_for(rf"^{threads} ([0-9a-f]{{64}})$") for run, threads in zip(runs, (1, 2, 4))]
    for run in runs:
        run.close()
    assert bits[0].group(1) == bits[1].group(1) == bits[2].group(1)
