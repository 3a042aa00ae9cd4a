"""The losses of a layer with fixed fan-in, and the step that its own optimizer takes in the backward pass.

Each device has a part of the classes; a single device has all of them. The loss of an example is the sum over
the parts (for a softmax: with one logsumexp over all).
"""

import tensorflow as tf

from keras_largeout.ops._gradients import with_gradient
from keras_largeout.ops.fan_in.backward import fan_in_backward
from keras_largeout.ops.fan_in.wrapper import fan_in_forward
from keras_largeout.ops.labels import LabelLists, on_the_host
from keras_largeout.replicas.collectives import AllGather
from keras_largeout.replicas.cross_replica import cross_replica_call
from keras_largeout.replicas.exchange_dtype import fetch_narrowed, send_narrowed


def fan_in_losses(weights, hidden, targets, loss, fused=None, trigger=None):
    """Return the loss of every token.

    Args:
        weights: `FanInWeights`.
        hidden: float32 or bfloat16 `[n, dim]`.
        targets: `LabelLists` of n tokens.
        loss: str, as in `ops.fan_in.fan_in_loss`.
        fused: `FanInOptimizer`, or None: the gradients are the model's optimizer's.
        trigger: a trained tensor `[0]`, with `fused`: it makes sure that a gradient is taken.

    Returns:
        float32 `[n]`.
    """
    joint = FanInLoss(weights, loss, fused)

    def losses(hidden, targets):
        return (
            joint.per_replica(hidden, targets)
            if fused is None
            else joint.cross_replica(hidden, targets, trigger)
        )

    hosts = weights.kernel.hosts
    if hosts.is_alone:
        return losses(hidden, targets)
    # Every host computes with its classes for the tokens of all, whose losses it then knows.
    route = AllGather(hosts, hidden)
    of_all = losses(route.forward(hidden), _lists_of_all(hosts, route, targets))
    # A token's gradient goes back to all hosts, from the one that asked.
    value = tf.stop_gradient(of_all)
    return route.local(value) + tf.reduce_sum(route.reverse(of_all - value), axis=0)


class FanInLoss:
    """Losses over the parts of `FanInWeights`, on one device or several."""

    def __init__(self, weights, loss, fused=None):
        self.weights, self.loss, self.fused = weights, loss, fused
        self.parts, self.traveling = weights.parts(), weights.kernel.exchange_dtype

    def send(self, hidden):
        """Return the hidden vectors as each part gets them."""
        return [send_narrowed(hidden, part.kernel, self.traveling) for part in self.parts]

    def forward(self, vectors, targets):
        """Return the losses `[n]`, and for each part the `FanInForward` that its backward pass needs.

        Args:
            vectors: for each part its hidden vectors: see `send`.
        """
        found = []
        for part, hidden in zip(self.parts, vectors):
            with part.on_its_device():
                found.append(fan_in_forward(hidden, *self._arguments(part, targets), **self._options(part)))
        losses, lse, mass = self._together([(f.loss, f.lse, f.mass) for f in found])
        hosts = self.weights.kernel.hosts
        if not hosts.is_alone:
            losses, lse, mass = self._together(_of_all_hosts(hosts, losses, lse, mass))
        return losses, [f._replace(lse=lse, mass=mass) for f in found]

    def _together(self, parts):
        """Return loss, logsumexp and mass of tokens over several parts of the classes, of those of each
        part.
        """
        if len(parts) == 1:
            return parts[0]
        losses, lses, masses = zip(*parts)
        if self.loss != "softmax":
            return tf.add_n(losses), lses[0], masses[0]
        lse = tf.reduce_logsumexp(tf.stack(lses), axis=0)
        losses = [loss + mass * (lse - own) for loss, own, mass in parts]
        return tf.add_n(losses), lse, tf.add_n(masses)

    def backward(self, vectors, targets, found, upstream):
        """Return the gradient of the hidden vectors, after the step of every part."""
        of_hidden = [
            fetch_narrowed(
                self._backward(i, vectors, targets, found, upstream)[0], part.kernel, self.traveling
            )
            for i, part in enumerate(self.parts)
        ]
        self.fused.count()
        if len(of_hidden) > 1:
            of_hidden = [tf.add_n([tf.cast(d_hidden, tf.float32) for d_hidden in of_hidden])]
        return tf.cast(of_hidden[0], vectors[0].dtype)

    def _backward(self, index, vectors, targets, found, upstream):
        """Return one part of the gradient of the hidden vectors, and those of its kernel and bias, or
        None.
        """
        part = self.parts[index]
        with part.on_its_device():
            return fan_in_backward(
                vectors[index],
                *self._arguments(part, targets),
                forward=found[index],
                grad_loss=upstream,
                update=None if self.fused is None else self.fused.update(self.weights, index),
                weight_gradient=self.weights.trainable,
                **self._options(part),
            )

    def _arguments(self, part, targets):
        return targets.labels, targets.row_splits, *part.operands, targets.weights

    def _options(self, part):
        return {
            "loss": self.loss,
            "first_class": part.first_class,
            "num_classes": self.weights.kernel.shape[0],
        }

    def per_replica(self, hidden, targets):
        """Return each replica for itself; the gradients of the weights go to the model's optimizer."""
        # The parts' gradients are added up where this is differentiated: in float32.
        whole = hidden if len(self.parts) == 1 else tf.cast(hidden, tf.float32)
        wholes = self.send(whole)
        vectors = wholes if whole.dtype == hidden.dtype else [hidden] * len(self.parts)
        losses, found = self.forward(vectors, targets)
        gradients = [
            self._part_of_gradient(i, vectors, targets, found, whole) for i, whole in enumerate(wholes)
        ]
        return tf.add_n([losses, *gradients])

    def _part_of_gradient(self, index, vectors, targets, found, whole):
        """Return zeros with the gradient of one part. (One op takes the handles of one device alone.)"""
        part = self.parts[index]

        def gradient(upstream):
            d_hidden, *of_weights = self._backward(index, vectors, targets, found, upstream)
            return [tf.cast(d_hidden, whole.dtype), *(d for d in of_weights if d is not None)]

        trained = [part.kernel, part.bias] if self.weights.trainable else []
        with part.on_its_device():
            nothing = tf.zeros(tf.shape(vectors[index])[:1])
            return with_gradient(gradient, nothing, [whole], [v for v in trained if v is not None])

    def cross_replica(self, hidden, targets, trigger):
        """Return one step of each part with what all replicas bring."""

        def forward(*replicas):
            whole, lists = _concat_replicas(replicas)
            vectors = self.send(whole)
            losses, found = self.forward(vectors, lists)
            sizes = [tf.shape(inputs[0])[0] for inputs in replicas]
            return _split(losses, sizes), (vectors, lists, found, sizes)

        def backward(saved, gradients):
            vectors, lists, found, sizes = saved
            d_hidden = self.backward(vectors, lists, found, tf.concat(gradients, axis=0))
            others = [None] * (len(inputs) - 2)
            return [(piece, *others, tf.zeros([0])) for piece in _split(d_hidden, sizes)]

        weights = [] if targets.weights is None else [targets.weights]
        inputs = [hidden, targets.labels, targets.row_splits, *weights, tf.convert_to_tensor(trigger)]
        return cross_replica_call(forward, backward, *inputs)


def _of_all_hosts(hosts, losses, lse, mass):
    """Return these of each host, all for the same tokens; `lse` and `mass` may be empty."""
    numbers = [losses] if lse.shape == [0] else [losses, lse, mass]
    route = AllGather(hosts, losses)
    came = tf.reshape(route.forward(tf.stack(numbers, axis=1)), [hosts.count, -1, len(numbers)])
    of_hosts = [tf.unstack(of_host, len(numbers), axis=1) for of_host in tf.unstack(came)]
    return [(*of_host, lse, mass)[:3] for of_host in of_hosts]


def _lists_of_all(hosts, route, targets):
    """Return the `LabelLists` of the tokens of all hosts; `route` is that of the tokens."""
    of_labels = AllGather(hosts, targets.labels)
    lengths = route.forward(targets.row_splits[1:] - targets.row_splits[:-1])
    return LabelLists(
        of_labels.forward(targets.labels),
        tf.concat([[0], tf.cumsum(lengths)], axis=0),
        None if targets.weights is None else of_labels.forward(targets.weights),
    )


def _concat_replicas(replicas):
    """Return hidden vectors and `LabelLists` of all replicas, one after the other."""
    hidden, *of_labels = zip(*(inputs[:-1] for inputs in replicas))
    if len(replicas) == 1:
        return hidden[0], LabelLists(*(of_one for (of_one,) in of_labels))
    with on_the_host():
        labels, splits, *weights = of_labels
        lengths = tf.concat([s[1:] - s[:-1] for s in splits], axis=0)
        splits = tf.concat([[0], tf.cumsum(lengths)], axis=0)
        labels, *weights = (tf.concat(parts, axis=0) for parts in (labels, *weights))
    return tf.concat(hidden, axis=0), LabelLists(labels, splits, *weights)


def _split(values, sizes):
    return tf.split(values, sizes) if len(sizes) > 1 else [values]
