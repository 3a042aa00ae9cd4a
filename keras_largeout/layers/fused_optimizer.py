"""An optimizer of a layer's own, whose step is a part of the layer's backward pass."""

import keras
import tensorflow as tf

from keras_largeout import optimizers
from keras_largeout.ops.fan_in.wrapper import FanInUpdate

# What may be given, the rule of the op, and the optimizer of this package that keeps slots and counts steps.
_KINDS = {
    keras.optimizers.SGD: ("sgd", optimizers.SGD),
    optimizers.SGD: ("sgd", optimizers.SGD),
    keras.optimizers.Adagrad: ("adagrad", optimizers.Adagrad),
    optimizers.Adagrad: ("adagrad", optimizers.Adagrad),
    keras.optimizers.Adam: ("adam", optimizers.LazyAdam),
    keras.optimizers.AdamW: ("adam", optimizers.LazyAdam),
    optimizers.LazyAdam: ("lazy_adam", optimizers.LazyAdam),
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

    def build(self, weights):
        """Makes the slots of `FanInWeights`, when these are there; once."""
        if weights.initialized:
            self.optimizer.build([shard for table in weights.tables for shard in table.shards])

    def slots(self, weights, position):
        """The slots of the part at `position`: those of its kernel and of its bias, two tuples."""
        shards = [table.shards[position] for table in weights.tables]
        indices = [self.optimizer._get_variable_index(shard) for shard in shards]
        slots = [tuple(slot.value for slot in self.optimizer.row_rule(index)[1]) for index in indices]
        return slots[0], (slots[1] if len(slots) > 1 else ())

    def update(self, weights, position):
        """The `FanInUpdate` of the part at `position` for the step that comes next."""
        self.build(weights)  # where Keras built the model symbolically
        optimizer = self.optimizer
        rate = tf.cast(optimizer.learning_rate, tf.float32)
        decay = rate * optimizer.weight_decay if optimizer.weight_decay else 0.0
        slots, bias_slots = self.slots(weights, position)
        step = tf.cast(optimizer.iterations.value, tf.int64)
        return FanInUpdate(
            self.rule,
            optimizer.row_hyper(rate, decay),
            slots=slots,
            bias_slots=bias_slots,
            seed=tf.stack([tf.constant(self._seed, tf.int64), step]),
        )

    def count(self):
        """Says that a step was taken."""
        self.optimizer.iterations.assign_add(1)

    def counted(self, losses):
        """`losses`; each gradient of them is a step."""

        @tf.custom_gradient
        def count(losses):
            def gradient(upstream):
                self.count()
                return upstream

            return tf.identity(losses), gradient

        return count(losses)
