"""Checks that a model's optimizer can train its tables over several devices, and does so without waste."""

import warnings
import weakref

import keras
import tensorflow as tf

from keras_largeout._keras import is_training_call, optimizer_inside, outermost_layer

_LARGE_ROWS, _LARGE_BYTES = 100_000, 16 << 20  # of a table for which a stock optimizer is a waste
_warned = weakref.WeakSet()  # optimizers


def check_optimizer(layer):
    """Raises early where TensorFlow would fail deep inside, or train tables wrongly.

    Keras's own optimizers cannot make slots for a table in parts, nor under any strategy, which a table's
    variables are not made by. Where a table is replicated, they square the gradient of each replica in place
    of the sum.

    A `kl.Model` checks its layers when it is compiled (`check_compiled`). In any other model a layer learns
    who will train it when it is called: the outermost layer of the call is then the compiled model. (In `fit`
    the first such call is the symbolic one by which Keras builds a model, before it builds the optimizer.)

    A `keras.optimizers.LossScaleOptimizer` around an optimizer of this package, such as `compile` makes by
    itself under a mixed_float16 policy, becomes one that looks for infinities in rows, and on all replicas.

    On one device without a strategy any optimizer will do. One that updates a large table as a whole is worth
    a warning.

    Args:
        layer: a layer with tables: `shards` are their `ShardVariable`s. Where it has `dense_gradients`, every
            step has a gradient for all of their rows anyway.

    Raises:
        ValueError: an optimizer would train a table that it cannot: over several replicas, under a strategy,
            in files, or with rows that begin again for other ids.
    """
    optimizer = optimizer_of_call(layer)
    if optimizer is not None:
        _check(layer, optimizer, tf.distribute.get_strategy().num_replicas_in_sync, _is_training)


def check_compiled(layers, optimizer, replicas):
    """Check the layers of a model that is being compiled, whose tables exist already.

    Args:
        layers: all layers of the model; those without tables are passed by.
        optimizer: the model's optimizer, or None.
        replicas: int, how many replicas will train the model.

    Raises:
        ValueError: as `check_optimizer`.
    """
    for layer in layers:
        if optimizer is not None and layer.trainable:
            _check(layer, optimizer, replicas, lambda _: True)


def can_train(layers, optimizer, replicas):
    """Return whether `check_compiled` would pass, without its warnings."""
    pairs = [(shard, responsible_for(optimizer, shard)) for layer in layers for shard in _trained(layer)]
    return not any(_where_ours(responsible, shard, replicas) for shard, responsible in pairs)


def _check(layer, optimizer, replicas, is_training):
    for shard in _trained(layer):
        responsible = responsible_for(optimizer, shard)
        if hasattr(responsible, "adopt"):
            responsible.adopt(optimizer)
        elif responsible is not None and is_training(layer):
            where = _where_ours(responsible, shard, replicas)
            if where is not None:
                _refuse(responsible, shard, where)
            elif _is_waste(layer, shard):
                _warn(responsible, shard)


def shards_of(layer):
    """Yield the parts of the tables of a layer."""
    shards = getattr(layer, "shards", ())  # another package's layer may call something else so
    for shard in shards if isinstance(shards, (list, tuple)) else ():
        if hasattr(shard, "new_slot"):
            yield shard


def _trained(layer):
    """Return the parts of tables of a layer that the model's optimizer trains."""
    return (shard for shard in shards_of(layer) if shard.trainable)


def _refuse(optimizer, shard, where):
    raise ValueError(
        f"`optimizer` must be one of keras_largeout.optimizers where {where}: use {_like(optimizer)}. (For "
        "other weights any optimizer may stand beside it, in a keras.optimizers.MultiOptimizer.) "
        f"Received: {_name(type(optimizer))} for {shard.path}"
    )


def _where_ours(optimizer, shard, replicas):
    """Return where an optimizer must be ours to train a part of a table; None where it may be any, or is
    ours.
    """
    table = shard.array.table
    if optimizer is None or hasattr(optimizer, "adopt"):
        return None
    if replicas > 1 or (len(table.devices) > 1 and not table.remote):
        return "several devices train a table"
    # The part's `tf.Variable` is not exactly its rows.
    if table.folder is not None or table.caches is not None:
        return "a table is in files or has `cache_rows`"
    if table.resets and _has_slots(optimizer):
        return "a `vocabulary` gives rows of a table to other ids"
    # TensorFlow makes slots for variables of the strategy alone, and this one is not.
    if (table.remote or tf.distribute.has_strategy()) and _has_slots(optimizer):
        return "parameter servers have a table" if table.remote else "a strategy is active"
    return None


def _has_slots(optimizer):
    plain = isinstance(optimizer, keras.optimizers.SGD) and not optimizer.momentum
    return not plain or optimizer.use_ema or bool(optimizer.gradient_accumulation_steps)


def _is_waste(layer, shard):
    size = tf.TensorShape(shard.shape).num_elements() * tf.as_dtype(shard.dtype).size
    large = shard.shape[0] >= _LARGE_ROWS or size >= _LARGE_BYTES
    return large and not getattr(layer, "dense_gradients", False)


def _warn(optimizer, shard):
    """Warn once per optimizer, however many tables it trains."""
    if optimizer in _warned:
        return
    _warned.add(optimizer)
    warnings.warn(
        f"`optimizer`: {_name(type(optimizer))} updates all {shard.shape[0]:,} rows of {shard.path} in every "
        f"step. {_like(optimizer)} updates the rows of the batch alone, which may be a hundred times faster. "
        "(For other weights any optimizer may stand beside it, in a keras.optimizers.MultiOptimizer.)",
        stacklevel=2,
    )


def check_loss_scale(layer):
    """Check that a layer whose update is part of its backward pass gets unscaled gradients.

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
    """Return the optimizer of the compiled model in which `layer` is being called; None where nothing will
    train it, or where that is unknown.
    """
    outermost = outermost_layer(layer)
    if outermost is layer or not layer.trainable:
        return None
    return getattr(outermost, "optimizer", None)


def responsible_for(optimizer, variable):
    """Return the optimizer inside `optimizer` that updates `variable`; None where it cannot be known yet."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return optimizer_inside(optimizer, variable) if hasattr(optimizer, "optimizers") else optimizer


def _is_training(layer):
    """Return whether this call is of a step of training, or the symbolic one by which Keras builds a model
    under a strategy: after that one the optimizer makes its slots.
    """
    building = tf.distribute.in_cross_replica_context() and not tf.executing_eagerly()
    return building or is_training_call(layer)


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
