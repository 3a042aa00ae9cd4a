"""An optimizer of a layer's own, whose step is a part of the layer's backward pass."""

import contextlib

import keras
import tensorflow as tf

from keras_largeout.ops._gradients import with_gradients
from keras_largeout.optimizers.to_row_sparse import optimizer_of, to_row_sparse
from keras_largeout.replicas.devices import replica_copy
from keras_largeout.replicas.differentiable import differentiable


class FusedOptimizer:
    """The optimizer of a layer's own, from what the layer was given as its `optimizer`.

    Args:
        given: what `to_row_sparse` takes.
        argument: str, what an error calls it.

    Attributes:
        optimizer: a new optimizer of this package with the same hyperparameters; it counts the steps and
            keeps the slots. An attribute of the layer, so that Keras saves it.
        config: what was given, serialised.

    Raises:
        ValueError: another optimizer, or one that scales the loss, which is not its own, or has `use_ema`.
    """

    def __init__(self, given, argument="`optimizer`"):
        given = optimizer_of(given)
        ours = to_row_sparse(given, argument)
        if ours.loss_scale_factor:
            raise ValueError(
                f"`loss_scale_factor` of {argument} must be None where it is fused into the backward pass. "
                f"Received: loss_scale_factor={ours.loss_scale_factor}"
            )
        if ours.use_ema:
            raise ValueError(
                f"`use_ema` of {argument} must be False where it is fused into the backward pass: `fit` ends "
                f"with the averages of the model's optimizer alone. Received: use_ema={ours.use_ema}"
            )
        self.optimizer = type(ours).from_config(ours.get_config())
        self.config = keras.optimizers.serialize(given)

    def build(self, tables):
        """Makes the slots of `ShardedTable`s, when these are there; once."""
        if all(table.initialized for table in tables):
            self.optimizer.build([shard for table in tables for shard in table.shards])

    def with_step(self, tables, trigger, inputs, function, of_a_tree=False):
        """Return what `function(*inputs)` returns; a backward pass through it takes a step.

        All rows that a gradient touches are updated by the optimizer's row update, on all replicas together.

        Args:
            tables: `ShardedTable`s that the result is computed from.
            trigger: a trained tensor `[0]`, which makes sure that a gradient is taken.
            inputs: list of floating tensors.
            function: from the inputs to a structure of tensors (also ragged ones). What is integer in it
                passes through.
            of_a_tree: bool, whether it is a tree softmax over the first table, whose gradient may update it.
        """
        shards = [shard for table in tables for shard in table.shards]
        inner = [tf.identity(value) for value in inputs]
        result, differentiate = differentiable(
            function, inner, lambda: [replica_copy(shard.value) for shard in shards]
        )
        flat = tf.nest.flatten(result, expand_composites=True)
        outputs = [value for value in flat if value.dtype.is_floating]

        def gradient(*upstream):
            self.build(tables)  # where Keras built the model symbolically
            step = self.optimizer.step_of_a_tree(tables[0]) if of_a_tree else None
            with step or contextlib.nullcontext():
                found = differentiate(outputs, [tf.convert_to_tensor(u) for u in upstream])
            done = 1 if step is not None and step.taken else 0
            shards_left, of_shards = shards[done:], found[len(inner) + done :]
            if not shards_left:
                self.optimizer.count_step()
            elif all(of_shard is None for of_shard in of_shards):
                raise ValueError(
                    "A loss whose layer has its own `optimizer` must not be computed in a condition of "
                    "a graph (`tf.cond`, or `if` on a tensor): its gradients are not found there. Give the "
                    f"condition to `sample_weight`. Received: {[shard.path for shard in shards]}"
                )
            else:
                self.optimizer.apply(of_shards, shards_left)
            return [*found[: len(inner)], tf.zeros([0])]

        sources = [*inputs, tf.convert_to_tensor(trigger)]
        stepping = iter(with_gradients(gradient, outputs, sources))
        flat = [next(stepping) if value.dtype.is_floating else value for value in flat]
        return tf.nest.pack_sequence_as(result, flat, expand_composites=True)
