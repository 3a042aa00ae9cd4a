"""What the tree softmax ops refuse, what they say then, and the shapes that they infer."""

import ctypes
import types

import numpy as np
import pytest
import tensorflow as tf

from keras_largeout import trees
from keras_largeout.ops._library import ops
from keras_largeout.ops.tree_softmax import wrapper as ts


@pytest.fixture
def problem(rng):
    """Six tokens on a tree of 20 classes: a root and 4 or 5 nodes."""
    tree = trees.two_level(20)
    return types.SimpleNamespace(
        tree=tree,
        arrays=ts.TreeArrays(*tree.arrays().values()),
        hidden=rng.normal(size=(6, 4)).astype(np.float32),
        targets=rng.integers(0, 20, 6).astype(np.int32),
        table=tf.Variable(rng.normal(size=(tree.num_rows, 4)).astype(np.float32)),
        bias=tf.Variable(np.zeros(tree.num_rows, np.float32)),
    )


def error(function, *args, **kwargs):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)) as info:
        function(*args, **kwargs)
    return str(info.value)


@pytest.mark.parametrize("graph", [False, True])
def test_targets_out_of_range(problem, graph):
    def loss(targets):
        return ts.tree_softmax_loss(problem.hidden, targets, problem.table, problem.bias, problem.arrays)

    for bad in (20, -1):
        problem.targets[4] = bad
        message = error(tf.function(loss) if graph else loss, tf.constant(problem.targets))
        assert "`targets`" in message and f"Received: {bad} at position 4" in message and "[0, 20)" in message


def test_wrong_input(problem):
    def loss(weights=None, **changed):
        p = types.SimpleNamespace(**{**vars(problem), **changed})
        arrays = p.arrays._replace(**{k: v for k, v in changed.items() if k in p.arrays._fields})
        return ts.tree_softmax_loss(p.hidden, p.targets, p.table, p.bias, arrays, weights)

    rows = problem.tree.num_rows

    assert "`hidden`" in error(loss, hidden=problem.hidden[:, :3])
    assert "`targets`" in error(loss, targets=problem.targets[:5])
    assert "`targets`" in error(loss, targets=problem.targets.astype("float32"))
    assert "`weights`" in error(loss, weights=np.ones(5, "float32"))
    assert "`bias`" in error(loss, bias=tf.Variable(tf.zeros([rows - 1])))
    assert "`table`" in error(loss, table=tf.Variable(tf.zeros([rows - 1, 4])), bias=None)
    assert "`table`" in error(loss, table=tf.zeros([rows - 1, 4]), bias=None)
    assert "`bias`" in error(loss, table=tf.zeros([rows, 4]), bias=tf.zeros([rows], tf.bfloat16))
    mixed = error(loss, table=tf.zeros([rows, 4]))
    assert "`table` and `bias` must both be variables, or both tensors" in mixed
    assert "`table`" in error(loss, table=tf.Variable(tf.zeros([rows, 4], tf.float64)))
    with pytest.raises(TypeError, match="`table` must be a"):
        loss(table=problem.table.numpy())
    for name in ("node_start", "node_parent", "row_hint"):
        assert f"`{name}`" in error(loss, **{name: getattr(problem.arrays, name)[1:]})
    assert "`node_parent`" in error(loss, node_parent=np.full_like(problem.arrays.node_parent, 3))
    for k in (21, -1):
        message = error(ts.tree_softmax_top_k, problem.hidden, problem.table, None, problem.arrays, k)
        assert "`k` must be in [0, 20]" in message and f"Received: k={k}" in message


def loss_and_gradient(problem):
    """What the loss leaves, and the function that asks for its gradient, by these or other inputs."""
    options = {"dtype": tf.float32, "use_bias": True}
    none = tf.zeros([0])
    arrays = ts.TreeArrays(*map(tf.constant, problem.arrays))
    saved = ops.largeout_tree_softmax_loss(
        problem.hidden,
        problem.targets,
        none,
        problem.table.handle,
        problem.bias.handle,
        *arrays[:5],
        **options,
    )

    def gradient(table=problem.table, bias=problem.bias, node_start=arrays.node_start, **changed):
        values = [changed.get(name, value) for name, value in saved._asdict().items()][1:]
        return ops.largeout_tree_softmax_grad(
            problem.hidden,
            none,
            saved.loss,
            table.handle,
            bias.handle,
            node_start,
            arrays.node_parent,
            *values,
            **options,
        )

    return saved, gradient


def test_gradient_checks_what_was_saved(problem):
    saved, gradient = loss_and_gradient(problem)
    gradient()
    for name in ("pair_token", "pair_row", "group_node", "group_start"):
        assert "must be outputs" in error(gradient, **{name: getattr(saved, name) + 1000})
    assert "`probs`" in error(gradient, probs=saved.probs[1:])
    assert "`pair_lse`" in error(gradient, pair_lse=saved.pair_lse[1:])


def test_what_a_loss_keeps_is_for_the_same_table_and_tree(problem):
    saved, gradient = loss_and_gradient(problem)
    rows = int(saved.group_node[-1]) + 1
    smaller = {"table": tf.Variable(problem.table[:rows]), "bias": tf.Variable(problem.bias[:rows])}
    assert "must be outputs" in error(gradient, **smaller)
    assert "must be outputs" in error(gradient, node_start=problem.arrays.node_start + 1)
    for once, again in zip(gradient(), gradient()):  # the second looks at the tensors themselves
        np.testing.assert_array_equal(once, again)


def test_gradient_goes_by_what_the_loss_kept(problem):
    """It does not look at the saved tensors, which on a GPU it would wait for; the next one does."""
    saved, gradient = loss_and_gradient(problem)
    memory = np.asarray(memoryview(saved.pair_row))  # the tensor's own, which nobody writes to otherwise
    ctypes.c_int32.from_address(memory.ctypes.data).value = -1
    gradient()
    assert "must be outputs" in error(gradient)


@pytest.mark.parametrize("tensor", ["table", "bias"])
def test_op_refuses_a_variable_beside_a_tensor(problem, tensor):
    given = {"table": problem.table.handle, "bias": problem.bias.handle}
    given[tensor] = tf.convert_to_tensor(getattr(problem, tensor))
    message = error(
        ops.largeout_tree_softmax_loss,
        problem.hidden,
        problem.targets,
        tf.zeros([0]),
        *given.values(),
        *problem.arrays[:5],
        dtype=tf.float32,
        use_bias=True,
    )
    assert "`table` and `bias` must both be handles of variables, or both tensors" in message


def shapes(hidden, targets, table, arrays, make=tf.raw_ops.VarHandleOp):
    with tf.Graph().as_default():
        handle = make(dtype=tf.float32, shape=table)
        bias = make(dtype=tf.float32, shape=table[:1] if table.rank else tf.TensorShape(None))
        hold = [tf.raw_ops.Placeholder(dtype=tf.int32, shape=s) for s in arrays]
        hidden = tf.raw_ops.Placeholder(dtype=tf.float32, shape=hidden)
        out = ops.largeout_tree_softmax_loss(
            hidden,
            tf.raw_ops.Placeholder(dtype=tf.int32, shape=targets),
            tf.zeros([0]),
            handle,
            bias,
            *hold[:5],
            dtype=tf.float32,
            use_bias=True,
        )
        grads = ops.largeout_tree_softmax_grad(
            hidden,
            tf.zeros([0]),
            out.loss,
            handle,
            bias,
            hold[1],
            hold[3],
            *out[1:],
            dtype=tf.float32,
            use_bias=True,
        )
        if make is tf.raw_ops.Placeholder:  # top-k takes variables only
            handle, bias = (
                tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=tensor.shape) for tensor in (handle, bias)
            )
        best = ops.largeout_tree_top_k(
            hidden, 7, handle, bias, hold[1], hold[5], dtype=tf.float32, use_bias=True
        )
        return [x.shape for x in (*out, *grads, *best)]


@pytest.mark.parametrize("make", [tf.raw_ops.VarHandleOp, tf.raw_ops.Placeholder])
def test_shape_functions(make):
    unknown = tf.TensorShape(None)
    arrays = [[20], [6], [5], [5], [2], [24]]
    vector = tf.TensorShape([None]).as_list()
    got = shapes([9, 4], [9], tf.TensorShape([24, 4]), arrays, make)
    want = [[9]] + [vector] * 6 + [[9, 4], vector, [None, 4], vector, [9, 7], [9, 7]]
    assert [s.as_list() for s in got] == want
    got = shapes(unknown, unknown, unknown, [unknown] * 6, make)
    assert [s.rank for s in got] == [1] * 7 + [2, 1, 2, 1, 2, 2]
    for bad in (
        ([9, 4, 1], [9], [24, 4], arrays),
        ([9, 5], [9], [24, 4], arrays),
        ([9, 4], [8], [24, 4], arrays),
        ([9, 4], [9, 1], [24, 4], arrays),
        ([9, 4], [9], [25, 4], arrays),
        *(([9, 4], [9], [24, 4], [[7] if i == j else s for j, s in enumerate(arrays)]) for i in range(6)),
    ):
        with pytest.raises(ValueError, match=r"must|Dimension|Shape"):
            shapes(bad[0], bad[1], tf.TensorShape(bad[2]), bad[3], make)
