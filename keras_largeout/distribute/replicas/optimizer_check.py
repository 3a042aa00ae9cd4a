"""Whether the optimizer of the model in which a layer is called can train tables over several devices."""

import keras
import tensorflow as tf


def check_optimizer(layer):
    """Speaks early where TensorFlow would fail deep inside, or train tables wrongly.

    Keras's own optimizers cannot make slots of a table in parts, and square the gradients of replicas one by
    one where a table is replicated. A layer learns who will train it when it is called: the outermost layer
    of the call is then the compiled model. (In `fit` the first such call is the symbolic one by which Keras
    builds a model, before it builds the optimizer.)

    A `keras.optimizers.LossScaleOptimizer` around an optimizer of this package, such as `compile` makes by
    itself under a mixed_float16 policy, becomes one that looks for infinities in rows, and on all replicas.

    Args:
        layer: a layer with tables: `shards` are their `ShardVariable`s.

    Raises:
        ValueError: several replicas would train a table by an optimizer that cannot.
    """
    optimizer = optimizer_of_call(layer)
    if optimizer is None:
        return
    for shard in getattr(layer, "shards", ()):
        if not shard.trainable:  # frozen, or trained by an optimizer of the layer's own
            continue
        responsible = responsible_for(optimizer, shard)
        if hasattr(responsible, "adopt"):
            responsible.adopt(optimizer)
        elif responsible is not None and _is_training_of_several(layer):
            raise ValueError(
                f"`optimizer` must be one of keras_largeout.optimizers where several devices train a table: "
                f"use {_like(responsible)}. (For other weights any optimizer may stand beside it, in a "
                f"keras.optimizers.MultiOptimizer.) Received: {_name(type(responsible))} for {shard.path}"
            )


def check_loss_scale(layer):
    """For a layer whose step is a part of its backward pass: the gradients there must be those of the loss.

    Raises:
        ValueError: the optimizer of the model in which `layer` is called scales the loss.
    """
    optimizer = optimizer_of_call(layer)
    scale = getattr(optimizer, "loss_scale_factor", None)
    if scale is not None or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            f"The optimizer of a model must not scale the loss where a layer, {layer.name!r}, has an "
            "optimizer of its own: that one sees the scaled gradients. Use the policy mixed_bfloat16 in "
            "place of mixed_float16, or no `optimizer` for the layer. "
            f"Received: {_name(type(optimizer))} with loss_scale_factor={scale}"
        )


def optimizer_of_call(layer):
    """The optimizer of the compiled model in which `layer` is being called; None where nothing will train it
    or nobody knows."""
    outermost = layer._get_call_context().entry_layer
    if outermost is layer:
        layer._maybe_reset_call_context()  # asking opens a context where there was none: `layer.call(...)`
        return None
    return getattr(outermost, "optimizer", None) if layer.trainable else None


def responsible_for(optimizer, variable):
    """The optimizer inside `optimizer` that updates `variable`; None where it cannot be known yet."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    choice = getattr(optimizer, "_optimizer_map", None)
    if choice is None:
        return optimizer
    if optimizer.built:
        index = optimizer._var_to_optimizer_idx.get(optimizer._var_key(variable))
        return None if index is None else optimizer.optimizers[index]
    # A function may make a new optimizer at every call, which must not happen in here.
    return choice[variable.path] if hasattr(choice, "default_optimizer") else None


def _is_training_of_several(layer):
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return False
    building = tf.distribute.in_cross_replica_context() and not tf.executing_eagerly()
    return building or bool(layer._get_call_context().get_value("training"))


def _like(optimizer):
    names = {
        keras.optimizers.SGD: "SGD",
        keras.optimizers.Adagrad: "Adagrad or RowWiseAdagrad",
        keras.optimizers.Ftrl: "Ftrl",
    }
    name = next((ours for theirs, ours in names.items() if isinstance(optimizer, theirs)), "LazyAdam")
    return f"keras_largeout.optimizers.{name}"


def _name(kind):
    module = "keras.optimizers" if kind.__module__.startswith("keras.") else kind.__module__
    return f"{module}.{kind.__qualname__}"
