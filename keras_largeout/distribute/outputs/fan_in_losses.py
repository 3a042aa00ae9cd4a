"""The losses of a layer with fixed fan-in, and the step that its own optimizer takes in the backward pass.

Each device has a part of the classes; a single device has all of them. The loss of an example is the sum over
the parts (for a softmax: with one logsumexp over all).
"""

import tensorflow as tf

from keras_largeout.distribute.replicas.cross_replica import cross_replica_call
from keras_largeout.ops._gradients import watch
from keras_largeout.ops.fan_in.backward import fan_in_backward
from keras_largeout.ops.fan_in.wrapper import fan_in_forward
from keras_largeout.ops.labels import LabelLists


def fan_in_losses(weights, hidden, targets, loss, fused=None, trigger=None):
    """The loss of every token.

    Args:
        weights: `FanInWeights`.
        hidden: float32 or bfloat16 `[n, dim]`.
        targets: `LabelLists` of n tokens.
        loss: str, as in `ops.fan_in.fan_in_loss`.
        fused: `FusedOptimizer`, or None: the gradients are the model's optimizer's.
        trigger: a trained tensor `[0]`, with `fused`: it makes sure that a gradient is taken.

    Returns:
        float32 `[n]`.
    """
    joint = JointLoss(weights, loss, fused)
    return joint.of_one(hidden, targets) if fused is None else joint.of_all_replicas(hidden, targets, trigger)


class JointLoss:
    """Losses over the parts of `FanInWeights`, on one device or several."""

    def __init__(self, weights, loss, fused=None):
        self.weights, self.loss, self.fused = weights, loss, fused
        self.parts = weights.parts()

    def forward(self, hidden, targets):
        """The losses `[n]`, and for each part the `FanInForward` that its backward pass wants."""
        found = []
        for part in self.parts:
            with part.on_its_device():
                found.append(fan_in_forward(hidden, *self._arguments(part, targets), **self._options(part)))
        if len(found) == 1:
            return found[0].loss, found
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
        for index, (part, forward) in enumerate(zip(self.parts, found)):
            with part.on_its_device():
                d_hidden, *rest = fan_in_backward(
                    hidden,
                    *self._arguments(part, targets),
                    forward=forward,
                    grad_loss=upstream,
                    update=None if self.fused is None else self.fused.update(self.weights, index),
                    weight_gradient=self.weights.trainable,
                    **self._options(part),
                )
                of_hidden.append(d_hidden)
                of_weights.append(rest)
        if self.fused is not None:
            self.fused.count()
        if len(of_hidden) > 1:
            of_hidden = [tf.add_n([tf.cast(d_hidden, tf.float32) for d_hidden in of_hidden])]
        return tf.cast(of_hidden[0], hidden.dtype), of_weights

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
            return _split(losses, sizes), (whole, lists, found, sizes)

        def backward(saved, gradients):
            whole, lists, found, sizes = saved
            d_hidden, _ = self.backward(whole, lists, found, tf.concat(gradients, axis=0))
            others = [None] * (len(inputs) - 2)
            return [(piece, *others, tf.zeros([0])) for piece in _split(d_hidden, sizes)]

        weights = [] if targets.weights is None else [targets.weights]
        inputs = [hidden, targets.labels, targets.row_splits, *weights, tf.convert_to_tensor(trigger)]
        return cross_replica_call(forward, backward, *inputs)


def _joined(replicas):
    """Hidden vectors and `LabelLists` of all replicas, one after the other."""
    hidden, labels, splits, *weights = zip(*(inputs[:-1] for inputs in replicas))
    if len(replicas) == 1:
        splits = splits[0]
    else:
        lengths = tf.concat([s[1:] - s[:-1] for s in splits], axis=0)
        splits = tf.concat([[0], tf.cumsum(lengths)], axis=0)
    hidden, labels, *weights = (tf.concat(parts, axis=0) for parts in (hidden, labels, *weights))
    return hidden, LabelLists(labels, splits, *weights)


def _split(values, sizes):
    return tf.split(values, sizes) if len(sizes) > 1 else [values]
