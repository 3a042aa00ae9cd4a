"""The losses of a layer with fixed fan-in, and the step that its own optimizer takes in the backward pass.

On one device `ops.fan_in.fan_in_loss` does it all. On several, each device has a part of the classes, and the
loss of an example is a sum over them (for a softmax: with one logsumexp over all).
"""

import tensorflow as tf

from keras_largeout.distribute.replicas.cross_replica import together
from keras_largeout.ops._gradients import watch
from keras_largeout.ops.fan_in.backward import fan_in_backward
from keras_largeout.ops.fan_in.wrapper import fan_in_forward, fan_in_loss
from keras_largeout.ops.labels import LabelLists


def fan_in_losses(weights, hidden, targets, loss, fused=None, trigger=None):
    """The loss of every position.

    Args:
        weights: `FanInWeights`.
        hidden: float32 or bfloat16 `[n, dim]`.
        targets: `LabelLists` of n positions.
        loss: str, as in `ops.fan_in.fan_in_loss`.
        fused: `FusedOptimizer`, or None: the gradients are the model's optimizer's.
        trigger: a trained tensor `[0]`, with `fused`: it makes sure that a gradient is taken.

    Returns:
        float32 `[n]`.
    """
    parts = weights.parts()
    if len(weights.kernel.devices) > 1:
        joint = JointLoss(weights, loss, fused)
        return joint.of_all_replicas(hidden, targets, trigger) if fused else joint.of_one(hidden, targets)
    (part,) = parts
    losses = fan_in_loss(
        hidden,
        targets.labels,
        targets.row_splits,
        *part.operands,
        label_weights=targets.weights,
        loss=loss,
        update=None if fused is None else fused.update(weights, 0),
        trigger=trigger,
        weight_gradient=weights.trainable,
    )
    return losses if fused is None else fused.counted(losses)


class JointLoss:
    """Losses over the parts of `FanInWeights` that lie on several devices."""

    def __init__(self, weights, loss, fused=None):
        self.weights, self.loss, self.fused = weights, loss, fused
        self.parts = weights.parts()

    def forward(self, hidden, targets):
        """The losses `[n]`, and for each part the `FanInForward` that its backward pass wants."""
        found = []
        for part in self.parts:
            with part.on_its_device():
                found.append(fan_in_forward(hidden, *self._arguments(part, targets), **self._options(part)))
        losses = tf.add_n([f.loss for f in found])
        if self.loss == "softmax":
            lse = tf.reduce_logsumexp(tf.stack([f.lse for f in found]), axis=0)
            losses = tf.add_n([f.loss + f.mass * (lse - f.lse) for f in found])
            mass = tf.add_n([f.mass for f in found])
            found = [f._replace(lse=lse, mass=mass) for f in found]
        return losses, found

    def backward(self, hidden, targets, found, upstream):
        """The gradient of `hidden`, and for each part those of kernel and bias (or its step)."""
        of_hidden, of_weights = [], []
        for position, (part, forward) in enumerate(zip(self.parts, found)):
            with part.on_its_device():
                update = None if self.fused is None else self.fused.update(self.weights, position)
                d_hidden, *rest = fan_in_backward(
                    hidden,
                    *self._arguments(part, targets),
                    forward=forward,
                    grad_loss=upstream,
                    update=update,
                    weight_gradient=self.weights.trainable,
                    **self._options(part),
                )
                of_hidden.append(tf.cast(d_hidden, tf.float32))
                of_weights.append(rest)
        return tf.cast(tf.add_n(of_hidden), hidden.dtype), of_weights

    def _arguments(self, part, targets):
        return targets.labels, targets.row_splits, *part.operands, targets.weights

    def _options(self, part):
        return {
            "loss": self.loss,
            "first_class": part.first_class,
            "num_classes": self.weights.kernel.shape[0],
        }

    def of_one(self, hidden, targets):
        """Each replica for itself; the gradients of the weights go to the model's optimizer."""

        @tf.custom_gradient
        def call(hidden):
            for part in self.parts:
                for variable in (part.kernel, part.bias):
                    if variable is not None and self.weights.trainable:
                        watch(variable)
            losses, found = self.forward(hidden, targets)

            def gradient(upstream, variables=()):
                d_hidden, of_weights = self.backward(hidden, targets, found, upstream)
                if not variables:
                    return d_hidden
                known = {}
                for part, (d_kernel, d_bias) in zip(self.parts, of_weights):
                    known[part.kernel.ref()] = d_kernel
                    if part.bias is not None:
                        known[part.bias.ref()] = d_bias
                return d_hidden, [known[variable.ref()] for variable in variables]

            return losses, gradient

        return call(hidden)

    def of_all_replicas(self, hidden, targets, trigger):
        """One step of each part with what all replicas bring."""

        def forward(*replicas):
            whole, lists = _joined(replicas)
            losses, found = self.forward(whole, lists)
            sizes = [tf.shape(inputs[0])[0] for inputs in replicas]
            return tf.split(losses, sizes), (whole, lists, found, sizes, [inputs[-1] for inputs in replicas])

        def backward(saved, gradients):
            whole, lists, found, sizes, triggers = saved
            d_hidden, _ = self.backward(whole, lists, found, tf.concat(gradients, axis=0))
            self.fused.count()
            return [
                (piece, None, None, None, tf.zeros_like(t))
                for piece, t in zip(tf.split(d_hidden, sizes), triggers)
            ]

        weights = targets.weights
        if weights is None:
            weights = tf.ones_like(targets.labels, tf.float32)
        lengths = targets.row_splits[1:] - targets.row_splits[:-1]
        trigger = tf.convert_to_tensor(trigger)
        return together(forward, backward, hidden, targets.labels, lengths, weights, trigger)


def _joined(replicas):
    """Hidden vectors and `LabelLists` of all replicas, one after the other."""
    hidden, labels, lengths, weights, _ = (tf.concat(parts, axis=0) for parts in zip(*replicas))
    return hidden, LabelLists(labels, tf.concat([[0], tf.cumsum(lengths)], axis=0), weights)
