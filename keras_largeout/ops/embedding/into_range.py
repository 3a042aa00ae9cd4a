"""Ids as they come, strings among them, as rows of a table: what becomes of those that it has no row for.

By TensorFlow's own ops, so that an exported model does the same.
"""

import tensorflow as tf

from keras_largeout._checks import check_one_of
from keras_largeout.ops.embedding.kinds import values_of, with_values
from keras_largeout.ops.embedding.wrapper import OUT_OF_RANGE
from keras_largeout.ops.mixing import mixed

#: What a layer may do with an id outside its table: what the ops know, and what gives such an id a row.
OUT_OF_RANGE_MODES = (*OUT_OF_RANGE, "modulo", "hash", "default_row")


def check_out_of_range(out_of_range):
    """Raise ValueError where `out_of_range` is not one of `OUT_OF_RANGE_MODES`."""
    check_one_of("out_of_range", out_of_range, OUT_OF_RANGE_MODES)


def in_op(out_of_range):
    """Return what is left for the op to do, one of `OUT_OF_RANGE`, after `into_range`."""
    return out_of_range if out_of_range in OUT_OF_RANGE else "zero"


def into_range(ids, rows, out_of_range, padding=False):
    """Map ids to rows of a table of `rows` rows. Ids out of range get a row by one of `OUT_OF_RANGE_MODES`.

    - "error", "zero": the ids as they are.
    - "modulo": the remainder, never negative, of the division by `rows`.
    - "hash": the same of a hash. Integers are mixed by `ops.mixing`, strings by FarmHash64: these get the ids
      of `keras.layers.Hashing(rows)`.
    - "default_row": the last row, `rows - 1`.

    Args:
        ids: int32, int64 or string: `tf.Tensor`, `tf.RaggedTensor` or `tf.SparseTensor`.
        rows: int.
        out_of_range: one of `OUT_OF_RANGE_MODES`. "hash" where the ids are strings.
        padding: bool, whether row 0 stands for padding: no other id gets it. Then "" is padding too, as in
            `keras.layers.Hashing(rows, mask_value="")`.

    Raises:
        ValueError: strings, and `out_of_range` is not "hash".
    """
    return with_values(ids, _into_range(values_of(ids), rows, out_of_range, int(padding)))


def _into_range(ids, rows, out_of_range, first):
    if ids.dtype == tf.string:
        if out_of_range != "hash":
            raise ValueError(
                "`out_of_range` must be 'hash' where ids are strings (or the table needs a `vocabulary`). "
                f"Received: out_of_range={out_of_range!r}"
            )
        hashed = first + tf.strings.to_hash_bucket_fast(ids, rows - first)
        return tf.where(ids == "", tf.zeros([], tf.int64), hashed) if first else hashed
    if out_of_range in OUT_OF_RANGE:
        return ids
    if out_of_range == "default_row":
        moved = tf.constant(rows - 1, ids.dtype)
    else:
        ids = tf.cast(ids, tf.int64)
        key = mixed(ids) if out_of_range == "hash" else ids
        moved = first + tf.math.floormod(key, tf.constant(rows - first, tf.int64))
    return tf.where((ids >= 0) & (ids < rows), ids, moved)
