"""Operands of the ops of the output heads: hidden vectors, targets, and a table with its bias."""

import keras
import tensorflow as tf


def integer_targets(targets):
    """Return `targets` as int32 or int64. Raises ValueError where they are no integers."""
    targets = tf.convert_to_tensor(targets)
    if not targets.dtype.is_integer:
        raise ValueError(f"`targets` must be integers. Received: dtype={targets.dtype.name}")
    if targets.dtype not in (tf.int32, tf.int64):
        targets = tf.cast(targets, tf.int32 if targets.dtype.size < 4 else tf.int64)
    return targets


def operands(hidden, table, bias, tensors=False):
    """Return hidden vectors, a table and its bias (or None) as the ops of the output heads take them.

    Args:
        hidden: floating tensor; other types than float32 and bfloat16 are cast to float32.
        table, bias: variables (or `keras.Variable`s), or with `tensors` tensors.

    Raises:
        TypeError: `table` or `bias` is neither.
        ValueError: a wrong dtype, or a variable together with a tensor.
    """
    table = _checked("table", table, (tf.float32, tf.bfloat16), tensors)
    bias = None if bias is None else _checked("bias", bias, (tf.float32,), tensors)
    hidden = tf.convert_to_tensor(hidden)
    if not hidden.dtype.is_floating:
        raise ValueError(f"`hidden` must be floating. Received: dtype={hidden.dtype.name}")
    if bias is not None and isinstance(bias, tf.Variable) != isinstance(table, tf.Variable):
        raise ValueError(
            "`table` and `bias` must both be variables, or both tensors. "
            f"Received: {type(table).__name__} and {type(bias).__name__}"
        )
    return hidden if hidden.dtype == tf.bfloat16 else tf.cast(hidden, tf.float32), table, bias


def _checked(name, variable, dtypes, tensors):
    if isinstance(variable, keras.Variable):
        variable = variable.value
    if not isinstance(variable, (tf.Variable, tf.Tensor) if tensors else tf.Variable):
        kinds = "tf.Variable or tf.Tensor" if tensors else "tf.Variable"
        raise TypeError(f"`{name}` must be a {kinds}. Received: {type(variable).__name__}")
    if variable.dtype not in dtypes:
        names = " or ".join(d.name for d in dtypes)
        raise ValueError(f"`{name}` must be of dtype {names}. Received: dtype={variable.dtype.name}")
    return variable


def operand(table):
    """Return what the op takes: a variable's handle, or a tensor. (Without bias it takes the table twice.)"""
    return table.handle if isinstance(table, tf.Variable) else table
