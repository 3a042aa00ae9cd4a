"""Optimizers: those inside others, their counters, sums of gradients, and averages."""

import keras

from keras_largeout._keras.versions import KNOWN, _need


def optimizers_inside(optimizer):
    """Yield an optimizer and the ones that it wraps: of a loss scale, or of a `MultiOptimizer`.

    Nothing private: it is here because it is used with `optimizer_inside`.
    """
    yield optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    for other in getattr(optimizer, "optimizers", [] if inner is None else [inner]):
        yield from optimizers_inside(other)


def optimizer_inside(multi, variable):
    """Return the optimizer inside a `keras.optimizers.MultiOptimizer` that updates `variable`.

    Why: `MultiOptimizer.optimizers` is public, and which of them has a variable is not.

    Returns:
        A Keras optimizer; None where it cannot be known yet.
    """
    choice = _need(multi, "_optimizer_map")
    if multi.built:
        index = _need(multi, "_var_to_optimizer_idx").get(_need(multi, "_var_key")(variable))
        return None if index is None else multi.optimizers[index]
    # A function may make a new optimizer at every call, which must not happen in here.
    return choice[variable.path] if hasattr(choice, "default_optimizer") else None


def step_counter(optimizer):
    """Return the variable in which an optimizer counts the batches that it has seen.

    Nothing private: `optimizer.iterations` is this variable, but a quotient of it where gradients are
    accumulated. The counter is always the first of the optimizer's variables, also in every file that Keras
    has saved.

    Args:
        optimizer: `keras.optimizers.Optimizer`; one inside it has its own counter.
    """
    counter = optimizer.variables[0]
    if tuple(counter.shape) or "int" not in str(counter.dtype):
        raise ImportError(
            "keras_largeout needs the counter of steps as the first of an optimizer's variables, which Keras "
            f"{keras.__version__} has elsewhere. It is known to work with Keras {KNOWN}: install one of "
            f"these. Received: {counter}"
        )
    return counter


class GradientSums:
    """A base, before a Keras optimizer, that sums the gradients of the replicas by `sum_gradients`.

    Why: Keras sums them by a call that can be differentiated, and TensorFlow keeps what that needs for good:
    the graph of every training step, and with it the variables of the model.
    """

    def check_sums(self):
        """Raises ImportError where Keras has no such method: it would pass ours by silently."""
        _need(super(), "_all_reduce_sum_gradients")

    def sum_gradients(self, gradients):
        """Return the sums over the replicas of a list of tensors."""
        raise NotImplementedError

    def _all_reduce_sum_gradients(self, grads_and_vars):
        pairs = list(grads_and_vars)
        sums = iter(self.sum_gradients([gradient for gradient, _ in pairs if gradient is not None]))
        return [(None if gradient is None else next(sums), variable) for gradient, variable in pairs]


class AverageSwaps(keras.callbacks.SwapEMAWeights):
    """`keras.callbacks.SwapEMAWeights` that leaves the swap to optimizers which have `swap_averages`.

    Why: Keras swaps by arithmetic on whole variables, which finds no averages of tables, and gives the
    weights back with rounding errors. After `predict` it leaves the averages in the model.
    """

    def __init__(self, swap_on_epoch=False):
        super().__init__(swap_on_epoch)
        for name in ("_tf_swap_variables", "_tf_finalize_ema_values"):
            _need(keras.callbacks.SwapEMAWeights, name)

    def _tf_swap_variables(self, optimizer):
        if hasattr(optimizer, "swap_averages"):
            optimizer.swap_averages()
        else:
            super()._tf_swap_variables(optimizer)

    def _tf_finalize_ema_values(self, optimizer):
        if hasattr(optimizer, "swap_averages"):
            optimizer.keep_averages()
        else:
            super()._tf_finalize_ema_values(optimizer)

    def on_predict_end(self, logs=None):
        self.on_test_end(logs)
