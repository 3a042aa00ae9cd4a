"""The fan-in ops: equal to their references, for every loss and rule, and they say what is wrong."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from keras_largeout.ops import _library, row_update
from keras_largeout.ops.fan_in import wrapper as fi

BFLOAT16 = ml_dtypes.bfloat16
HYPER = {
    "sgd": row_update.sgd_hyper(0.1),
    "adagrad": row_update.adagrad_hyper(0.1, 1e-3),
    "adam": row_update.lazy_adam_hyper(0.1, 0.9, 0.99, 1e-3),
    "lazy_adam": row_update.lazy_adam_hyper(0.1, 0.9, 0.99, 1e-3),
}
SLOTS = {"sgd": 0, "adagrad": 1, "adam": 2, "lazy_adam": 2}


class Problem:
    """A layer, a batch and labels: padding, duplicates, examples without any."""

    def __init__(self, rng, classes=123, fan_in=8, inputs=40, batch=20, **options):
        self.loss = options.pop("loss", "squared_hinge")
        dtype, index_dtype = options.pop("dtype", np.float32), options.pop("index_dtype", np.uint16)
        self.inputs = rng.normal(size=(batch, inputs)).astype(options.pop("inputs_dtype", np.float32))
        order = rng.permuted(np.tile(np.arange(inputs), (classes, 1)), axis=1)
        self.indices = order[:, :fan_in].astype(index_dtype)
        self.weights = rng.normal(size=(classes, fan_in)).astype(dtype)
        self.bias = (rng.normal(size=classes) + options.pop("bias_mean", 0)).astype(np.float32)
        if not options.pop("bias", True):
            self.bias = None
        self.labels = rng.integers(-1, classes, 3 * batch).astype(options.pop("labels_dtype", np.int64))
        self.labels[1::7] = self.labels[0::7][: len(self.labels[1::7])]
        self.row_splits = np.sort(rng.integers(0, 3 * batch + 1, batch + 1))
        self.row_splits[0], self.row_splits[-1] = 0, 3 * batch
        self.label_weights = (rng.random(3 * batch) + 0.5).astype(np.float32)
        self.grad_loss = rng.normal(size=batch).astype(np.float32)
        assert not options

    def variables(self):
        bias = None if self.bias is None else tf.Variable(self.bias)
        return tf.Variable(self.weights), tf.Variable(self.indices), bias

    def lists(self):
        return self.labels, self.row_splits

    def reference(self):
        return fi.fan_in_loss_reference(
            self.inputs.astype(np.float64),
            self.labels,
            self.row_splits,
            self.weights,
            self.indices,
            self.bias,
            self.label_weights,
            self.loss,
            self.grad_loss,
        )

    def run(self, variables, graph=False, **options):
        """The losses and the gradients of inputs, weights and bias."""
        weights, indices, bias = variables
        inputs = tf.constant(self.inputs)
        sources = [inputs, weights] + ([] if bias is None else [bias])

        def step():
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                loss = fi.fan_in_loss(
                    inputs, *self.lists(), weights, indices, bias, self.label_weights, self.loss, **options
                )
            return loss, tape.gradient(loss, sources, self.grad_loss)

        loss, gradients = (tf.function(step) if graph else step)()
        return loss.numpy(), [None if g is None else g.numpy().astype(np.float64) for g in gradients]


def close(got, want, tolerance=1e-5, rough=0.0):
    np.testing.assert_allclose(got, want, rtol=rough + tolerance, atol=tolerance * max(1, np.abs(want).max()))


@pytest.mark.parametrize("loss", fi.LOSSES)
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False, "batch": 1},
        {"classes": 507, "fan_in": 33, "batch": 45, "index_dtype": np.uint32, "labels_dtype": np.int32},
        {"dtype": BFLOAT16, "batch": 33},
        {"inputs_dtype": BFLOAT16},
    ],
    ids=["plain", "one row", "ragged", "bfloat16", "bfloat16 inputs"],
)
def test_loss_equals_reference(rng, device, loss, graph, options):
    p = Problem(rng, loss=loss, **options)
    losses, (d_inputs, d_weights, *d_bias) = p.run(p.variables(), graph)
    want, gradients = p.reference()
    close(losses, want)
    close(d_inputs, gradients["inputs"], rough=8e-3 if p.inputs.dtype == BFLOAT16 else 0)
    close(d_weights, gradients["weights"], rough=8e-3 if p.weights.dtype == BFLOAT16 else 0)
    for d in d_bias:
        close(d, gradients["bias"])


@pytest.mark.parametrize("rule", fi.RULES)
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_fused_step_equals_reference(rng, device, rule, dtype):
    problems = ((True, 20, 0.0), (False, 40, 0.0), (True, 33, -4.0))
    for loss, (bias, batch, bias_mean) in zip(fi.LOSSES, problems, strict=True):
        p = Problem(rng, dtype=dtype, loss=loss, bias=bias, batch=batch, bias_mean=bias_mean)
        variables = p.variables()
        slots = [rng.random(p.weights.shape, np.float32) + 0.1 for _ in range(SLOTS[rule])]
        bias_slots = [rng.random(len(p.weights), np.float32) + 0.1 for _ in slots] if bias else []
        update = fi.FanInUpdate(
            rule,
            HYPER[rule],
            tuple(map(tf.Variable, slots)),
            tuple(map(tf.Variable, bias_slots)),
            (5, tf.constant(7)),
        )
        _, (d_inputs, d_weights, *d_bias) = p.run(variables, graph=batch == 40, update=update)
        assert d_weights is None and d_bias == ([None] if bias else [])
        _, gradients = p.reference()
        close(d_inputs, gradients["inputs"])
        weights, new_slots = fi.fan_in_update_reference(
            rule, p.weights, slots, gradients["weights"], HYPER[rule], (5, 7)
        )
        # A gradient that differs in its last bit may be rounded to the other side.
        close(
            variables[0].numpy().astype(np.float64),
            weights.astype(np.float64),
            rough=8e-3 * (dtype == BFLOAT16),
        )
        if dtype == BFLOAT16:
            assert np.mean(variables[0].numpy() != weights) < 0.02
        for got, want in zip(update.slots, new_slots):
            close(got.numpy(), want)
        if bias:
            new_bias, new_slots = fi.fan_in_update_reference(
                rule, p.bias, bias_slots, gradients["bias"], HYPER[rule]
            )
            close(variables[2].numpy(), new_bias)
            for got, want in zip(update.bias_slots, new_slots):
                close(got.numpy(), want)


def test_weights_decay_and_biases_do_not(rng):
    p = Problem(rng, bias_mean=-50.0, batch=1)  # hardly any class has a gradient
    p.labels[:] = -1
    weights, indices, bias = p.variables()
    p.run((weights, indices, bias), update=fi.FanInUpdate("sgd", row_update.sgd_hyper(0.1, 0.25)))
    np.testing.assert_allclose(weights.numpy(), p.weights * np.float32(0.75), rtol=1e-6)
    np.testing.assert_array_equal(bias.numpy(), p.bias)


def test_logits_and_their_gradient(rng, device):
    for options in ({}, {"dtype": BFLOAT16, "bias": False, "batch": 45, "index_dtype": np.uint32}):
        p = Problem(rng, **options)
        weights, indices, bias = p.variables()
        inputs, d_logits = tf.constant(p.inputs), rng.normal(size=(len(p.inputs), len(p.weights)))
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            logits = fi.fan_in_logits(inputs, weights, indices, bias)
        want = fi.fan_in_logits_reference(p.inputs, p.weights, p.indices, p.bias)
        close(logits.numpy(), want)
        d_inputs, d_weights = tape.gradient(logits, [inputs, weights], d_logits.astype(np.float32))
        x, w = p.inputs.astype(np.float64), p.weights.astype(np.float64)
        dense = np.zeros((len(w), x.shape[1]))
        np.put_along_axis(dense, p.indices.astype(np.int64), w, 1)
        close(d_inputs.numpy(), d_logits @ dense)
        picked = np.take_along_axis(d_logits.T @ x, p.indices.astype(np.int64), 1)
        close(d_weights.numpy().astype(np.float64), picked, rough=8e-3 * (p.weights.dtype == BFLOAT16))


def test_error_is_no_larger_than_the_frameworks(rng):
    p = Problem(rng, classes=300, fan_in=64, inputs=200, batch=32, bias=False)
    truth = fi.fan_in_logits_reference(p.inputs, p.weights, p.indices)
    stock = tf.einsum("bck,ck->bc", tf.gather(p.inputs, p.indices.astype(np.int32), axis=1), p.weights)
    weights, indices, _ = p.variables()
    ours = np.abs(fi.fan_in_logits(p.inputs, weights, indices) - truth)
    assert ours.mean() <= 1.5 * np.abs(stock - truth).mean()


def test_parts_make_the_whole(rng):
    """The classes in two variables: the losses add up; for softmax by lse and mass."""
    for loss in fi.LOSSES:
        p = Problem(rng, loss=loss)
        want, _ = p.reference()
        weights, indices, bias = p.variables()
        whole = fi.fan_in_forward(p.inputs, *p.lists(), weights, indices, bias, p.label_weights, loss)
        close(whole.loss, want)
        parts = [
            fi.fan_in_forward(
                p.inputs,
                *p.lists(),
                *(tf.Variable(v[rows]) for v in (p.weights, p.indices, p.bias)),
                p.label_weights,
                loss,
                first_class=rows.start,
                num_classes=123,
            )
            for rows in (slice(0, 50), slice(50, 123))
        ]
        if loss != "softmax":
            close(parts[0].loss + parts[1].loss, want)
            continue
        lse = tf.reduce_logsumexp([part.lse for part in parts], 0)
        close(lse, whole.lse)
        close(parts[0].mass + parts[1].mass, whole.mass)
        close(sum(part.loss + part.mass * (lse - part.lse) for part in parts), want)


def test_top_k(rng, device):
    for options in ({}, {"bias": False, "batch": 1, "dtype": BFLOAT16, "index_dtype": np.uint32}):
        p = Problem(rng, classes=1500, **options)
        p.weights[700:] = p.weights[:800]  # ties
        p.indices[700:] = p.indices[:800]
        weights, indices, bias = p.variables()
        if bias is not None:
            bias.assign(tf.concat([p.bias[:700], p.bias[:800]], 0))
        logits = fi.fan_in_logits(p.inputs, weights, indices, bias).numpy()
        for k, dtype in ((0, tf.int32), (1, tf.int64), (7, tf.int32), (1500, tf.int32)):
            scores, ids = tf.function(fi.fan_in_top_k)(
                p.inputs, weights, indices, bias, tf.constant(k), dtype
            )
            order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
            np.testing.assert_array_equal(ids, order)
            np.testing.assert_array_equal(scores, np.take_along_axis(logits, order, 1))
            assert ids.dtype == dtype
    scores, _ = fi.fan_in_top_k_reference(p.inputs, p.weights, p.indices, p.bias, 3)
    close(scores, np.sort(logits, 1)[:, ::-1][:, :3])


def test_empty_batch(rng):
    p = Problem(rng, batch=0)
    for loss in fi.LOSSES:
        p.loss = loss
        losses, (d_inputs, d_weights, d_bias) = p.run(p.variables())
        assert losses.shape == (0,) and d_inputs.shape == (0, 40)
        assert not d_weights.any() and not d_bias.any()
    assert fi.fan_in_logits(p.inputs, *p.variables()).shape == (0, 123)
    assert fi.fan_in_top_k(p.inputs, *p.variables(), 3)[1].shape == (0, 3)


def test_one_update_for_every_gradient(rng):
    """Inside a function, and where nothing below the layer is trained, by the trigger."""
    p = Problem(rng, loss="softmax")
    weights, indices, bias = p.variables()
    trigger = tf.Variable(tf.zeros([0]))

    @tf.function
    def step(update):
        with tf.GradientTape() as tape:
            loss = fi.fan_in_loss(
                p.inputs,
                *p.lists(),
                weights,
                indices,
                bias,
                update=fi.FanInUpdate("sgd", HYPER["sgd"]) if update else None,
                trigger=trigger,
                input_gradient=False,
            )
        return tape.gradient(loss, [trigger, weights])

    d_trigger, d_weights = step(True)
    assert d_trigger.shape == (0,) and d_weights is None
    first = weights.numpy() - p.weights
    assert first.any()
    d_trigger, d_weights = step(False)
    assert d_trigger.shape == (0,) and d_weights.shape == weights.shape
    np.testing.assert_array_equal(weights.numpy() - p.weights, first)


def test_shapes_are_inferred(rng):
    p = Problem(rng)
    weights, indices, bias = p.variables()

    def shapes(inputs, splits, k):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = fi.fan_in_loss(inputs, p.labels, splits, weights, indices, bias)
        top = fi.fan_in_top_k(inputs, weights, indices, bias, k)
        found.append(
            [loss.shape, fi.fan_in_logits(inputs, weights, indices, bias).shape, top[0].shape, top[1].shape]
            + [t.shape for t in tape.gradient(loss, [inputs, weights, bias])]
        )

    for batch, columns, k in ((20, 40, 3), (None, 40, None), (None, None, None)):
        found = []
        spec = tf.TensorSpec([batch, columns], tf.float32)
        splits = tf.TensorSpec([None if batch is None else batch + 1], tf.int64)
        k_spec = tf.TensorSpec([], tf.int32)
        run = tf.function(lambda i, s, k_, fixed=k: shapes(i, s, k_ if fixed is None else fixed))
        run.get_concrete_function(spec, splits, k_spec)
        want = [[batch], [batch, 123], [batch, k], [batch, k], [batch, columns], [123, 8], [123]]
        assert [s.as_list() for s in found[0]] == want


WRONG = {
    "fan-in above the number of inputs": (lambda a: a.update(inputs=a["inputs"][:, :7]), "at most as many"),
    "inputs of rank 1": (lambda a: a.update(inputs=a["inputs"][0]), "rank 2|shape \\[batch"),
    "indices of another shape": (
        lambda a: a.update(indices=tf.Variable(a["indices"][:, :4])),
        "`indices` must have the shape",
    ),
    "bias of another shape": (lambda a: a.update(bias=tf.Variable(a["bias"][:4])), "must be equal|`bias`"),
    "row splits of another batch": (lambda a: a.update(row_splits=a["row_splits"][1:]), "`row_splits`"),
    "label weights of another length": (lambda a: a.update(label_weights=np.ones(3, np.float32)), "`label_w"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("graph", [False, True])
def test_wrong_shapes(rng, name, graph):
    p = Problem(rng)
    weights, indices, bias = p.variables()
    arguments = {
        "inputs": p.inputs,
        "labels": p.labels,
        "row_splits": p.row_splits,
        "weights": weights,
        "indices": indices,
        "bias": bias,
    }
    change, message = WRONG[name]
    change(arguments)
    run = tf.function(fi.fan_in_loss) if graph else fi.fan_in_loss
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        run(**arguments)


def test_labels_out_of_range_are_named(rng, device):
    p = Problem(rng)
    for bad in (123, -2):
        p.labels[11] = bad
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"`labels`.*{bad} at position 11"):
            p.run(p.variables())


def test_row_splits_out_of_range_are_named(rng):
    p = Problem(rng)
    p.row_splits[3] = 61
    with pytest.raises(tf.errors.InvalidArgumentError, match="`row_splits` must ascend"):
        p.run(p.variables())


def test_an_index_out_of_range_changes_nothing(rng, device):
    p = Problem(rng)
    p.indices[77, 3] = 40
    variables = p.variables()
    update = fi.FanInUpdate("sgd", HYPER["sgd"])
    for call in (
        lambda: p.run(variables, update=update),
        lambda: fi.fan_in_logits(p.inputs, *variables),
        lambda: fi.fan_in_top_k(p.inputs, *variables, 2),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"`indices` must be in \[0, 40\).*row 77"):
            call()
    np.testing.assert_array_equal(variables[0].numpy(), p.weights)


def test_wrong_arguments_are_named(rng):
    p = Problem(rng)
    weights, indices, bias = p.variables()
    good = (p.inputs, p.labels, p.row_splits)
    with pytest.raises(ValueError, match="`loss` must be one of"):
        fi.fan_in_loss(*good, weights, indices, loss="hinge")
    with pytest.raises(TypeError, match=r"`weights` must be a tf.Variable"):
        fi.fan_in_loss(*good, p.weights, indices)
    with pytest.raises(ValueError, match="`indices` must be of dtype uint16 or uint32"):
        fi.fan_in_logits(p.inputs, weights, tf.Variable(p.indices.astype(np.int64)))
    with pytest.raises(ValueError, match="`inputs` must be floating"):
        fi.fan_in_logits(p.inputs.astype(np.int32), weights, indices)
    with pytest.raises(ValueError, match="`labels` must be int32 or int64"):
        fi.fan_in_loss(p.inputs, p.labels.astype(np.float32), p.row_splits, weights, indices)
    with pytest.raises(ValueError, match=r"`update.rule` must be one of"):
        fi.fan_in_loss(*good, weights, indices, update=fi.FanInUpdate("ftrl", HYPER["sgd"]))
    with pytest.raises(ValueError, match=r"`update.bias_slots` .* must be 1 variables. Received: 0"):
        fi.fan_in_loss(
            *good, weights, indices, bias, update=fi.FanInUpdate("adagrad", HYPER["adagrad"], (weights,))
        )
    with pytest.raises(tf.errors.InvalidArgumentError, match="`k` must be in"):
        fi.fan_in_top_k(p.inputs, weights, indices, bias, 124)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`num_classes` at least first_class"):
        fi.fan_in_loss(*good, weights, indices, num_classes=122)
    with pytest.raises(tf.errors.InvalidArgumentError, match="different variables"):
        p.run((weights, indices, None), update=fi.FanInUpdate("adagrad", HYPER["adagrad"], (weights,)))


def test_the_op_checks_what_the_wrapper_checks(rng):
    p = Problem(rng)
    weights, indices, bias = (v.handle for v in p.variables())
    with pytest.raises(
        (ValueError, tf.errors.InvalidArgumentError), match="`weights` must be of type bfloat16"
    ):
        _library.ops.largeout_fan_in_logits(
            p.inputs, weights, indices, bias, dtype=tf.bfloat16, Tindices=tf.uint16, use_bias=True
        )


@pytest.mark.parametrize("update", [False, True])
def test_a_graph_leaves_errors_of_indices_to_a_later_call(rng, update):
    """On a GPU: that none of these ops waits there is tested without TensorFlow."""
    problem = Problem(rng)
    weights, indices, bias = problem.variables()
    rule = fi.FanInUpdate("sgd", HYPER["sgd"]) if update else None

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = fi.fan_in_loss(inputs, *problem.lists(), weights, indices, bias, update=rule)
            loss = tf.reduce_sum(loss) + tf.reduce_sum(fi.fan_in_logits(inputs, weights, indices, bias))
        return tape.gradient(loss, inputs)

    found = [op for op in _all_operations(step, problem.inputs) if op.type.startswith("Largeout>FanIn")]
    assert {op.type.split(">")[1] for op in found} == {
        "FanInLoss",
        "FanInStep" if update else "FanInLossGrad",
        "FanInLogits",
        "FanInLogitsGrad",
    }
    assert all(op.get_attr("late_errors") for op in found)


def _all_operations(function, *arguments):
    graph = function.get_concrete_function(*map(tf.constant, arguments)).graph
    return graph.get_operations()


@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_a_gpu_tells_of_indices_late(rng, device):
    problem = Problem(rng)
    weights, indices, bias = problem.variables()
    right = indices.numpy()
    wrong = right.copy()
    wrong[70, 3] = 40

    @tf.function
    def logits():
        return fi.fan_in_logits(problem.inputs, weights, indices, bias)

    indices.assign(wrong)
    logits()
    indices.assign(right)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"in \[0, 40\).*row 70 in an earlier call"):
        logits()
    assert np.isfinite(logits().numpy()).all()
