"""Gradients of ops that take a variable's handle, and gradients written in Python."""

import contextlib
import itertools
import weakref

import tensorflow as tf

from keras_largeout.ops import _library

_KEPT = "keras_largeout/gradients"  # the collection of a graph that keeps its gradients alive
_gradients, _keys = weakref.WeakValueDictionary(), itertools.count()
_graph = tf.compat.v1.get_default_graph  # looked up here: AutoGraph warns of the lazy module in a step


def watch(variable):
    """Make the gradient tape watch `variable`, without reading it.

    An op fed with `variable.handle` gets no gradient otherwise. Gathering zero rows is the public way to say
    so; reading the variable would copy the whole table after its first sparse update.
    """
    tf.gather(variable, tf.zeros([0], tf.int64))


def row_gradient(variable_shape, indices, values):
    """Return the gradient of a table: `values[i]` belongs to row `indices[i]`, zero for rows not listed.

    Args:
        variable_shape: list of ints, or an integer tensor.
        indices: int32 or int64 `[n]`.
        values: `[n, ...]`.
    """
    dtype = indices.dtype
    if isinstance(variable_shape, list) and max(variable_shape) < 2**31:
        dtype = tf.int32  # a GPU keeps int32 in host memory, where the number of rows is read
    return tf.IndexedSlices(values, indices, tf.cast(variable_shape, dtype))


def colocated_with(handle):
    """Return a context for ops that use the resource `handle`: they run where it is, whatever the current
    device.

    A gradient is computed in the device scope of the replica that asks for it, not in that of the op. A
    function that is being traced may see the handle itself, of a variable from outside of it.
    """
    if not tf.is_symbolic_tensor(handle):
        return tf.device(handle.device)
    return _graph().colocate_with(handle.op, ignore_existing=True)


def with_gradient(gradient, value, inputs, variables=()):
    """Return `with_gradients` of one value: returns it, and `gradient` takes the gradient of it alone."""
    return with_gradients(gradient, [value], inputs, variables)[0]


def with_gradients(gradient, values, inputs, variables=()):
    """Return `values` whose gradient is what `gradient` says, as with `tf.custom_gradient`.

    In a graph `tf.custom_gradient` puts a closure into a registry of TensorFlow for good, and with it all
    that the closure holds: a model and its variables. Here the graph holds it: both go together.

    Args:
        gradient: `gradients of the values, each an argument -> gradients of the inputs, then of the
            variables`, a sequence; of a variable a tensor, a `tf.IndexedSlices` or None.
        values: list of floating tensors.
        inputs: list of floating tensors from which the values were computed.
        variables: plain `tf.Variable`s of one device from which they were computed.

    Returns:
        A list of tensors.
    """
    for variable in variables:
        watch(variable)
    handles = [variable.handle for variable in variables]
    if tf.executing_eagerly():  # nothing is registered then: the tape holds the closure
        return list(tf.custom_gradient(lambda *_: (tuple(values), gradient))(*inputs, *handles))
    key = str(next(_keys))
    _gradients[key] = gradient
    _graph().add_to_collection(_KEPT, gradient)
    return list(_library.ops.largeout_with_gradient(values=values, inputs=inputs, handles=handles, key=key))


def without_gradient(value, inputs):
    """Return `value`, a floating tensor that was computed from the tensor `inputs`: its gradient is
    refused.
    """

    def gradient(*_):
        raise NotImplementedError(
            "The scores of a head over several hosts must not be differentiated: they have no gradient. "
            "Take that of `head.loss`."
        )

    return with_gradient(gradient, tf.stop_gradient(value), [inputs])


@tf.RegisterGradient("Largeout>WithGradient")
def _kept_gradient(op, *upstream):
    gradient = _gradients.get(op.get_attr("key").decode())
    if gradient is None:
        raise LookupError(
            "The gradient of this operation was known to the process and the function that made it, and is "
            "gone. Differentiate the model that was loaded, not a graph of it that was saved. "
            f"Received: an operation of type {op.type}"
        )
    with contextlib.nullcontext() if op.outputs[0].graph is _graph() else _captured_by_the_function():
        return [*(None for _ in upstream), *gradient(*upstream)]


@contextlib.contextmanager
def _captured_by_the_function():
    """A context in which the function that is traced captures eager tensors, such as handles of variables.

    The gradient of a loop or condition is its own graph, which takes no eager tensors by itself.
    """
    graph = function = _graph()
    while getattr(getattr(function, "outer_graph", None), "capture", None):
        function = function.outer_graph
    capture = graph.capture

    def from_outside(tensor, *args, **kwargs):
        inside = function is graph or tf.is_symbolic_tensor(tensor)
        return capture(tensor if inside else function.capture(tensor), *args, **kwargs)

    graph.capture = from_outside
    try:
        yield
    finally:
        del graph.capture
