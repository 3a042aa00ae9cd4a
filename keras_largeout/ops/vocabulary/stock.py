"""Finding rows of a vocabulary by stock TensorFlow ops, for exported models."""

import tensorflow as tf

from keras_largeout.ops.mixing import mixed, shifted
from keras_largeout.ops.vocabulary.reference import EMPTY, SLOTS


def stock_find(keys, ids):
    """Return `ops.vocabulary.wrapper.find` without custom ops: the same rows.

    Args:
        keys: int64 variable or tensor `[capacity]`.
        ids: int64 tensor of any shape.

    Returns:
        int64, the shape of `ids`.
    """
    keys, ids = tf.convert_to_tensor(keys), tf.convert_to_tensor(ids, tf.int64)
    buckets = tf.reshape(keys, [-1, SLOTS])
    count = tf.shape(buckets, tf.int64)[0]
    h = mixed(ids)
    rows = tf.fill(tf.shape(ids), tf.constant(-1, tf.int64))
    for half in (h & 0xFFFFFFFF, shifted(h, 32)):  # bucket a comes last, and so before b
        bucket = shifted(half * count, 32)
        equal = tf.gather(buckets, bucket) == ids[..., None]
        slot = bucket * SLOTS + tf.argmax(tf.cast(equal, tf.int8), axis=-1)
        rows = tf.where(tf.reduce_any(equal, axis=-1), slot, rows)
    return tf.where(ids == EMPTY, tf.constant(-1, tf.int64), rows)
