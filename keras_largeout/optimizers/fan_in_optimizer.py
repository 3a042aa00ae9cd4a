"""The optimizer of a layer with fixed fan-in: the op of the backward pass applies its rule label by label."""

import keras
import tensorflow as tf

from keras_largeout.ops.fan_in.wrapper import FanInUpdate
from keras_largeout.optimizers.adagrad import Adagrad
from keras_largeout.optimizers.fused_optimizer import FusedOptimizer
from keras_largeout.optimizers.lazy_adam import LazyAdam
from keras_largeout.optimizers.sgd import SGD
from keras_largeout.optimizers.to_row_sparse import optimizer_of

_RULES = {
    keras.optimizers.SGD: "sgd",
    SGD: "sgd",
    keras.optimizers.Adagrad: "adagrad",
    Adagrad: "adagrad",
    keras.optimizers.Adam: "adam",
    keras.optimizers.AdamW: "adam",
    LazyAdam: "lazy_adam",
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
)


class FanInOptimizer(FusedOptimizer):
    """A `FusedOptimizer` of which no gradient array ever exists.

    Args:
        given: `keras.optimizers.SGD`, `Adagrad`, `Adam` or `AdamW`, one of this package's `SGD`, `Adagrad`
            or `LazyAdam`, or what `keras.optimizers.get` makes one of.
        seed: int, of the stochastic rounding of bfloat16 weights.

    Attributes:
        rule: "sgd", "adagrad", "adam" or "lazy_adam".

    Raises:
        ValueError: another optimizer, or an option that a fused step cannot have.
    """

    def __init__(self, given, seed):
        given = optimizer_of(given)
        if type(given) not in _RULES:
            names = sorted({f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in _RULES})
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
        if config.get("stochastic_rounding"):
            raise ValueError(
                "`stochastic_rounding` of the `optimizer` must be False here: the layer rounds bfloat16 "
                "weights stochastically without it, by its own `seed`. Received: stochastic_rounding=True"
            )
        super().__init__(given)
        self.rule = _RULES[type(given)]
        self._seed = seed

    def update(self, weights, position):
        """Return the `FanInUpdate` of the part at `position` for the step that comes next."""
        self.build(weights.tables)  # where Keras built the model symbolically
        optimizer = self.optimizer
        rate = tf.cast(optimizer.learning_rate, tf.float32)
        decay = rate * optimizer.weight_decay if optimizer.weight_decay else 0.0
        shards = [table.shards[position] for table in weights.tables]
        slots = [tuple(slot.value for slot in optimizer.slots_of(shard)) for shard in shards]
        # Only bfloat16 is rounded, and a counter on a GPU would be waited for.
        step = tf.convert_to_tensor(optimizer.iterations.value) if shards[0].dtype == "bfloat16" else 0
        return FanInUpdate(
            self.rule,
            optimizer.row_hyper(rate, decay),
            *slots,  # of the kernel, and of the bias where there is one
            seed=(self._seed, step),
        )

    def count(self):
        """Count a step."""
        self.optimizer.iterations.assign_add(1)
