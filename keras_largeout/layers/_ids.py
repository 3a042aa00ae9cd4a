"""Ids as they come to an embedding layer."""

import keras
import tensorflow as tf

# Up to here a floating point type holds every integer.
_EXACT = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24}


def as_ids(inputs):
    """`inputs`, a tensor of any kind, as int32 or int64."""
    if not isinstance(inputs, (tf.RaggedTensor, tf.SparseTensor)):
        inputs = tf.convert_to_tensor(inputs)
    if inputs.dtype in (tf.int32, tf.int64):
        return inputs
    fits = inputs.dtype.is_integer and inputs.dtype.size <= 2
    return tf.cast(inputs, tf.int32 if fits else tf.int64)


def check_exact(dtype, rows):
    """Raises NotImplementedError where `dtype` cannot hold every id below `rows`.

    Keras gives a Sequential model without an Input floating point ids, and rounds them.
    """
    dtype = keras.backend.standardize_dtype(dtype)
    if rows > _EXACT.get(dtype, rows):
        raise NotImplementedError(
            f"`inputs` must be integers: {dtype} cannot hold every id below {rows}. Begin the model with "
            f"keras.Input(..., dtype='int32'). Received: inputs of dtype {dtype}"
        )
