"""The gradient of some rows: scaling, merging, and what a constraint does to them."""

from typing import NamedTuple

import keras
import tensorflow as tf

from keras_largeout.distribute.replicas.devices import components, on
from keras_largeout.ops.row_update import merge_rows


class RowSlices(NamedTuple):
    """`values[i]` belongs to row `indices[i]`: `[n, ...]` (float32, bfloat16) and `[n]` (int32, int64)."""

    indices: tf.Tensor
    values: tf.Tensor

    def divided_by(self, number):
        """All values over `number`, in float32."""
        return self._replace(values=tf.cast(self.values, tf.float32) / number)

    def merged(self, variable):
        """Every row once, its values summed in float32. Rows that strictly increase are taken as they are."""
        with on(components(native(variable))[0]):
            return RowSlices(*merge_rows(self.indices, self.values, variable.shape[0]))


def native(variable):
    """The `tf.Variable` of a Keras variable, or the `tf.Variable` itself."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def name_of(variable):
    """What an error calls a variable."""
    return getattr(variable, "path", variable.name)


def of(gradient, variable):
    """The `RowSlices` of a gradient: of a `tf.IndexedSlices`, or all rows of a dense one."""
    if isinstance(gradient, tf.IndexedSlices):
        indices, values = gradient.indices, gradient.values
    else:
        values = tf.convert_to_tensor(gradient)
        indices = tf.range(tf.shape(values, tf.int64)[0], dtype=tf.int64)
    if len(variable.shape) == 1:
        values = tf.reshape(values, [-1])
    if values.dtype not in (tf.float32, tf.bfloat16):
        values = tf.cast(values, tf.float32)
    return RowSlices(indices, values)


def joined(gradients, variable):
    """The `RowSlices` of the gradients of all replicas, joined, on the device of the variable."""
    with on(components(native(variable))[0]):
        if not any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
            gradients = [
                tf.add_n(gradients)
            ]  # dense ones, all rows of each: one sum, not one after the other
        parts = [of(gradient, variable) for gradient in gradients]
        if len(parts) == 1:
            return parts[0]
        return RowSlices(*(tf.concat(tensors, axis=0) for tensors in zip(*parts)))


def is_cut_by_columns(variable):
    """Whether `variable` has just some columns of the rows of a table."""
    return hasattr(variable, "array") and variable.array.columns_of(variable.part) is not None


def check_constraint(variable):
    """Raises ValueError unless the constraint of `variable` acts on each row by itself."""
    constraint = variable.constraint
    if constraint is None or isinstance(constraint, keras.constraints.NonNeg):
        return
    if is_cut_by_columns(variable):
        raise ValueError(
            "`constraint` of weights whose columns lie on several devices must be NonNeg: no device has a "
            f'whole row. Choose another `placement` than "columns". Received: constraint={constraint} of '
            f"{name_of(variable)}"
        )
    norms = (keras.constraints.MaxNorm, keras.constraints.UnitNorm, keras.constraints.MinMaxNorm)
    if isinstance(constraint, norms) and len(variable.shape) == 2 and constraint.axis in (1, -1, [1], [-1]):
        return
    raise ValueError(
        "`constraint` of weights that are updated by rows must act on each row by itself: NonNeg, or "
        "MaxNorm, UnitNorm or MinMaxNorm of a matrix with axis=1. "
        f"Received: constraint={constraint} of {name_of(variable)}"
    )


def apply_constraint(native_variable, indices, constraint):
    """Applies a constraint to the rows `indices`, in place."""
    if constraint is not None:
        rows = tf.gather(native_variable, indices)
        native_variable.scatter_update(tf.IndexedSlices(constraint(rows), indices))
