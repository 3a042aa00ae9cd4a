"""Functional models: which calls they make, and how."""

from typing import Any, NamedTuple

import keras

from keras_largeout._keras.calls import is_symbolic
from keras_largeout._keras.versions import _need


def made_from(tensor):
    """Return the `KerasTensor`s from which an operation without weights has made one; those inside a nested
    model.

    Why: public is which layers a functional model has, and not how they are joined.

    Returns:
        A list; empty for an input of a model, and where weights have a part in it.
    """
    operation, node, index = _need(tensor, "_keras_history")
    if not getattr(operation, "weights", None):
        return list(_need(operation, "_inbound_nodes")[node].input_tensors)
    known = isinstance(operation, keras.Model) and getattr(operation, "outputs", None)
    return [operation.outputs[index]] if known else []


class GraphCall(NamedTuple):
    """A call of a layer (or of an operation of `keras.ops`) in a functional model.

    `inputs` and `outputs` are the `keras.KerasTensor`s; `arguments(values)` gives `(args, kwargs)` with
    the values of a dict from `id`s of KerasTensors in their places.
    """

    operation: Any
    inputs: list
    outputs: list
    arguments: Any


def graph_calls(model):
    """Return the `GraphCall`s of a functional model, in an order in which they can be made.

    Why: public is which layers a functional model has, and not which of them hands what to which.
    """
    by_depth = _need(model, "_nodes_by_depth")
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    calls = []
    for node in nodes:
        if not _need(node, "is_input"):
            arguments = _need(_need(node, "arguments"), "fill_in")
            inputs = list(_need(node, "input_tensors"))
            calls.append(GraphCall(node.operation, inputs, list(node.outputs), arguments))
    return calls


def compute_graph_by(model, compute):
    """Make a functional model call its layers in another way. All else of a call stays Keras's.

    Why: a subclass with its own `call` would also check inputs, hand on masks and `training`, and be
    saved in its own way.

    Args:
        model: functional model. It is changed, and stays of its class.
        compute: `(values of model.inputs, with_context) -> values of model.outputs`, lists.
            `with_context(operation)` is the operation, called with the `training` of the model's call.
    """
    as_keras = _need(model, "_run_through_graph")

    def run(inputs, operation_fn=lambda operation: operation, **others):
        values = keras.tree.flatten(inputs)
        if others or is_symbolic() or any(isinstance(value, keras.KerasTensor) for value in values):
            return as_keras(inputs, operation_fn=operation_fn, **others)
        structure = _need(model, "_outputs_struct")
        return keras.tree.pack_sequence_as(structure, compute(values, operation_fn))

    model._run_through_graph = run
