"""Optimizer updates of single rows, in place: the op, its reference in NumPy, the builders of `hyper`.

Kernel: `custom_ops/row_update/row_update.h`, which also states every rule's formula.
"""

import math

import numpy as np
import tensorflow as tf

from keras_largeout.ops import _library
from keras_largeout.ops.labels import on_the_host
from keras_largeout.ops.random_bits import fold_key, random_bits, random_key, round_stochastically

# Ops that deliver rows that increase strictly: the output that has their indices.
_INCREASING = {"Largeout>EmbeddingGrad": 0, "Largeout>TreeSoftmaxGrad": 1}

_TO_NEAREST = np.zeros(0, np.int64)  # eagerly `tf.zeros` would take longer than a small update

RULES = ("sgd", "momentum", "nesterov", "adagrad", "row_wise_adagrad", "lazy_adam", "ftrl")


def row_update(rule, variable, slots, indices, values, hyper, copy_on_read=True, rounding=None):
    """Updates the rows `indices` of `variable` and of its `slots` in place; no other row is read or written.

    Duplicate indices are summed first (in float32, in order of occurrence). Indices that strictly increase,
    as the gradients of this package deliver them, are neither sorted nor summed. Works eagerly and inside
    `tf.function`, not under XLA (`jit_compile=True`).

    Args:
        rule: One of "sgd", "momentum", "nesterov", "adagrad", "row_wise_adagrad", "lazy_adam", "ftrl".
        variable: Variable `[rows, ...]` of float32 or bfloat16.
        slots: List of float32 variables of the shape of `variable` (row_wise_adagrad: `[rows]`): momentum and
            nesterov `[m]`, adagrad and row_wise_adagrad `[accumulator]`, lazy_adam `[m, v]`, ftrl
            `[accumulator, linear]`.
        indices: `[n]`, int32 or int64, in `[0, rows)`.
        values: `[n, ...]`, float32 or bfloat16: the gradients of the rows. For a variable `[rows]`, `[n]` or
            `[n, 1]`.
        hyper: float32 vector, made by `<rule>_hyper`.
        copy_on_read: From now on every read of the whole variables copies them, which suits tables. False,
            for dense weights: reads share memory, as reads of other variables do. (On GPUs always True.)
        rounding: int64 vector, made by `rounding_numbers`: a `variable` of bfloat16 is rounded
            stochastically. None: to nearest.

    Returns:
        In a graph the operation.

    Raises:
        tf.errors.InvalidArgumentError: for an index outside `[0, rows)`, naming it, and for shapes that do
            not belong together. Nothing is changed then. A graph on a GPU does not wait to learn about
            indices: the error is that of the next call.

    Sources: the update formulas are taken from Keras's optimizers. row_wise_adagrad is the exact row-wise
    Adagrad of FBGEMM's split table batched embeddings.
    """
    return _library.ops.largeout_row_update(
        variable=variable.handle,
        slots=[slot.handle for slot in slots],
        indices=indices,
        values=values,
        hyper=hyper,
        rounding=rounding_input(rounding),
        rule=rule,
        dtype=tf.as_dtype(variable.dtype),
        copy_on_read=copy_on_read,
        increasing=_increase(indices),
        late_errors=not tf.executing_eagerly(),
    )


def _increase(indices):
    """Return whether indices are known to increase strictly, by the op of the graph that delivers them."""
    if not tf.is_symbolic_tensor(indices) or indices.op.type not in _INCREASING:
        return False
    return indices is indices.op.outputs[_INCREASING[indices.op.type]]


def merge_rows(indices, values, num_rows):
    """Return every row once, in ascending order, its values summed in float32 in their order of occurrence.

    Args:
        indices: `[n]`, int32 or int64, in `[0, num_rows)`.
        values: `[n, ...]`, any float type.
        num_rows: the rows of the table, an integer or a scalar.

    Returns:
        `(indices, values)`: `[u]` of the type of `indices`, and float32 `[u, ...]`. Indices that increase
        strictly are returned as they are.
    """
    values = tf.cast(values, tf.float32)

    def merge():
        rows, sums = _library.ops.largeout_embedding_grad(
            **_as_gradient(indices, values), num_rows=tf.cast(num_rows, tf.int64)
        )
        return tf.cast(rows, indices.dtype), tf.reshape(sums, [-1, *values.shape[1:]])

    return tf.cond(tf.reduce_all(indices[1:] > indices[:-1]), lambda: (indices, values), merge)


def sum_rows(indices, values, num_rows):
    """Return an array of rows: the values of each index summed in float32, in their order of occurrence.

    Args:
        indices: `[n]`, int32 or int64, in `[0, num_rows)`.
        values: `[n, ...]`, any float type.
        num_rows: an integer or a scalar.

    Returns:
        `[num_rows, ...]` of the type of `values`. Zeros where no index is.
    """
    with on_the_host():
        num_rows = tf.cast(num_rows, tf.int64)
    sums = _library.ops.largeout_embedding_combine_grad(
        **_as_gradient(indices, values), num_rows=num_rows, late_errors=not tf.executing_eagerly()
    )
    return tf.cast(tf.reshape(sums, [-1, *values.shape[1:]]), values.dtype)


def _as_gradient(indices, values):
    """Return inputs and attributes of an op: sums of rows are the gradient of a lookup without combiner."""
    return {
        "ids": indices,
        "row_splits": tf.zeros([0], tf.int64),
        "weights": tf.zeros([0], tf.float32),
        "grad": tf.reshape(tf.cast(values, tf.float32), [tf.shape(values)[0], math.prod(values.shape[1:])]),
        "combiner": "none",
        "out_of_range": "error",
    }


def _hyper(*numbers):
    return tf.stack([tf.cast(number, tf.float32) for number in numbers])


def sgd_hyper(learning_rate, decay=0.0):
    """Return `hyper` of rule "sgd": float32 `[2]`.

    `decay` is learning rate x weight decay, here and below: `row -= row * decay` comes before the update.
    """
    return _hyper(learning_rate, decay)


def momentum_hyper(learning_rate, momentum, decay=0.0):
    """Return `hyper` of rules "momentum" and "nesterov": float32 `[3]`."""
    return _hyper(learning_rate, decay, momentum)


def adagrad_hyper(learning_rate, epsilon, decay=0.0):
    """Return `hyper` of rules "adagrad" and "row_wise_adagrad": float32 `[3]`."""
    return _hyper(learning_rate, decay, epsilon)


def adam_alpha(learning_rate, beta_1, beta_2, step):
    """Return Adam's bias-corrected learning rate, a float32; `step` counts from 1 (Kingma and Ba, section
    2).
    """
    step = tf.cast(step, tf.float32)
    beta_1_power = tf.pow(tf.cast(beta_1, tf.float32), step)
    beta_2_power = tf.pow(tf.cast(beta_2, tf.float32), step)
    return tf.cast(learning_rate, tf.float32) * tf.sqrt(1 - beta_2_power) / (1 - beta_1_power)


def lazy_adam_hyper(alpha, beta_1, beta_2, epsilon, decay=0.0):
    """Return `hyper` of rule "lazy_adam": float32 `[5]`. `alpha` comes from `adam_alpha`."""
    return _hyper(alpha, decay, 1 - beta_1, 1 - beta_2, epsilon)


def ftrl_hyper(learning_rate, learning_rate_power, l1, l2, l2_shrinkage, beta, decay=0.0):
    """Return `hyper` of rule "ftrl": float32 `[6]`; the arguments are those of `keras.optimizers.Ftrl`."""
    learning_rate = tf.cast(learning_rate, tf.float32)
    l2 = l2 + beta / (2.0 * learning_rate)
    return _hyper(learning_rate, decay, learning_rate_power, l1, l2, l2_shrinkage)


def rounding_numbers(seed, step, rows=(1, 0, 0), first_column=0):
    """Return what rows of bfloat16 that are rounded stochastically draw their random bits from: int64 `[6]`.

    The bits are a function of seed, step, row and column. So a table that is a part of a larger one has the
    bits of that one, where `rows` and `first_column` say which part it is.

    Args:
        seed, step: integers, or scalar tensors.
        rows: ints `(multiplier, addend, modulus)`. Row `r` counts as row
            `(r * multiplier + addend) % modulus`, without the modulo if `modulus` is 0.
        first_column: int. Column `c` counts as column `c + first_column`.
    """
    return tf.stack([tf.cast(number, tf.int64) for number in (seed, step, *rows, first_column)])


def rounding_input(rounding):
    """Return what the ops take for `rounding`, which may be None: to nearest."""
    return _TO_NEAREST if rounding is None else rounding


def row_update_reference(rule, variable, slots, indices, values, hyper, rounding=None):
    """Return what `row_update` does, in NumPy and out of place.

    Args:
        rule, indices, values, hyper, rounding: As in `row_update`, as arrays.
        variable: Array `[rows, ...]`, float32 or bfloat16.
        slots: List of float32 arrays.

    Returns:
        `(variable, slots)` after the update: new arrays of the same types.
    """
    indices = np.asarray(indices)
    rows, inverse = np.unique(indices, return_inverse=True)
    g = np.zeros((len(rows),) + variable.shape[1:], np.float32)
    np.add.at(g, inverse, np.asarray(values).astype(np.float32).reshape((len(indices),) + variable.shape[1:]))
    hyper = np.asarray(hyper, np.float32)
    rate, decay = hyper[:2]
    out, slots = np.array(variable), [np.array(slot) for slot in slots]
    w = out[rows].astype(np.float32)
    w = w - w * decay
    s = [slot[rows] for slot in slots]
    with np.errstate(all="ignore"):
        if rule == "sgd":
            w = w - g * rate
        elif rule in ("momentum", "nesterov"):
            s[0] = s[0] * hyper[2] - g * rate
            w = w + (s[0] * hyper[2] - g * rate if rule == "nesterov" else s[0])
        elif rule == "adagrad":
            s[0] = s[0] + g * g
            w = w - rate * g / np.sqrt(s[0] + hyper[2])
        elif rule == "row_wise_adagrad":
            s[0] = s[0] + np.mean(np.square(g), axis=tuple(range(1, g.ndim)))
            w = w - rate * g / np.sqrt(s[0] + hyper[2]).reshape((-1,) + (1,) * (g.ndim - 1))
        elif rule == "lazy_adam":
            s[0] = s[0] + (g - s[0]) * hyper[2]
            s[1] = s[1] + (g * g - s[1]) * hyper[3]
            w = w - s[0] * rate / (np.sqrt(s[1]) + hyper[4])
        elif rule == "ftrl":
            power, l1, l2, shrinkage = hyper[2:]
            before, after = s[0], s[0] + g * g
            s[1] = s[1] + (g + 2 * shrinkage * w - (after**-power - before**-power) / rate * w)
            w = (np.clip(s[1], -l1, l1) - s[1]) / (after**-power / rate + 2 * l2)
            s[0] = after
        else:
            raise ValueError(f"`rule` must be one of {RULES}. Received: rule={rule!r}")
    out[rows] = w.astype(out.dtype) if rounding is None else _rounded(w, rows, np.asarray(rounding))
    for slot, new in zip(slots, s):
        slot[rows] = new
    return out, slots


def _rounded(w, rows, rounding):
    """Return the float32 rows `w` as bfloat16, rounded by the bits of their rows and columns."""
    multiplier, addend, modulus, first_column = rounding[2:].astype(np.uint64)
    numbers = rows.astype(np.uint64) * multiplier + addend
    of_row = fold_key(random_key(rounding[:2]), numbers % modulus if modulus else numbers)
    columns = np.arange(math.prod(w.shape[1:]), dtype=np.uint64) + first_column
    return round_stochastically(w, random_bits(of_row[:, None], columns).reshape(w.shape))
