"""Where there is a GPU, which is made up here, labels stay on the host from the dataset to the op.

The ops read them there: what a GPU made of them would be waited for.
"""

import numpy as np
import pytest
import tensorflow as tf
from _sparse_output import CLASSES, DIM, LOSSES, ROWS, head_of, labels_of, padded

#: What a GPU leaves in host memory, brings values from outside, or is where its variable is: on the host.
_NEVER_WAITED_FOR = ("Placeholder", "Shape", "VariableShape", "ResourceGather")


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch):
    known = tf.config.list_logical_devices
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: known(kind) or [kind])


def _computed_by_a_gpu(tensor):
    """The ops that a tensor comes from, such as a GPU would compute."""
    found, open_ops, seen = [], [tensor.op], set()
    while open_ops:
        op = open_ops.pop()
        if op.name in seen or op.type in _NEVER_WAITED_FOR:
            continue
        seen.add(op.name)
        on_the_host = "CPU:0" in op.device or all(out.dtype == tf.int32 for out in op.outputs)
        if not on_the_host:
            found.append(f"{op.type} {op.name}")
        open_ops += [x.op for x in op.inputs]
    return found


def _inputs_in_host_memory(op):
    labels, row_splits, label_weights, classes = op.inputs[1:5]
    seeds = [x for x in op.inputs if x.dtype == tf.int64 and x.shape == [2] and x is not classes]
    return [labels, row_splits, label_weights, classes, *seeds]


FORMS = {
    "padded": padded,
    "int32": lambda labels: tf.cast(padded(labels), tf.int32),
    "floats": lambda labels: tf.cast(padded(labels), tf.float32),
    "one": lambda labels: tf.constant([ls[0] if ls else -1 for ls in labels]),
    "ragged": lambda labels: tf.ragged.constant(labels, dtype=tf.int32),
    "sparse": lambda labels: tf.ragged.constant(labels, dtype=tf.int64).to_sparse(),
}


@pytest.mark.parametrize("options", [{}, {"optimizer": "adam"}, {"label_weights": np.ones(CLASSES)}])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", LOSSES)
def test_labels_stay_on_the_host(rng, loss, form, options):
    head = head_of(loss=loss, **options)
    hidden = tf.constant(rng.normal(size=(ROWS, DIM)).astype("float32"))
    sources = [hidden] if head.optimizer is not None else [hidden, head.kernel.shards[0].value]
    targets = FORMS[form](labels_of(rng))

    @tf.function
    def step(targets, hidden):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            value = head.loss(targets, hidden)
        return tape.gradient(value, [hidden, *sources[1:]])

    graph = step.get_concrete_function(targets, hidden).graph
    steps = [op for op in graph.get_operations() if op.type.startswith("Largeout>FanIn")]
    assert {op.type for op in steps} >= {"Largeout>FanInLoss"} and len(steps) == 2
    assert not [name for op in steps for x in _inputs_in_host_memory(op) for name in _computed_by_a_gpu(x)]
