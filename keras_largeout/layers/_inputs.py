"""Inputs as they come to the layers: ids to embeddings, hidden vectors to heads."""

import keras
import tensorflow as tf

from keras_largeout._keras import is_symbolic_in_tf_keras, training_layer_of_tf_keras
from keras_largeout.ops.embedding.kinds import values_of, with_values
from keras_largeout.replicas._tensorflow import check_no_tangents

# Up to here a floating point type holds every integer.
_EXACT = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53}


def check_keras_3(layer, inputs):
    """Raises ValueError where tf_keras would call `layer` and never train it.

    tf_keras is Keras 2, which TensorFlow has as `tf.keras` where TF_USE_LEGACY_KERAS=1. It builds and runs
    models with layers of Keras 3 in them, and leaves out their weights.

    Args:
        layer: the layer that is being called, built.
        inputs: a structure, what it is called with.
    """
    for tensor in keras.tree.flatten(inputs):
        if is_symbolic_in_tf_keras(tensor):
            _fail_in_tf_keras(layer, f"inputs={tensor!r}")
    trainer = training_layer_of_tf_keras()
    if trainer is not None and layer.trainable_variables:
        known = {id(variable) for variable in trainer.trainable_variables}
        if not known.issuperset(map(id, layer.trainable_variables)):
            _fail_in_tf_keras(layer, f"a call for training by the tf_keras layer {trainer.name!r}")


def _fail_in_tf_keras(layer, received):
    raise ValueError(
        f"`inputs` of the {type(layer).__name__} {layer.name!r} must come from Keras 3: tf_keras (tf.keras "
        "with TF_USE_LEGACY_KERAS=1) would never train this layer. Build the model with `import keras`: "
        "keras.Input, keras.layers, keras.Model. Where TensorFlow Recommenders needs tf_keras, call its task "
        f"in the `compute_loss` of a keras.Model. Received: {received}"
    )


def as_ids(inputs, rows=None):
    """Return `inputs`, a tensor of any kind, as int32 or int64; strings as they are.

    Raises:
        NotImplementedError: `inputs` are of a type that cannot hold every id below `rows`.
    """
    if not isinstance(inputs, (tf.RaggedTensor, tf.SparseTensor)):
        inputs = tf.convert_to_tensor(inputs)
    if rows is not None:
        check_exact(inputs.dtype, rows)
    if inputs.dtype in (tf.int32, tf.int64, tf.string):
        return inputs
    fits = inputs.dtype.is_integer and inputs.dtype.size <= 2
    return tf.cast(inputs, tf.int32 if fits else tf.int64)


def categories(inputs, floats=False):
    """Return `inputs`, a tensor of any kind, of strings or integers.

    Args:
        floats: bool, whether floating point numbers will do, too.

    Raises:
        TypeError: they are neither. No other type can hold every id.
    """
    if not isinstance(inputs, (tf.RaggedTensor, tf.SparseTensor)):
        inputs = tf.convert_to_tensor(inputs)
    check_categories(inputs.dtype, floats)
    return inputs


def check_categories(dtype, floats=False):
    """Raise TypeError where `dtype`, of TensorFlow or a str, is neither string nor integer.

    Args:
        floats: bool, whether floating point numbers will do, too.
    """
    dtype = tf.as_dtype(dtype)
    if dtype != tf.string and not dtype.is_integer and not (floats and dtype.is_floating):
        raise TypeError(f"`inputs` must be strings or integers. Received: dtype={dtype.name}")


def whole_ids(inputs):
    """Return ids of any type and kind as strings, int32 or int64, where any id may come.

    Keras gives a Sequential model without an Input floating point ids. Small ones are exact.

    Raises:
        TypeError: they are no numbers and no strings.
        tf.errors.InvalidArgumentError: a floating point number that is not whole, or so large that its type
            has not all integers up to it.
    """
    inputs = categories(inputs, floats=True)
    if not inputs.dtype.is_floating:
        return as_ids(inputs)
    values = values_of(inputs)
    limit = tf.constant(_EXACT[inputs.dtype.name], values.dtype)
    known = tf.debugging.Assert(
        tf.reduce_all((tf.abs(values) < limit) & (tf.floor(values) == values)),
        [
            "`inputs` must be integers: floating point ids are exact below",
            limit,
            "only. Begin the model with keras.Input(..., dtype='int64'). Received:",
            values,
        ],
    )
    with tf.control_dependencies([] if known is None else [known]):
        return with_values(inputs, tf.cast(values, tf.int64))


def check_exact(dtype, rows, argument="inputs"):
    """Raises NotImplementedError where `dtype` cannot hold every id below `rows`.

    Keras gives a Sequential model without an Input floating point ids, and rounds them.
    """
    hint = (
        "Begin the model with keras.Input(..., dtype='int32')"
        if argument == "inputs"
        else "Read them as int64"
    )
    dtype = keras.backend.standardize_dtype(dtype)
    if rows > _EXACT.get(dtype, rows):
        raise NotImplementedError(
            f"`{argument}` must be integers: {dtype} cannot hold every id below {rows}. {hint}. "
            f"Received: {argument} of dtype {dtype}"
        )


def hidden_length(input_shape):
    """Return the length of the hidden vectors that a head of this input shape is built for.

    Raises:
        ValueError: it is not known, or these are no `[..., dim]`.
    """
    if len(input_shape) < 2 or input_shape[-1] is None:
        raise ValueError(
            "`inputs` must be hidden vectors of a known length, [..., dim]. "
            f"Received: inputs.shape={tuple(input_shape)}"
        )
    return int(input_shape[-1])


def hidden_vectors(head, hidden):
    """Return `hidden` in a type that the ops take.

    Raises:
        ValueError: `head` is not built, or `hidden` is not `[..., head.dim]`.
        NotImplementedError: a `tf.autodiff.ForwardAccumulator` follows `hidden`.
    """
    check_no_tangents(hidden)
    if not head.built:
        raise ValueError(
            f"The head {head.name!r} has no weights yet: call it on hidden vectors, or build it."
        )
    if hidden.shape[-1] != head.dim:
        raise ValueError(
            f"`hidden` must have the length of the head's rows, {head.dim}, on its last axis. "
            f"Received: hidden.shape={tuple(hidden.shape)}"
        )
    return hidden if hidden.dtype in (tf.float32, tf.bfloat16) else tf.cast(hidden, tf.float32)
