"""Ids of any kind, `tf.Tensor`, `tf.RaggedTensor` or `tf.SparseTensor`: their values, and others in place."""

import tensorflow as tf


def values_of(ids):
    """Return the values of ids of any kind, a tensor: of ragged and sparse ones flat."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.flat_values
    return ids.values if isinstance(ids, tf.SparseTensor) else ids


def with_values(ids, values):
    """Return ids of this kind and shape with other values."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(values)
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(ids.indices, values, ids.dense_shape)
    return values
