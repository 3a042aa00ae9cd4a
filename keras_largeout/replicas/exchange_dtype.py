"""The dtype in which values travel between a worker and the parameter servers: their own, or a narrower one.

float32 rows, hidden vectors and the gradients of both are most of the bytes of a step. In bfloat16 they are
half as many. Sums, tables and slots stay float32: a value is rounded where it leaves, once for each time that
it travels, and is float32 again where it arrives.
"""

import tensorflow as tf

from keras_largeout.ops._gradients import row_gradient, with_gradient
from keras_largeout.replicas.devices import device_scope


def check_exchange_dtype(dtype):
    """Return None where values travel as they are, else "bfloat16".

    Raises:
        ValueError: neither None, "float32" nor "bfloat16".
    """
    if dtype not in (None, "float32", "bfloat16"):
        raise ValueError(
            f'`exchange_dtype` must be None, "float32" or "bfloat16". Received: exchange_dtype={dtype!r}'
        )
    return None if dtype == "float32" else dtype


def exchange_dtype_of(strategy):
    """Return the dtype in which values travel under a strategy, or None."""
    return getattr(strategy, "exchange_dtype", None)


# `home` is everywhere a `tf.Variable` on another device, and `dtype` None or the dtype to travel in. The
# functions are called where the values are needed, or come from: outside of `device_scope(home)`.


def fetch_narrowed(values, home, dtype):
    """Return `values` of the device of `home`, here; not for what is differentiated (its gradient would be
    wide).
    """
    if dtype is None or values.dtype != tf.float32:
        return values
    with device_scope(home):
        narrow = tf.cast(values, dtype)
    return tf.cast(narrow, tf.float32)


def send_narrowed(values, home, dtype):
    """Return `values` of here on the device of `home`; the gradient comes back in the same dtype."""
    if dtype is None or values.dtype != tf.float32:
        return values
    narrow = tf.cast(values, dtype)

    def gradient(grad):
        with device_scope(home):
            return [tf.cast(grad, dtype)]

    with device_scope(home):  # where the gradient comes from, or float32 values would travel for it
        return with_gradient(gradient, tf.cast(narrow, tf.float32), [narrow])


def gather_narrowed(home, indices, dtype):
    """Return the rows `indices` of `home`, here.

    Args:
        indices: int64 `[n]`.

    Returns:
        `[n, ...]` of the dtype of `home`. Its gradient is a `tf.IndexedSlices`, of values of `dtype`: they
        travel when the rows are updated.
    """
    with device_scope(home):
        rows = tf.gather(home, indices)
        if dtype is None or rows.dtype != tf.float32:
            return rows
        shape = home.shape.as_list()
        narrow = tf.cast(rows, dtype)
        narrow = with_gradient(lambda grad: [row_gradient(shape, indices, grad)], narrow, [], [home])
    return tf.cast(narrow, tf.float32)
