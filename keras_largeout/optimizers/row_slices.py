"""The gradient of some rows: scaling, merging, and what a constraint does to them."""

from typing import NamedTuple

import keras
import tensorflow as tf

from keras_largeout.ops.labels import on_the_host
from keras_largeout.ops.row_update import merge_rows
from keras_largeout.planning.exchange_estimator import SUMMED_IN_PARTS
from keras_largeout.replicas.collectives import AllToAll, all_gather
from keras_largeout.tables.counting import count_merged_here


class RowSlices(NamedTuple):
    """`values[i]` belongs to row `indices[i]`: `[n, ...]` (float32, bfloat16) and `[n]` (int32, int64)."""

    indices: tf.Tensor
    values: tf.Tensor

    def divided_by(self, number):
        """Return all values over `number`, in float32."""
        return self._replace(values=tf.cast(self.values, tf.float32) / number)

    def merged(self, weight):
        """Return every row once, its values summed in float32. Rows that strictly increase are taken as
        they are.
        """
        with weight.device_scope():
            return RowSlices(*merge_rows(self.indices, self.values, weight.variable.shape[0]))


def of(gradient, weight):
    """Return the `RowSlices` of a gradient: of a `tf.IndexedSlices`, or all rows of a dense one."""
    if isinstance(gradient, tf.IndexedSlices):
        indices, values = gradient.indices, gradient.values
    else:
        values = tf.convert_to_tensor(gradient)
        with on_the_host():  # where a GPU's kernel reads the bounds
            bounds = [tf.constant(bound, tf.int64) for bound in (0, weight.variable.shape[0], 1)]
        indices = tf.range(*bounds)
    if len(weight.variable.shape) == 1:
        values = tf.reshape(values, [-1])
    if values.dtype not in (tf.float32, tf.bfloat16):
        values = tf.cast(values, tf.float32)
    return RowSlices(indices, values)


def concat_slices(gradients, weight):
    """Return the `RowSlices` of the gradients of all replicas, joined, on the device of the `Weight`."""
    with weight.device_scope():
        if not any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
            gradients = [tf.add_n(gradients)]  # dense ones have all rows: their sum has them once
        parts = [of(gradient, weight) for gradient in gradients]
        if len(parts) == 1:
            return parts[0]
        return RowSlices(*(tf.concat(tensors, axis=0) for tensors in zip(*parts)))


def summed_over_hosts(rows, hosts, weight):
    """Return the sums of the `RowSlices` of all hosts for a `Weight` that each of them has: the same bits on
    all.

    Of many hosts host r % count sums row r and sends the sum to all, so that a row that all touch travels
    twice, however many hosts there are. The order of a sum is that of the hosts.
    """
    rows = rows.merged(weight)
    if weight.is_table:
        count_merged_here(weight.variable, rows)
    rows = rows._replace(indices=tf.cast(rows.indices, tf.int64))
    if hosts.count >= SUMMED_IN_PARTS:
        owners = tf.cast(rows.indices % hosts.count, tf.int32)
        route = AllToAll(hosts, tf.math.bincount(owners, minlength=hosts.count, maxlength=hosts.count))
        order = tf.argsort(owners, stable=True)
        rows = RowSlices(*(route.forward(tf.gather(tensor, order)) for tensor in rows)).merged(weight)
    return RowSlices(*all_gather(hosts, *rows)).merged(weight)


def check_constraint(weight):
    """Raises ValueError unless the constraint of a `Weight` acts on each row by itself."""
    constraint, matrix = weight.variable.constraint, len(weight.variable.shape) == 2
    if constraint is None or isinstance(constraint, keras.constraints.NonNeg):
        return
    if weight.columns is not None:
        raise ValueError(
            "`constraint` of weights whose columns are on several devices must be NonNeg: no device has a "
            f'whole row. Choose another `placement` than "columns". Received: constraint={constraint} of '
            f"{weight.name}"
        )
    norms = (keras.constraints.MaxNorm, keras.constraints.UnitNorm, keras.constraints.MinMaxNorm)
    if isinstance(constraint, norms) and matrix and constraint.axis in (1, -1, [1], [-1]):
        return
    raise ValueError(
        "`constraint` of weights that are updated by rows must act on each row by itself: NonNeg, or "
        "MaxNorm, UnitNorm or MinMaxNorm of a matrix with axis=1. "
        f"Received: constraint={constraint} of {weight.name}"
    )
