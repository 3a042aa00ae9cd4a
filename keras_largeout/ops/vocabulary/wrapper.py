"""Vocabularies: which row of a fixed table an id has, where ids are any 64-bit numbers.

Kernels and the rules of a step: `custom_ops/vocabulary/vocabulary.h`. They run on CPUs alone.
"""

from typing import NamedTuple

import keras
import tensorflow as tf

from keras_largeout._checks import check_one_of
from keras_largeout.ops import _library
from keras_largeout.ops._gradients import colocated_with
from keras_largeout.ops.vocabulary.reference import (
    EMPTY,
    EVICT,
    find_reference,
    update_reference,
)

__all__ = ["EMPTY", "EVICT", "VocabularyStep", "find", "find_reference", "update", "update_reference"]


class VocabularyStep(NamedTuple):
    """The result of a step of a vocabulary.

    Attributes:
        rows: int64, the shape of the ids: the row of each after the step, -1 where it has none.
        replaced: int64 `[m]`: the rows that belonged to another id before, each once. What is stored there
            must begin again.
    """

    rows: tf.Tensor
    replaced: tf.Tensor


def find(keys, ids):
    """Return the row of each id. Nothing is counted, and no id gets a row.

    Args:
        keys: int64 variable `[capacity]`: the id in each row, `EMPTY` where it is free.
        ids: Integer tensor of any shape.

    Returns:
        int64, the shape of `ids`: the row, -1 where there is none.

    Raises:
        TypeError, ValueError: `keys` is no int64 variable, or `ids` are no integers.
        tf.errors.InvalidArgumentError: the capacity is no multiple of 16.
    """
    keys, ids = _variable("keys", keys, tf.int64), vocabulary_ids(ids)
    with colocated_with(keys.handle):
        rows = _library.ops.largeout_vocabulary_find(keys=keys.handle, ids=tf.reshape(ids, [-1]))
        return _shaped(rows, ids)


def update(keys, scores, sketch, clock, ids, admit_after, evict, begins_step=True):
    """Return one step: counts the ids, gives rows to those that were seen often enough, and says where they
    are.

    The variables are updated in place. Rows do not depend on the number of threads. An id that has a row
    after this step cannot lose it in this step.

    Args:
        keys: int64 variable `[capacity]`, the id in each row, `EMPTY` at first. `capacity` is a multiple
            of 16.
        scores: int64 variable `[capacity]`, zeros at first: the row of the lowest score goes first.
        sketch: uint8 variable `[blocks, 64]`, zeros at first: counters of ids that have no row. `blocks` may
            be 0 if `admit_after` is 1.
        clock: int64 variable `[2]`, zeros at first: steps taken, additions to the sketch since it was last
            halved.
        ids: Integer tensor of any shape. `EMPTY` itself never gets a row.
        admit_after: int in `[1, 255]`: an id gets a row when it has been seen so often. The sketch may count
            an id too high, never too low but for the halving of its counters, which forgets ids that come
            more rarely than `admit_after` times in `2 * admit_after * blocks` others.
        evict: Who loses a row where none is free: `"lfu"`: the id that was seen the fewest times, `"lru"`:
            the one that was seen longest ago.
        begins_step: bool. False: the ids belong to the step of the last call, so that none of its ids loses
            a row to them. That step must have begun.

    Returns:
        `VocabularyStep`.

    Raises:
        TypeError, ValueError: a variable is not one, or has another dtype, `ids` are no integers, or `evict`
            is unknown.
        tf.errors.InvalidArgumentError: variables of wrong shapes, or `admit_after` out of range. Nothing is
            changed then. (In a graph, ValueError.)
    """
    check_one_of("evict", evict, EVICT)
    keys, scores = _variable("keys", keys, tf.int64), _variable("scores", scores, tf.int64)
    sketch, clock = _variable("sketch", sketch, tf.uint8), _variable("clock", clock, tf.int64)
    ids = vocabulary_ids(ids)
    with colocated_with(keys.handle):
        if not begins_step:
            clock.assign_sub([1, 0])  # the op adds one
        rows, replaced = _library.ops.largeout_vocabulary_update(
            keys=keys.handle,
            scores=scores.handle,
            sketch=sketch.handle,
            clock=clock.handle,
            ids=tf.reshape(ids, [-1]),
            admit_after=admit_after,
            evict=evict,
        )
        return VocabularyStep(_shaped(rows, ids), replaced)


def vocabulary_ids(ids):
    """Return `ids` as int64. Raises ValueError where they are no integers."""
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer:
        raise ValueError(f"`ids` must be integers. Received: dtype={ids.dtype.name}")
    return tf.bitcast(ids, tf.int64) if ids.dtype == tf.uint64 else tf.cast(ids, tf.int64)


def _variable(name, variable, dtype):
    if isinstance(variable, keras.Variable):
        variable = variable.value
    if not isinstance(variable, tf.Variable):
        raise TypeError(f"`{name}` must be a tf.Variable. Received: {type(variable).__name__}")
    if variable.dtype != dtype:
        raise ValueError(f"`{name}` must be of dtype {dtype.name}. Received: dtype={variable.dtype.name}")
    return variable


def _shaped(rows, ids):
    rows = tf.reshape(rows, tf.shape(ids))
    rows.set_shape(ids.shape)
    return rows


tf.no_gradient("Largeout>VocabularyFind")
tf.no_gradient("Largeout>VocabularyUpdate")
