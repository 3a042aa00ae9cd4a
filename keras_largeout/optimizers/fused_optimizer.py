"""An optimizer of a layer's own, whose step is a part of the layer's backward pass."""

import keras
import tensorflow as tf

from keras_largeout.distribute.replicas.devices import local
from keras_largeout.ops._gradients import with_gradient
from keras_largeout.ops.fan_in.wrapper import FanInUpdate
from keras_largeout.optimizers.adagrad import Adagrad
from keras_largeout.optimizers.lazy_adam import LazyAdam
from keras_largeout.optimizers.sgd import SGD

# What may be given, the rule of the op, and the optimizer of this package that keeps slots and counts steps.
_KINDS = {
    keras.optimizers.SGD: ("sgd", SGD),
    SGD: ("sgd", SGD),
    keras.optimizers.Adagrad: ("adagrad", Adagrad),
    Adagrad: ("adagrad", Adagrad),
    keras.optimizers.Adam: ("adam", LazyAdam),
    keras.optimizers.AdamW: ("adam", LazyAdam),
    LazyAdam: ("lazy_adam", LazyAdam),
}
# What would need the gradient of all weights at once, or more than one step.
_REFUSED = (
    "momentum",
    "amsgrad",
    "use_ema",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "gradient_accumulation_steps",
    "loss_scale_factor",
)


class FusedOptimizer:
    """The optimizer of a layer's own, from what the layer was given as its `optimizer`.

    Args:
        given: `keras.optimizers.SGD`, `Adagrad`, `Adam` or `AdamW`, one of this package's `SGD`, `Adagrad`
            or `LazyAdam`, or what `keras.optimizers.get` makes one of.
        seed: int, of the stochastic rounding of bfloat16 weights.

    Attributes:
        rule: "sgd", "adagrad", "adam" or "lazy_adam".
        optimizer: a new optimizer of this package with the same hyperparameters; it counts the steps and
            keeps the slots. An attribute of the layer, so that Keras saves it.
        config: what was given, serialised.

    Raises:
        ValueError: another optimizer, or an option that a fused step cannot have.
    """

    def __init__(self, given, seed):
        given = keras.optimizers.get(given)
        if type(given) not in _KINDS:
            names = sorted({f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in _KINDS})
            raise ValueError(
                f"`optimizer` must be one of {', '.join(names)} to be fused into the backward pass. "
                f"Received: optimizer={type(given).__module__}.{type(given).__name__}"
            )
        config = given.get_config()
        for option in _REFUSED:
            if config.get(option):
                raise ValueError(
                    f"`{option}` of an `optimizer` that is fused into the backward pass must not be set. "
                    f"Received: {option}={config[option]}"
                )
        self.rule, kind = _KINDS[type(given)]
        self.optimizer = kind.from_config(config)
        self.config = keras.optimizers.serialize(given)
        self._seed = seed

    def build(self, tables):
        """Makes the slots of `ShardedTable`s, when these are there; once."""
        if all(table.initialized for table in tables):
            self.optimizer.build([shard for table in tables for shard in table.shards])

    def losses_with_step(self, tables, hidden, trigger, losses_of):
        """What `losses_of(hidden)` returns; the backward pass of the first of it takes a step.

        All rows that a gradient touches are updated by the optimizer's row update, on all replicas together.

        Args:
            tables: `ShardedTable`s that the losses are computed from.
            hidden: float tensor.
            trigger: a trained tensor `[0]`, which makes sure that a gradient is taken.
            losses_of: function from `hidden` to a tuple of tensors.
        """
        shards = [shard for table in tables for shard in table.shards]
        inner, variables = tf.identity(hidden), [local(shard.value) for shard in shards]
        (losses, *others), differentiate = _differentiable(losses_of, inner, variables)

        def gradient(upstream):
            d_hidden, *of_shards = differentiate(losses, upstream)
            self.build(tables)  # where Keras built the model symbolically
            self.optimizer.apply(of_shards, shards)
            return [d_hidden, tf.zeros([0])]

        stepping = with_gradient(gradient, losses, [hidden, tf.convert_to_tensor(trigger)])
        return stepping, *(tf.stop_gradient(other) for other in others)

    def update(self, weights, position):
        """The `FanInUpdate` of the part at `position` for the step that comes next."""
        self.build(weights.tables)  # where Keras built the model symbolically
        optimizer = self.optimizer
        rate = tf.cast(optimizer.learning_rate, tf.float32)
        decay = rate * optimizer.weight_decay if optimizer.weight_decay else 0.0
        shards = [table.shards[position] for table in weights.tables]
        slots = [tuple(slot.value for slot in optimizer.slots_of(shard)) for shard in shards]
        step = tf.cast(optimizer.iterations.value, tf.int64)
        return FanInUpdate(
            self.rule,
            optimizer.row_hyper(rate, decay),
            *slots,  # of the kernel, and of the bias where there is one
            seed=tf.stack([tf.constant(self._seed, tf.int64), step]),
        )

    def count(self):
        """Says that a step was taken."""
        self.optimizer.iterations.assign_add(1)


def _differentiable(function, value, variables):
    """`function(value)`, and a function from an output and its gradient to those of value and variables.

    In a graph no tape: one that is never asked would hold the graph, and the graph the tape.
    """
    of = [value, *variables]
    if not tf.executing_eagerly():
        return function(value), lambda output, upstream: tf.gradients(output, of, upstream)
    tape = tf.GradientTape(watch_accessed_variables=False)
    with tape:
        tape.watch(of)
        outputs = function(value)
    return outputs, lambda output, upstream: tape.gradient(output, of, output_gradients=upstream)
