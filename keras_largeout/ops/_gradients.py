"""How ops that take a variable's handle take part in gradients."""

import tensorflow as tf


def watch(variable):
    """Tells the gradient tape that `variable` is in use, without reading it.

    An op fed with `variable.handle` gets no gradient otherwise. Gathering zero rows is the public way to say
    so; reading the variable would copy the whole table after its first sparse update.
    """
    tf.gather(variable, tf.zeros([0], tf.int64))


def row_gradient(variable_shape, indices, values):
    """The gradient of a table: `values[i]` belongs to row `indices[i]`, zero for rows not listed."""
    return tf.IndexedSlices(values, indices, tf.cast(variable_shape, indices.dtype))


def beside(handle):
    """A context for ops that use the resource `handle`: they run where it is, whatever the current device.

    A gradient is computed in the device scope of the replica that asks for it, not in that of the op.
    """
    if tf.executing_eagerly():
        return tf.device(handle.device)
    return tf.compat.v1.get_default_graph().colocate_with(handle.op, ignore_existing=True)
