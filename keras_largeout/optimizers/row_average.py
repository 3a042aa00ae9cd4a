"""`use_ema` of tables: exact moving averages of all rows, for the cost of the rows of a batch.

Keras moves the average of a weight in every step: `average = m * average + (1 - m) * weight`. A row that no
step updates keeps its value `w`, and after `n` such steps its average is `w + m**n * (average - w)`. So two
slots are enough: the average of each row, and the last step that updated the row. The next step that updates
it makes up for the steps between. Step 0 means that no step has updated the row: its average is its value.

Slots are float32. Up to 16.7 million steps their numbers are exact, and then the nearest that float32 has.

The averages are of the values after the `constraint`. (Keras's are of the values before it.)
"""

import contextlib

import numpy as np
import tensorflow as tf

from keras_largeout._keras import step_counter
from keras_largeout.optimizers.weight import native
from keras_largeout.tables import chunks

#: The names of the slots: the one that Keras gives the average, and the step in which it was right.
AVERAGE, AVERAGE_STEP = "average", "average_step"


class NoTensor(tf.Module):
    """A stand-in for the average of a table in Keras's list of averages."""

    def __tf_tensor__(self, dtype=None, name=None):
        raise ValueError(
            "The averages of tables must be swapped by kl.callbacks.SwapEMAWeights: they still have to make "
            "up for the steps that did not update a row. Received: a request for the average of a table, as "
            "keras.callbacks.SwapEMAWeights makes it"
        )


def add_slots(weight):
    """Make the slots of the averages of a table's part."""
    weight.slots[AVERAGE] = weight.new_slot(AVERAGE, "zeros", per_row=False)
    weight.slots[AVERAGE_STEP] = weight.new_slot(AVERAGE_STEP, "zeros", per_row=True)


def check(optimizer, weight):
    """Raise ValueError where an optimizer with `use_ema` cannot update rows of a `Weight`."""
    if not weight.is_table:
        raise ValueError(
            "`use_ema` must be False for weights that are updated by rows, except tables of this package: "
            f"Keras's average moves every row in every step. Received: use_ema=True for {weight.name}"
        )
    table = weight.owner.table
    refused = {
        "in memory: not in files": table.folder is not None,
        "on the devices of this process: not on parameter servers": table.remote,
        "on the devices of one host": not table.hosts.is_alone,
        'in whole rows: another `placement` than "columns"': weight.columns is not None,
        "float32: a bfloat16 average would stand still": tf.as_dtype(weight.variable.dtype) != tf.float32,
    }
    for rule, broken in refused.items():
        if broken:
            raise ValueError(
                f"With `use_ema` a table must be {rule}. Received: use_ema=True for {weight.name}"
            )
    if optimizer.ema_overwrite_frequency:
        raise ValueError(
            "`ema_overwrite_frequency` must be None for weights that are updated by rows: overwriting visits "
            "all rows. `fit` overwrites them once, at its end. "
            f"Received: ema_overwrite_frequency={optimizer.ema_overwrite_frequency} for {weight.name}"
        )


class Averages:
    """The moving averages of the weights of an optimizer, in one step of it.

    Args:
        momentum: float, `ema_momentum`.
        step: int64 scalar, the number of this step, from 1 on.
        first: int, the first step that updates. Until then averages are the values themselves.
    """

    def __init__(self, momentum, step, first):
        self._momentum, self._step = momentum, step
        self._now = tf.where(step <= first, 0.0, tf.constant(momentum, tf.float32))

    @contextlib.contextmanager
    def of_rows(self, weight, rows):
        """Update the averages of the rows of a table's part that are updated in this context.

        Args:
            weight: `TablePart`.
            rows: integers `[n]`. A row that is there twice gets the same values twice.
        """
        part, average, last = weight.variable, weight.slots[AVERAGE], weight.slots[AVERAGE_STEP]
        with weight.device_scope():
            before = part.gather(rows)
            caught_up = self._caught_up(before, average.gather(rows), last.gather(rows))
        with tf.control_dependencies([caught_up]):
            yield
            with weight.device_scope():
                after = part.gather(rows)
                average.overwrite(rows, after + self._now * (caught_up - after))
                last.overwrite(rows, tf.fill(tf.shape(rows), tf.cast(self._step, tf.float32)))

    def _caught_up(self, value, average, last):
        """Return the averages before this step of rows that had one value since the step `last`."""
        idle = tf.maximum(tf.cast(self._step - 1, tf.float64) - tf.cast(last, tf.float64), 0.0)
        left = tf.where(
            last == 0, 0.0, tf.cast(tf.pow(tf.cast(self._momentum, tf.float64), idle), tf.float32)
        )
        left = tf.reshape(left, [-1, *[1] * (len(value.shape) - 1)])
        return average + (1 - left) * (value - average)

    def of_dense(self, average, value):
        """Update the average of a whole weight, a `tf.Variable` on the device of its value."""
        momentum = tf.cast(self._now, average.dtype)
        average.assign(momentum * average + (1 - momentum) * tf.cast(value, average.dtype))


# All weights, outside of steps: of tables all rows that were ever updated, chunk by chunk.


def swap(optimizer, weights):
    """Exchange the values of weights and their averages. Done twice, it changes nothing."""
    _overwrite(optimizer, weights, lambda values, averages: (averages, values))


def finish(optimizer, weights):
    """Overwrite the values of weights by their averages."""
    _overwrite(optimizer, weights, lambda values, averages: (averages, averages))


def keep(optimizer, weights):
    """Overwrite the averages of weights by their values."""
    _overwrite(optimizer, weights, lambda values, averages: (values, values))


def _overwrite(optimizer, weights, choose):
    step = int(native(step_counter(optimizer)).numpy())
    for weight in weights:
        if weight.is_table:
            _overwrite_rows(weight, float(optimizer.ema_momentum), step, choose)
        elif AVERAGE in weight.slots:
            average = weight.slots[AVERAGE]
            values, averages = choose(native(weight.variable).numpy(), native(average).numpy())
            weight.variable.assign(values)
            average.assign(averages)


def _overwrite_rows(weight, momentum, step, choose):
    part, average, last = weight.variable, weight.slots[AVERAGE], weight.slots[AVERAGE_STEP]
    for start, stop in chunks.chunk_ranges(tuple(part.shape), tf.as_dtype(part.dtype).size):
        rows = np.arange(start, stop)
        steps = last.read_at(rows)
        rows, steps = rows[steps > 0], steps[steps > 0]  # a row that was never updated is its average
        if not len(rows):
            continue
        values, averages = part.read_at(rows), average.read_at(rows)
        left = momentum ** np.maximum(step - steps.astype("float64"), 0)
        left = left.astype("float32").reshape(-1, *[1] * (values.ndim - 1))
        averages = averages + (1 - left) * (values - averages)  # to the bit where no step is missing
        values, averages = choose(values, averages)
        part.write_at(rows, values)
        average.write_at(rows, averages)
        last.write_at(rows, np.full(len(rows), step, "float32"))
