"""Sequences of a fixed length: what `FeatureConfig.max_sequence_length` makes of ids and of their rows."""

import tensorflow as tf


def truncate(ids, length):
    """Return ids (or weights) `[batch, ids]` of any kind without those from `length` on; sparse ones as
    ragged.
    """
    if isinstance(ids, tf.SparseTensor):
        ids = tf.RaggedTensor.from_sparse(ids)
    return ids[:, :length]


def padded(rows, length):
    """Return rows `[batch, up to length, ...]`, ragged or not, as a tensor `[batch, length, ...]`: zeros
    follow.
    """
    if isinstance(rows, tf.RaggedTensor):
        return rows.to_tensor(shape=[None, length, *rows.shape[2:]])
    missing = length - tf.shape(rows)[1]
    whole = tf.pad(rows, [[0, 0], [0, missing], *([0, 0] for _ in rows.shape[2:])])
    return tf.ensure_shape(whole, [rows.shape[0], length, *rows.shape[2:]])
