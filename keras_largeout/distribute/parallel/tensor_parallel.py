"""Sections: weights cut over devices, tables and heads too, and branches that run side by side.

A `Dense` whose input is whole is cut by columns: every device computes some of the outputs. One whose input
comes in columns is cut by rows: every device computes a part of each sum, and these are added on the first
device. So a pair has one exchange.

Source: [Shoeybi et al., 2019](https://arxiv.org/abs/1909.08053), section 3.
"""

import keras
import tensorflow as tf

from keras_largeout._keras import compute_graph_by, graph_calls, mask_of, with_mask
from keras_largeout.distribute.parallel.clones import clone_of
from keras_largeout.distribute.parallel.on_device import OnDevice, note_placed, refuse_replicas
from keras_largeout.distribute.parallel.recording import compute_there
from keras_largeout.distribute.parallel.sharded_layers import (
    Columns,
    can_be_cut,
    cut,
    is_elementwise,
    stays_in_columns,
)
from keras_largeout.distribute.parallel.stage_planner import place_branches
from keras_largeout.distribute.parallel.transfers import note_transfer
from keras_largeout.ops import export_mode
from keras_largeout.replicas.devices import shard_over
from keras_largeout.tables.shard import ShardVariable


def in_sections(model, devices, costs):
    """Return a copy of a functional model whose weights are cut over devices.

    Args:
        model: functional model, built.
        devices: list of `Device`.
        costs: list of `CallCost` of its calls.

    Returns:
        The copy, with the values of the weights; a dict from the names of layers to "columns", "rows" or
        "cut" (a table or a head); and for each call the index of its device, None where it has several.
    """
    names = [device.name for device in devices]
    ways, cutters = _ways(model, len(names)), {}

    def copied(layer):
        new = type(layer).from_config(layer.get_config())
        if layer.name in ways:
            cutters[layer.name] = cut(new, names, ways[layer.name])
        return new

    with shard_over(names):
        copy = clone_of(model, copied)
    for layer in copy.layers:
        if any(isinstance(w, ShardVariable) and len(w.array.table.devices) > 1 for w in layer.weights):
            ways[layer.name] = "cut"
        if layer.name in ways:
            note_placed(layer, names[0])
    calls = graph_calls(copy)
    free = [None if call.operation.name not in ways else 0 for call in calls]
    where = place_branches(costs, devices, free)
    for layer in copy.layers:
        if layer.name not in ways and not isinstance(layer, keras.layers.InputLayer):
            OnDevice(layer, names[_first(calls, where, layer)])
    compute_graph_by(copy, _Sections(copy, calls, names, where, cutters).run)
    places = [None if call.operation.name in ways else device for call, device in zip(calls, where)]
    return copy, ways, places


def _first(calls, where, operation):
    return next(device for call, device in zip(calls, where) if call.operation is operation)


def _ways(model, devices):
    """Return dict from names of layers to "columns" or "rows"."""
    ways, in_columns, calls = {}, set(), graph_calls(model)
    heads = [call.operation for call in calls if hasattr(call.operation, "tied_to")]
    shared = {id(head.tied_to()) for head in heads}  # a head takes all of it
    for call in calls:
        layer = call.operation
        if id(layer) in shared:
            continue
        from_columns = any(id(tensor) in in_columns for tensor in call.inputs)
        way = ways.get(getattr(layer, "name", None))
        if way is None and from_columns and can_be_cut(layer, devices, "rows"):
            way = "rows"
        if way is None and can_be_cut(layer, devices):
            way = "columns"
        if way is None:
            stays = from_columns and is_elementwise(layer)
        else:
            ways[layer.name] = way
            stays = way == "columns" and stays_in_columns(layer)
        if stays:
            in_columns.update(map(id, call.outputs))
    return ways


class _Sections:
    """The model's calls, split into sections."""

    def __init__(self, model, calls, devices, where, cutters):
        self._inputs, self._outputs = list(model.inputs), list(model.outputs)
        self._calls, self._devices, self._where, self._cutters = calls, devices, where, cutters
        self._made_on = {
            id(tensor): devices[place] for call, place in zip(calls, where) for tensor in call.outputs
        }

    def run(self, values, with_context):
        """See `compute_graph_by`."""
        exporting = export_mode.is_exporting()
        if not exporting:
            refuse_replicas("A model in sections")
        known = dict(zip(map(id, self._inputs), values))
        for call, device in zip(self._calls, self._where):
            if exporting:
                args, kwargs = call.arguments(known)
                result = with_context(call.operation)(*args, **kwargs)
            else:
                result = self._outputs_of(call, self._devices[device], known, with_context)
            flat = [result] if isinstance(result, Columns) else keras.tree.flatten(result)
            known.update(zip(map(id, call.outputs), flat))
        return [_whole(known[id(tensor)]) for tensor in self._outputs]

    def _outputs_of(self, call, device, known, with_context):
        operation = call.operation
        first = known.get(id(call.inputs[0])) if call.inputs else None
        if operation.name in self._cutters:
            result = self._cutters[operation.name](first)
            return result if isinstance(result, Columns) else with_mask(result, _mask(first))
        if isinstance(first, Columns) and is_elementwise(operation):
            parts = [
                compute_there(there, lambda x: [operation(x)], [part], list)[0]
                for part, there in zip(first.parts, first.devices)
            ]
            return Columns(parts, first.devices, first.mask)
        tensors = {id(tensor): _whole(known[id(tensor)]) for tensor in call.inputs}
        args, kwargs = call.arguments(tensors)
        for tensor in call.inputs:
            note_transfer(tensors[id(tensor)], self._made_on.get(id(tensor)), device)
        if isinstance(operation, keras.layers.Layer):
            with tf.device(device):
                return with_context(operation)(*args, **kwargs)
        return _computed(operation, args, kwargs, device)


def _computed(operation, args, kwargs, device):
    """Return what an operation of `keras.ops` returns, computed on a device."""
    flat = keras.tree.flatten((args, kwargs))
    at = [i for i, value in enumerate(flat) if isinstance(value, tf.Tensor) and value.dtype.is_floating]
    seen = {}

    def compute(*inner):
        given = list(flat)
        for i, value in zip(at, inner):
            given[i] = value
        given, named = keras.tree.pack_sequence_as((args, kwargs), given)
        seen["result"] = operation(*given, **named)
        return [r for r in keras.tree.flatten(seen["result"]) if r.dtype.is_floating]

    found = iter(compute_there(device, compute, [flat[i] for i in at], list))
    results = keras.tree.flatten(seen["result"])
    return [next(found) if r.dtype.is_floating else r for r in results]


def _whole(value):
    return value.whole() if isinstance(value, Columns) else value


def _mask(value):
    return value.mask if isinstance(value, Columns) else mask_of(value)
