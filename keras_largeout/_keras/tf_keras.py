"""Keras 2: calls of tf_keras, and what its optimizers miss."""

import sys


def is_symbolic_in_tf_keras(value):
    """Return whether `value` is a symbolic tensor of tf_keras, which is Keras 2, `tf.keras` with
    TF_USE_LEGACY_KERAS=1.

    Why: a layer of Keras 3 takes it for a tensor. tf_keras then makes layers of its own of the ops that it
    sees, and these have no weights to train.
    """
    kind = getattr(getattr(sys.modules.get("tf_keras"), "__internal__", None), "KerasTensor", None)
    return kind is not None and isinstance(value, kind)


def training_layer_of_tf_keras():
    """Return the innermost layer of tf_keras in whose call for training we are; None where there is none.

    Why: a layer of Keras 3 learns in no other way that tf_keras trains the model in which it is called. A
    version of tf_keras without these names is one that nobody is warned of.
    """
    module = sys.modules.get("tf_keras.src.engine.base_layer_utils")
    context = getattr(module, "call_context", lambda: None)()
    in_training = getattr(context, "in_call", False) and getattr(context, "training", None) is True
    return getattr(context, "layer", None) if in_training else None


def set_tf_keras_id(variable):
    """Gives a weight without elements the one thing that optimizers of tf_keras miss in a `keras.Variable`.

    Why: such a weight stands for a layer that trains itself, which works in a tf_keras model too then.
    """
    variable._unique_id = f"keras_largeout_{id(variable)}"
