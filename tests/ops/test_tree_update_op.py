"""The op `tree_softmax_update`: the bits of the gradient followed by `row_update`, in one pass."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from ops._row_update import HYPER, make

from keras_largeout import trees
from keras_largeout.ops import row_update as ru
from keras_largeout.ops._library import ops
from keras_largeout.ops.tree_softmax import update as tu
from keras_largeout.ops.tree_softmax import wrapper as ts

BFLOAT16 = ml_dtypes.bfloat16


class Problem:
    """A batch on a tree, with the slots of a rule."""

    def __init__(
        self, rng, rule, dim=17, tokens=60, dtype=np.float32, bias=True, hidden=np.float32, classes=300
    ):
        self.rule, self.hyper = rule, HYPER[rule](0.01)
        self.tree = trees.huffman(1 / (1 + np.arange(classes)), 5)
        self.arrays = ts.TreeArrays(*map(tf.constant, self.tree.arrays().values()))
        self.table, self.slots = make(rng, rule, (self.tree.num_rows, dim), dtype)
        self.bias = rng.normal(size=self.tree.num_rows).astype("float32") if bias else None
        self.hidden = tf.constant(rng.normal(size=(tokens, dim)).astype(hidden))
        self.targets = rng.integers(0, classes, tokens)
        self.grad_loss = rng.normal(size=tokens).astype("float32")

    def run(self, in_one_pass, graph=False, **options):
        """The table and its slots after a step, `d_hidden`, and the gradient of the bias."""
        table, slots = tf.Variable(self.table), [tf.Variable(slot) for slot in self.slots]
        bias = None if self.bias is None else tf.Variable(self.bias)
        sources = [self.hidden, table, *([] if bias is None else [bias])]

        def step():
            with tf.GradientTape() as tape:
                tape.watch(self.hidden)
                loss = ts.tree_softmax_loss(self.hidden, self.targets, table, bias, self.arrays, **options)
            if not in_one_pass:
                d_hidden, rows, *of_bias = tape.gradient(loss, sources, self.grad_loss)
                ru.row_update(self.rule, table, slots, rows.indices, rows.values, self.hyper)
                return d_hidden, *of_bias
            with tu.TableStep(self.rule, table, slots, self.hyper) as taken:
                d_hidden, rows, *of_bias = tape.gradient(loss, sources, self.grad_loss)
            assert taken.taken and rows is None
            return d_hidden, *of_bias

        d_hidden, *of_bias = (tf.function(step) if graph else step)()
        left = [table.numpy(), *(slot.numpy() for slot in slots), d_hidden.numpy()]
        return left + [x.numpy() for gradient in of_bias for x in (gradient.indices, gradient.values)]


@pytest.mark.parametrize("rule", ru.RULES)
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_the_bits_of_two_passes(rng, device, rule, dtype):
    cases = [(17, True, True, np.float32, {}), (4, False, False, BFLOAT16, {"max_saved_bytes": 0})]
    for dim, graph, bias, hidden, options in cases:
        problem = Problem(rng, rule, dim, dtype=dtype, bias=bias, hidden=hidden)
        got, want = (problem.run(one_pass, graph, **options) for one_pass in (True, False))
        for a, b in zip(got, want, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("tokens", [0, 1])
def test_small_batches(rng, device, tokens):
    problem = Problem(rng, "row_wise_adagrad", tokens=tokens)
    for a, b in zip(problem.run(True), problem.run(False), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rule", ["adagrad", "row_wise_adagrad", "lazy_adam"])
def test_equals_reference(rng, device, rule):
    problem = Problem(rng, rule)
    _, of = ts.tree_softmax_reference(
        problem.hidden.numpy(),
        problem.targets,
        problem.table,
        problem.bias,
        ts.TreeArrays(*problem.tree.arrays().values()),
        None,
        problem.grad_loss,
    )
    want, want_slots = tu.tree_softmax_update_reference(
        rule, problem.table, problem.slots, of["rows"], of["table"][of["rows"]], problem.hyper
    )
    got = problem.run(True)
    for a, b in zip(got, [want, *want_slots, of["hidden"], of["rows"], of["bias"][of["rows"]]], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4)


def arguments(problem, **changed):
    table, slots = tf.Variable(problem.table), [tf.Variable(slot) for slot in problem.slots]
    bias = tf.Variable(problem.bias)
    arrays = problem.arrays
    weights = tf.zeros([0])
    _, *saved = ops.largeout_tree_softmax_loss(
        problem.hidden, problem.targets, weights, table.handle, bias.handle, *arrays[:5], dtype=table.dtype,
        use_bias=True,
    )  # fmt: skip
    names = ("pair_token", "pair_row", "group_node", "group_start", "pair_lse", "probs")
    kept = {
        "variable": table,
        "slots": slots,
        "bias": bias,
        "hidden": problem.hidden,
        "weights": weights,
        "grad_loss": tf.constant(problem.grad_loss),
        "hyper": problem.hyper,
        "node_start": arrays.node_start,
        "node_parent": arrays.node_parent,
        **dict(zip(names, saved)),
        "rounding": tf.zeros([0], tf.int64),
        **changed,
    }
    return kept


def call(kept):
    handles = {name: kept[name].handle for name in ("variable", "bias")}
    slots = [slot.handle for slot in kept["slots"]]
    given = {**kept, **handles, "slots": slots}
    return ops.largeout_tree_softmax_update(
        **given, rule="adagrad", dtype=kept["variable"].dtype, use_bias=True
    )


EQUAL = "|must be equal"
WRONG = {  # change, the op's words, those of its shape function beside them
    "slots": ({"slots": []}, "`slots` of rule `adagrad` must be 1 variables. Received: 0", ""),
    "slot shape": ({"slots": (3, 17)}, "`slots` of rule `adagrad` must have the shape", EQUAL),
    "bias": ({"bias": (3,)}, "`bias` must have the shape", EQUAL),
    "hidden": ({"hidden": (60, 3)}, "`hidden` must have the shape", EQUAL),
    "grad_loss": ({"grad_loss": (3,)}, "`grad_loss` must have the shape", EQUAL),
    "hyper": ({"hyper": (1,)}, "`hyper` of rule `adagrad` must have the shape", "|must be 3 but is 1"),
    "pair_row": ({"pair_row": (3,)}, "`pair_row` must have the shape", EQUAL),
}


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(rng, case, graph):
    (change, words, of_shapes), kept = WRONG[case], arguments(Problem(rng, "adagrad"))
    words += of_shapes if graph else ""
    for name, shape in change.items():
        dtype = tf.int32 if name == "pair_row" else tf.float32
        wrong = tf.zeros(shape, dtype) if shape else []
        if name == "slots":
            wrong = [tf.Variable(wrong)] if shape else []
        kept[name] = tf.Variable(wrong) if name == "bias" else wrong
    before = kept["variable"].numpy()
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=words):
        tf.function(lambda: call(kept))() if graph else call(kept)
    np.testing.assert_array_equal(kept["variable"].numpy(), before)


def test_saved_tensors_of_another_loss_change_nothing(rng):
    kept = arguments(Problem(rng, "adagrad"))
    kept["group_node"] = kept["group_node"] + 10_000
    before = kept["variable"].numpy()
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="must be outputs of the loss op for the same tree"
    ):
        call(kept)
    np.testing.assert_array_equal(kept["variable"].numpy(), before)


def test_shapes(rng):
    kept = arguments(Problem(rng, "adagrad"))

    @tf.function
    def shapes():
        d_hidden, rows, bias_grads = call(kept)
        assert d_hidden.shape == (60, 17) and rows.shape.rank == 1 and bias_grads.shape.rank == 1
        assert rows.dtype == tf.int64
        return rows

    assert shapes().shape[0] > 0
