"""The gradient of some rows: scaling, merging, and what a constraint does to them."""

from typing import NamedTuple

import keras
import tensorflow as tf

from keras_largeout.ops.row_update import merge_rows


class RowSlices(NamedTuple):
    """`values[i]` belongs to row `indices[i]`: `[n, ...]` (float32, bfloat16) and `[n]` (int32, int64)."""

    indices: tf.Tensor
    values: tf.Tensor

    def divided_by(self, number):
        """All values over `number`, in float32."""
        return self._replace(values=tf.cast(self.values, tf.float32) / number)

    def merged(self, num_rows):
        """Every row once, its values summed in float32. Rows that strictly increase are taken as they are."""
        return RowSlices(*merge_rows(self.indices, self.values, num_rows))


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


def check_constraint(variable):
    """Raises ValueError unless the constraint of `variable` acts on each row by itself."""
    constraint = variable.constraint
    if constraint is None or isinstance(constraint, keras.constraints.NonNeg):
        return
    norms = (keras.constraints.MaxNorm, keras.constraints.UnitNorm, keras.constraints.MinMaxNorm)
    if isinstance(constraint, norms) and len(variable.shape) == 2 and constraint.axis in (1, -1, [1], [-1]):
        return
    raise ValueError(
        "`constraint` of weights that are updated by rows must act on each row by itself: NonNeg, or "
        "MaxNorm, UnitNorm or MinMaxNorm of a matrix with axis=1. "
        f"Received: constraint={constraint} of {name_of(variable)}"
    )


def apply_constraint(variable, indices):
    """Applies the constraint of `variable` to the rows `indices`, in place."""
    if variable.constraint is not None:
        rows = tf.gather(native(variable), indices)
        native(variable).scatter_update(tf.IndexedSlices(variable.constraint(rows), indices))
