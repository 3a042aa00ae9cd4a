"""A trial: what each call of a functional model costs, measured on a batch. It leaves the model as it was."""

import contextlib
import logging
import math
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

from keras_largeout._keras import all_layers, graph_calls, uncast
from keras_largeout.distribute.parallel.losses import losses_collected
from keras_largeout.distribute.parallel.stage_plan import CallCost
from keras_largeout.ops.measuring import measuring
from keras_largeout.tables.shard import ShardVariable

#: A trial batch that nobody gave has so many examples, and so many steps where a length is not known.
_EXAMPLES, _STEPS = 32, 16
_ROUNDS = 3
_SLOTS = 2  # float32 values that an optimizer keeps for each weight, as Adam does


def call_costs(model, sample, device):
    """Runs every call of a model forward and backward, one by one.

    Args:
        model: functional model, built.
        sample: None (zeros), the inputs of a batch, or a tuple `(x, y)` of a batch.
        device: name of the device on which it runs.

    Returns:
        A list of `CallCost`, in the order in which the calls are made, and the number of examples.

    Raises:
        ValueError: a head's loss cannot be computed with the targets of `sample`.
    """
    x, y = _inputs_and_targets(model, sample)
    calls = graph_calls(model)
    taken_by, outputs = {}, {id(output): i for i, output in enumerate(model.outputs)}
    for index, call in enumerate(calls):
        for tensor in call.inputs:
            taken_by.setdefault(id(tensor), set()).add(index)
    for tensor in model.outputs:  # the loss is where the last call is
        taken_by.setdefault(id(tensor), set()).add(len(calls) - 1)
    values = {id(tensor): value for tensor, value in zip(model.inputs, x)}
    examples = _rows(x[0])
    known, costs = set(), []
    with tf.device(device):
        for index, call in enumerate(calls):
            args, kwargs = call.arguments(values)
            operation = call.operation
            with _leaving_as_it_is(operation):
                flat = keras.tree.flatten(operation(*args, **kwargs))
            values.update(zip(map(id, call.outputs), flat))
            targets = y.get(outputs.get(id(call.outputs[0])))
            seconds, flops = _timed(operation, args, kwargs, targets)
            new = [w for w in getattr(operation, "weights", ()) if id(w) not in known]
            known.update(map(id, new))
            sizes = [_nbytes(value) for value in flat]
            costs.append(
                CallCost(
                    name=operation.name,
                    seconds=seconds,
                    flops=flops,
                    weights=sum(_size(w) * tf.as_dtype(w.dtype).size for w in new),
                    slots=sum(_SLOTS * 4 * _size(w) for w in new if _is_trained(w, operation)),
                    activations=sum(sizes),
                    sends=tuple(
                        (later, size)
                        for tensor, size in zip(call.outputs, sizes)
                        for later in sorted(taken_by.get(id(tensor), ()))
                        if later > index
                    ),
                )
            )
    return costs, examples


def _inputs_and_targets(model, sample):
    """Return the flat inputs of the batch, and a dict from indices of outputs to their targets."""
    y = {}
    if isinstance(sample, tuple) and len(sample) == 2:
        sample, targets = sample
        y = dict(enumerate(keras.tree.flatten(targets)))
    if sample is None:
        return [_zeros(tensor) for tensor in model.inputs], y
    flat = keras.tree.flatten(sample)
    return [value if tf.is_tensor(value) else tf.convert_to_tensor(value) for value in flat], y


def _zeros(tensor):
    first, *others = tensor.shape
    shape = [first or _EXAMPLES, *(size or _STEPS for size in others)]
    value = tf.fill(shape, "") if tensor.dtype == "string" else tf.zeros(shape, tensor.dtype)
    if tensor.sparse:
        return tf.sparse.from_dense(value)
    return tf.RaggedTensor.from_tensor(value) if tensor.ragged else value


def _timed(operation, args, kwargs, targets):
    """Return seconds and flops of a forward and backward pass of a call; with the loss, where it is a
    head's.
    """
    weights = getattr(operation, "weights", ())
    variables = [uncast(w) for w in weights if _is_trained(w, operation)]
    flat = keras.tree.flatten((args, kwargs))
    at = [i for i, value in enumerate(flat) if tf.is_tensor(value)]

    @tf.function(autograph=False)
    def step(*tensors):
        given = list(flat)
        for i, tensor in zip(at, tensors):
            given[i] = tensor
        given, named = keras.tree.pack_sequence_as((args, kwargs), given)
        with _leaving_as_it_is(operation):
            result = operation(*given, **named)
            if hasattr(operation, "token_losses"):
                y = tf.zeros(tf.shape(result)[:-1], tf.int64) if targets is None else targets
                result = operation.loss(y, result)
        results = [r for r in keras.tree.flatten(result) if _is_floating(r)]
        sources = [*(t for t in tensors if _is_floating(t)), *variables]
        gradients = tf.gradients(results, sources) if results and sources else []
        done = [getattr(g, "values", g) for g in gradients if g is not None]
        with tf.control_dependencies([*results, *done]):
            return tf.zeros([])

    tensors = [flat[i] for i in at]
    try:
        concrete = step.get_concrete_function(*tensors)
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        if hasattr(operation, "token_losses"):
            raise ValueError(
                f"`sample` must have targets for the head {operation.name!r}: sample=(x, y) of a batch. "
                f"Received: targets {targets!r}"
            ) from error
        raise
    times = []
    for _ in range(1 + _ROUNDS):
        start = time.perf_counter()
        concrete(*tensors).numpy()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:]), _flops(concrete.graph)


@contextlib.contextmanager
def _leaving_as_it_is(operation):
    """A context in which a call changes no state: no counter, average, seed, loss or table."""
    with losses_collected(all_layers(operation)), keras.StatelessScope(), measuring():
        yield


def _is_trained(weight, operation):
    """Return whether the model's optimizer trains a weight, or one of the layer's own."""
    floating = tf.as_dtype(weight.dtype).is_floating
    return weight.trainable or (operation.trainable and floating and isinstance(weight, ShardVariable))


def _flops(graph):
    """Return what TensorFlow's profiler counts: products of matrices, convolutions, not what is in loops."""
    profiler = tf.compat.v1.profiler
    options = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation())
    logger, before = tf.get_logger(), tf.get_logger().level
    logger.setLevel(logging.ERROR)
    try:
        return float(profiler.profile(graph, options=options.with_empty_output().build()).total_float_ops)
    finally:
        logger.setLevel(before)


def _is_floating(value):
    return isinstance(value, tf.Tensor) and value.dtype.is_floating


def _rows(value):
    return int(value.nrows() if isinstance(value, tf.RaggedTensor) else value.shape[0])


def _size(weight):
    return math.prod(int(n) for n in weight.shape)


def _nbytes(value):
    value = getattr(value, "flat_values", getattr(value, "values", value))
    if not tf.is_tensor(value) or value.dtype == tf.string:
        return 0
    return int(np.prod(value.shape)) * value.dtype.size
