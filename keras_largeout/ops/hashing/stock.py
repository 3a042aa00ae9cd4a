"""Hashing by stock TensorFlow ops: FarmHash64 (Geoff Pike, Google, 2014), for exported models."""

import tensorflow as tf


def stock_category_hash(values, num_bins, seeds, first=0):
    """Return `ops.hashing.wrapper.category_hash` with "farmhash64": the same arguments, no custom op."""
    values = [v if v.dtype == tf.string else tf.strings.as_string(v) for v in values]
    if len(values) == 1 and list(seeds) == [None]:
        return first + tf.strings.to_hash_bucket_fast(values[0], num_bins - first)[:, None]
    prints = [_fingerprints(value) for value in values]
    ids = []
    for j, seed in enumerate(seeds):
        if seed is None:
            hashed = prints[0]
        else:
            of_seed = tf.constant([list(seed.to_bytes(8, "little"))], tf.uint8)
            hashed = _fingerprints(
                tf.concat([*prints, tf.tile(of_seed, [tf.shape(prints[0])[0], 1])], axis=1)
            )
        rest = tf.math.floormod(tf.bitcast(hashed, tf.uint64), tf.constant(num_bins - first, tf.uint64))
        ids.append(tf.cast(rest, tf.int64) + (j * num_bins + first))
    return tf.stack(ids, axis=1)


def _fingerprints(rows):
    """Return FarmHash64 of strings `[n]`, or of rows of bytes `[n, size]`: uint8 `[n, 8]`, the lowest
    first.
    """
    return tf.ensure_shape(tf.raw_ops.Fingerprint(data=rows, method="farmhash64"), [None, 8])
