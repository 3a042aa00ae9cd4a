"""An optimizer of a layer's own: what layers with an argument `optimizer` have in common."""

import tensorflow as tf

from keras_largeout._keras import set_tf_keras_id
from keras_largeout.layers._saved_state import LayerState
from keras_largeout.ops.measuring import is_measuring
from keras_largeout.optimizers.fused_optimizer import FusedOptimizer
from keras_largeout.replicas.optimizer_check import check_loss_scale


class FusedOptimizerMixin(LayerState):
    """A base of a layer that may train its tables by itself, in its backward pass.

    Attributes:
        optimizer: the layer's own optimizer, which counts its steps and keeps its slots, or None. Keras saves
            it.
    """

    optimizer, _fused, _trigger, _trained = None, None, None, ()

    def _set_optimizer(self, optimizer, fuse=FusedOptimizer):
        """Takes the argument `optimizer` of the constructor.

        Args:
            optimizer: None, or what `fuse` takes.
            fuse: makes a `FusedOptimizer`.

        Raises:
            ValueError: it cannot be fused, or the policy is mixed_float16.
        """
        if optimizer is None:
            return
        check_not_scaled(self, optimizer)
        self._fused = fuse(optimizer)
        self.optimizer = self._fused.optimizer

    def build_optimizer(self, tables):
        """Makes the slots of `tables`: `ShardedTable`s that the model's optimizer does not train."""
        if self._fused is None:
            return
        self._trained = tuple(tables)
        self._trigger = add_trigger(self)
        self.make_slots()

    def make_slots(self):
        """Makes the slots of an optimizer of the layer's own: before they are saved or loaded."""
        if self._fused is not None:
            self._fused.build(self._trained)

    def check_fused_optimizer(self):
        """Raises ValueError where the layer is called in a model whose loss is scaled."""
        if self._fused is not None:
            check_loss_scale(self)

    def stepping_optimizer(self):
        """Return the `FusedOptimizer` that takes a step in the backward pass, or None."""
        return self._fused if self.trainable and not is_measuring() else None

    def apply_fused_update(self, function, *inputs, of_a_tree=False):
        """Return `function(*inputs)`, whose backward pass takes a step of the layer's own optimizer, if it
        has one.

        Args:
            function: from tensors to a structure of tensors.
            *inputs: float tensors.
            of_a_tree: bool, whether it is a tree softmax over the first table.
        """
        if self.stepping_optimizer() is None:
            return function(*inputs)
        return self._fused.with_step(self._trained, self._trigger.value, inputs, function, of_a_tree)


class FusedHeadMixin(FusedOptimizerMixin):
    """The same for a `Head`, whose loss takes the step."""

    def call(self, inputs, training=False):
        self.check_fused_optimizer()
        return super().call(inputs, training)

    def losses_with_fused_update(self, hidden, losses_of):
        """Return `losses_of(hidden)`, a tuple of tensors. The first are the losses; the others get no
        gradient.
        """

        def first_and_others(hidden):
            losses, *others = losses_of(hidden)
            return losses, *(tf.stop_gradient(other) for other in others)

        return self.apply_fused_update(first_and_others, hidden)


def check_not_scaled(layer, optimizer):
    """Raises ValueError where the policy of a layer with its own optimizer asks for a scaled loss."""
    if layer.compute_dtype == "float16":
        raise ValueError(
            "`optimizer` must be None under mixed_float16: an update in the backward pass would use "
            f"the scaled gradient. Received: dtype={layer.dtype_policy.name}, optimizer={optimizer!r}"
        )


def add_trigger(layer):
    """Return a weight without elements that the model's optimizer trains.

    What depends on it has a gradient, although nothing else that the model trains may be below.
    """
    trigger = layer.add_weight(shape=(0,), initializer="zeros", dtype="float32", name="trigger")
    trigger.is_trigger = True  # no value of the layer
    set_tf_keras_id(trigger)
    return trigger
