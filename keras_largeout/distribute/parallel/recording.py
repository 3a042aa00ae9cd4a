"""Values that were computed on a device, and their gradients, which are computed there too.

`with tf.device(...)` around a call puts the forward pass on a device, and nothing else: a tape computes
gradients on whatever device is the current one when it is asked.
"""

import tensorflow as tf

from keras_largeout.distribute.parallel.recompute import Recompute, check_same
from keras_largeout.ops._gradients import with_gradient, with_gradients
from keras_largeout.replicas.differentiable import differentiable


class Recorded:
    """A computation on a device that can be differentiated there.

    Args:
        device: name of a device.
        compute: function of tensors that stand for the inputs; returns a list of floating tensors.
        inputs: list of floating tensors.
        variables: function that lists the `tf.Variable`s that are used. It is asked before and after the
            computation, which may make some.
        remat: None, or list of the layers that are called: computed again for the gradients, so that no value
            need be kept.

    Attributes:
        values: what `compute` returned.
        variables: list of those that are used.

    Raises:
        ValueError: one of the layers in `remat` cannot compute the same again.
    """

    def __init__(self, device, compute, inputs, variables, remat=None):
        self._device, self._compute = device, compute
        with tf.device(device):
            self._again = None if remat is None else Recompute(remat)
            self._inputs = [tf.identity(value) for value in inputs]
            self.values, self._differentiate = differentiable(compute, self._inputs, variables)
        self.variables = list(variables())

    def gradients(self, upstream):
        """Return the gradients of the inputs, then of the variables: a list, with None where there is none.

        Args:
            upstream: for each of `values` its gradient, or None for none. (All None: nothing is computed.)
        """
        asked = [i for i, gradient in enumerate(upstream) if gradient is not None]
        if not asked:
            return [None] * (len(self._inputs) + len(self.variables))
        with tf.device(self._device):
            upstream = [tf.convert_to_tensor(upstream[i]) for i in asked]
            if self._again is None:
                return self._differentiate([self.values[i] for i in asked], upstream)
            with tf.control_dependencies(upstream), self._again.computing():  # not before they are there
                again = [tf.identity(value) for value in self._inputs]
                values, differentiate = differentiable(self._compute, again, lambda: self.variables)
                check_same(self.values, values)
                found = differentiate([values[i] for i in asked], upstream)
            # No weight is updated before all that was read again is used. Automatic control dependencies say
            # so too, and TensorFlow's optimizer of graphs removes some of them.
            used = [getattr(gradient, "values", gradient) for gradient in found if gradient is not None]
            with tf.control_dependencies([*values, *used]):
                return [_identity(gradient) for gradient in found]


def _identity(gradient):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.identity(gradient.values), gradient.indices, gradient.dense_shape)
    return None if gradient is None else tf.identity(gradient)


def compute_there(device, compute, inputs, variables, remat=None):
    """Return `compute(*inputs)`, differentiable tensors: see `Recorded`."""
    recorded = Recorded(device, compute, inputs, variables, remat)

    def gradients(*upstream):
        return recorded.gradients(upstream)

    return with_gradients_there(device, gradients, recorded.values, inputs, recorded.variables)


def with_gradients_there(device, gradient, values, inputs, variables):
    """Return `with_gradients` on a device, also of variables that are on others."""
    if not values:
        return []
    by_device, found = {}, {}
    for variable in variables:
        by_device.setdefault(variable.device, []).append(variable)
    tickets = []  # zeros whose gradients bring those of the variables: an op takes handles of one device

    def of_group(group):
        return lambda _: [found.get(id(variable)) for variable in group]

    for there, group in by_device.items():
        with tf.device(there):
            tickets.append(with_gradient(of_group(group), tf.zeros([]), [], group))

    def of_inputs_and_tickets(*upstream):
        gradients = list(gradient(*upstream))
        found.update(zip(map(id, variables), gradients[len(inputs) :]))
        return [*gradients[: len(inputs)], *(tf.zeros([]) for _ in tickets)]

    with tf.device(device):
        return with_gradients(of_inputs_and_tickets, values, [*inputs, *tickets])


def sum_there(device, gradients):
    """Return the sum of gradients of one tensor or variable, computed on a device.

    Args:
        gradients: list of tensors, `tf.IndexedSlices` and None.

    Returns:
        None where all are None; an `IndexedSlices` where all others are.
    """
    given = [gradient for gradient in gradients if gradient is not None]
    if len(given) < 2:
        return given[0] if given else None
    with tf.device(device):
        if all(isinstance(gradient, tf.IndexedSlices) for gradient in given):
            return tf.IndexedSlices(
                tf.concat([gradient.values for gradient in given], axis=0),
                tf.concat([gradient.indices for gradient in given], axis=0),
                given[0].dense_shape,
            )
        return tf.add_n([tf.convert_to_tensor(gradient) for gradient in given])
