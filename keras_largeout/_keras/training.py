"""Keras's loops: what a model was compiled with, the order of its batches, and moments of a loop."""

import keras

from keras_largeout._keras.versions import _need


def compiled_metrics(model):
    """Return what a compiled model was given as `metrics` and as `weighted_metrics`.

    Why: `model.metrics` are there after the first batch only, when it is too late for an early error.

    Returns:
        A list of two structures, as in `compile`; empty where it was given none.
    """
    given = _need(model, "_compile_metrics")
    if given is None:
        return []
    return [_need(given, "_user_metrics"), _need(given, "_user_weighted_metrics")]


def is_built(model):
    """Return whether a first batch would build nothing: no layer, metric, loss or optimizer."""
    compiled = (_need(model, name) for name in ("_compile_metrics", "_compile_loss"))
    parts = [*_need(model, "_flatten_layers")(), *compiled, model.optimizer]
    return all(part is None or part.built for part in parts)


def order_of_batches(epoch_iterator):
    """Return what the order of the batches of every epoch follows from; None where that cannot be known.

    Why: Keras's loops know their data, and no public method of a model or a callback does.

    Returns:
        str, equal in two processes whose epochs have the same order, or None.
    """
    adapters = "keras.src.trainers.data_adapters"
    adapter = _need(epoch_iterator, "data_adapter")
    if isinstance(adapter, _need(f"{adapters}.array_data_adapter", "ArrayDataAdapter")):
        if not _need(adapter, "_shuffle"):
            return "as given"
        # Each epoch, in any process, has the one permutation that follows from this seed.
        seed = _need("keras.src.utils.rng_utils", "get_random_seed")()
        return None if seed is None else f"seed {seed}"
    if isinstance(adapter, _need(f"{adapters}.py_dataset_adapter", "PyDatasetAdapter")):
        dataset = _need(adapter, "py_dataset")
        changes = type(dataset).on_epoch_end is not keras.utils.PyDataset.on_epoch_end
        return None if changes or _need(adapter, "shuffle") else "as given"
    return None


def yield_calls(epoch_iterator, calls):
    """Have the epochs of a loop be what `calls` makes of them.

    Why: the loop takes the same number of steps in each call, and how many is best is known in the loop.

    Args:
        epoch_iterator: what a loop of Keras iterates over, with one step per call.
        calls: function of an iterator of `(first step, last step, batches)` and of the steps of the epoch,
            an int or None. It returns another such iterator.
    """
    steps = _need(epoch_iterator, "_enumerate_iterator")
    epoch_iterator._enumerate_iterator = lambda: calls(steps(), epoch_iterator.num_batches)


class LoopHooks:
    """A base, before `keras.Model`, that names moments of Keras's loops of which no public method tells.

    Why: Keras's `fit` and `evaluate` build a model from its first batch, and read its metrics after the last
    one. Where the batches are on workers, both need another way, and everything else of the loops stays. And
    where there is a GPU, `compile` chooses XLA for each model whose layers allow it, whatever its optimizer.
    """

    def check_hooks(self):
        """Raises ImportError where Keras has no such methods: its loops would pass ours by silently."""
        for name in ("_maybe_symbolic_build", "_get_metrics_result_or_logs", "_resolve_auto_jit_compile"):
            _need(keras.Model, name)

    def may_use_xla(self):
        """Return whether `jit_compile="auto"` may mean True. Keras asks the layers, and no optimizer."""
        return True

    def begin_loop(self, iterator):
        """Called with the data that a loop will iterate over."""

    def before_first_step(self, iterator, data_batch, build):
        """Builds the model: by `build(iterator=.., data_batch=..)`, which is Keras's way, or otherwise."""
        build(iterator=iterator, data_batch=data_batch)

    def after_last_step(self, logs):
        """Return the logs of the last step, from what its function returned; metrics have their state
        after it.
        """
        return logs

    order_of_batches = None  # of the last loop: see the function

    def _resolve_auto_jit_compile(self):
        return self.may_use_xla() and super()._resolve_auto_jit_compile()

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if iterator is not None:
            self.order_of_batches = order_of_batches(iterator)
            self.begin_loop(iterator)
        self.before_first_step(iterator, data_batch, super()._maybe_symbolic_build)

    def _get_metrics_result_or_logs(self, logs):
        return super()._get_metrics_result_or_logs(self.after_last_step(logs))
