"""An optimizer of a head's own: what heads with an argument `optimizer` have in common."""

from keras_largeout.distribute.replicas.optimizer_check import check_loss_scale
from keras_largeout.optimizers.fused_optimizer import FusedOptimizer


class OwnOptimizer:
    """A part of a `Head` that may train its tables by itself, in its backward pass.

    Attributes:
        optimizer: the head's own optimizer, which counts its steps and keeps its slots, or None. Keras saves
            it.
    """

    optimizer, _fused, _trigger, _trained = None, None, None, ()

    def take_optimizer(self, optimizer, seed=0):
        """Takes the argument `optimizer` of the constructor.

        Raises:
            ValueError: it cannot be fused, or the policy is mixed_float16.
        """
        if optimizer is None:
            return
        if self.compute_dtype == "float16":
            raise ValueError(
                "`optimizer` must be None under mixed_float16: an update in the backward pass would use "
                f"the scaled gradient. Received: dtype={self.dtype_policy.name}, optimizer={optimizer!r}"
            )
        self._fused = FusedOptimizer(optimizer, seed)
        self.optimizer = self._fused.optimizer

    def build_optimizer(self, tables):
        """Makes the slots of `tables`: `ShardedTable`s that the model's optimizer does not train."""
        if self._fused is None:
            return
        self._trained = tuple(tables)
        # A gradient is taken, and with it a step, although nothing before this layer may be trained.
        self._trigger = self.add_weight(shape=(0,), initializer="zeros", dtype="float32", name="trigger")
        self.make_slots()

    def make_slots(self):
        """Makes the slots of an optimizer of the head's own: before they are saved or loaded."""
        if self._fused is not None:
            self._fused.build(self._trained)

    def call(self, inputs):
        if self._fused is not None:
            check_loss_scale(self)
        return super().call(inputs)

    def with_own_step(self, hidden, losses_of):
        """`losses_of(hidden)`, whose backward pass takes a step of the head's own optimizer, if it has one.

        Args:
            hidden: float tensor.
            losses_of: function from `hidden` to a tuple of tensors. The first are the losses; the others get
                no gradient.
        """
        if self._fused is None or not self.trainable:
            return losses_of(hidden)
        return self._fused.losses_with_step(self._trained, hidden, self._trigger.value, losses_of)
