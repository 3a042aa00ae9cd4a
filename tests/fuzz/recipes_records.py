"""Calls of the ops of records, and of those that change files under variables, that they accept."""

import numpy as np
import tensorflow as tf

from keras_largeout.files.record_marks import record_marks
from tests.fuzz.recipes import _RULES, FLOATS, INTS, RECIPES, _bags, _floats, _ids, _rounding
from tests.fuzz.recipes_common import file_arguments


def _records(d, words):
    """Records: some were never written, some have a digest, some have none."""
    rows = d.size(1, 40)
    content = _floats(d, (rows, words - 1 + d.pick([0, 0, 1, 7]))).numpy()
    marks = record_marks(content, np.arange(rows))
    marks = np.where(np.arange(rows) % 3 == 0, marks, np.arange(rows, dtype=np.float32) % 3 % 2)
    return rows, d.variable(np.concatenate([marks[:, None], content], axis=1))


def _row_words(dtype, dim):
    return -(-dim * dtype.size // 4)


def _record_update(d):
    rule, dtype, dim, n = d.pick(sorted(_RULES)), d.pick(FLOATS), d.size(1, 40), d.size(0, 60)
    slots, hyper = _RULES[rule]
    rows, variable = _records(d, 1 + _row_words(dtype, dim) + slots * (1 if "row_wise" in rule else dim))
    return {
        "variable": variable,
        "indices": _ids(d, (n,), rows, d.pick(INTS)),
        "values": _floats(d, (n, dim), d.pick(FLOATS)),
        "hyper": tf.constant([0.1] * hyper),
        "rounding": _rounding(d, dtype),
        "rule": rule,
        "dtype": dtype,
        "dim": dim,
    }


def _write_records(d):
    words, n = d.size(1, 70), d.size(0, 60)
    rows = d.size(1, 40)
    return {
        "variable": d.variable(_floats(d, (rows, words))),
        "indices": _ids(d, (n,), rows, d.pick(INTS)),
        "contents": _floats(d, (n, words - 1)),
    }


def _gather_records(d):
    dtype, dim = d.pick(FLOATS), d.size(0, 70)
    rows, variable = _records(d, 1 + _row_words(dtype, dim))
    indices = _ids(d, (d.size(0, 200),), rows, d.pick(INTS))
    return {"variable": variable, "indices": indices, "dtype": dtype, "dim": dim}


def _record_lookup(d):
    dtype, dim = d.pick(FLOATS), d.size(1, 70)
    rows, variable = _records(d, 1 + _row_words(dtype, dim))
    inputs, attributes, _ = _bags(d, rows)
    return {**inputs, **attributes, "variable": variable, "dtype": dtype, "dim": dim}


def _prefetch_rows(d):
    rows = d.size(1, 40)
    shape = (rows, *(d.size(0, 1000) for _ in range(d.pick([0, 1, 1, 2]))))
    variable = d.variable(tf.zeros(shape, d.pick([tf.float32, tf.bfloat16, tf.uint8])))
    return {"variable": variable, "indices": _ids(d, (d.size(0, 60),), rows, d.pick(INTS))}


def _remap_variable(d):
    arguments = file_arguments(d)
    variable = tf.Variable(tf.zeros([1], arguments["dtype"]), shape=tf.TensorShape(None))
    return {**arguments, "variable": d.kept(variable)}


RECIPES.update(
    RecordUpdate=_record_update,
    WriteRecords=_write_records,
    GatherRecords=_gather_records,
    RecordLookup=_record_lookup,
    PrefetchRows=_prefetch_rows,
    RemapVariable=_remap_variable,
)
