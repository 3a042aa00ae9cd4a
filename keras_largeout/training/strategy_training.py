"""`StrategyTraining`: `compile`, `fit`, `evaluate` and `predict` of a `kl.Model` under every strategy."""

import contextlib
import functools
import inspect
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_largeout._keras import all_layers, optimizers_inside
from keras_largeout.distribute.cluster.dispatch import dispatcher_of
from keras_largeout.distribute.cluster.errors import naming_lost_servers
from keras_largeout.distribute.cluster.steps import PrefetchedPredictions
from keras_largeout.distribute.cluster.worker_data import WorkerData
from keras_largeout.distribute.hosts.agreement import check_agreement
from keras_largeout.distribute.hosts.multi_worker import callbacks_here
from keras_largeout.distribute.parallel.on_device import device_of
from keras_largeout.distribute.parallel.sharded_slots import check_and_save_whole
from keras_largeout.distribute.parallel.slots_on_devices import update_beside
from keras_largeout.files.exit_signals import leaving_when_told
from keras_largeout.replicas.optimizer_check import can_train, check_compiled
from keras_largeout.training.saving import Saving
from keras_largeout.training.strategy_steps import StrategySteps


class StrategyTraining(Saving, StrategySteps):
    """A base that must precede `keras.Model`. Without a strategy it has hardly any effect.

    Keras's own `fit`, `evaluate` and `predict` run: their loops, data adapters, callbacks and progress bar.
    `StrategySteps` has the functions that they call.
    """

    # Compiling.

    def compile(self, *args: Any, **kwargs: Any) -> None:
        super().compile(*args, **kwargs)
        self._place_slots()
        if self._cluster_strategy is None:  # there the first step checks: this process may only evaluate
            check_compiled(all_layers(self), self.optimizer, self._replicas)
        self.check_losses()

    def _place_slots(self):
        """Make the optimizer run where `kl.distribute` placed the weights."""
        if self.optimizer is not None and any(map(device_of, all_layers(self))):
            update_beside(self.optimizer)
            check_and_save_whole(self.optimizer, self.trainable_variables)

    def may_use_xla(self):
        inside = optimizers_inside(getattr(self, "optimizer", None))  # a model may not be compiled
        rows = any(getattr(optimizer, "updates_rows", False) for optimizer in inside)
        return not (rows and any(isinstance(layer, keras.layers.Embedding) for layer in all_layers(self)))

    def check_losses(self):
        """Raises ValueError where the losses or metrics do not fit the model's outputs."""

    def compile_from_config(self, config):
        """Compile a loaded model. Keras skips models whose class overrides `compile`.

        The optimizer is checked in the first step: a model may also be loaded to predict.
        """
        if type(self).compile is not StrategyTraining.compile:
            super().compile_from_config(config)
            return
        super().compile(**keras.saving.deserialize_keras_object(config))
        self.says_steps = False  # Keras writes 1 into the config, whether anyone said it
        if self.optimizer is None or not self.built:
            return
        if can_train(all_layers(self), self.optimizer, self._replicas):
            self.optimizer.build(self.trainable_variables)

    def check_callbacks(self, callbacks):
        """Warns of callbacks of `fit` that do not do to this model what they say."""

    # The loops.

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        call = _bound(keras.Model.fit, self, args, kwargs)
        _check_strings(call)
        self.check_callbacks(call.get("callbacks"))
        if not self._hosts.is_alone:
            loops = {
                name: call.get(name) for name in ("batch_size", "epochs", "initial_epoch", "steps_per_epoch")
            }
            given = getattr(call.get("callbacks"), "callbacks", call.get("callbacks"))
            check_agreement(self._hosts, self, keras.tree.flatten(given), loops)
            call["callbacks"] = callbacks_here(self._hosts, call.get("callbacks"))
            call["verbose"] = self._verbose(call.get("verbose", "auto"))
        call["x"], call["steps_per_epoch"] = self._by_workers(call, "x", "steps_per_epoch", anew=False)
        call["validation_data"], call["validation_steps"] = self._by_workers(
            call, "validation_data", "validation_steps", anew=True
        )
        with self._running_on_cluster():
            return super().fit(**call)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        call = _bound(keras.Model.evaluate, self, args, kwargs)
        _check_strings(call)
        call["x"], call["steps"] = self._by_workers(call, "x", "steps", anew=True)
        call["verbose"] = self._verbose(call.get("verbose", "auto"))
        with self._running_on_cluster():
            return super().evaluate(**call)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        steps: int | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
    ) -> Any:
        if self._cluster_strategy is None:
            self._predicts = True
            try:
                with self._running_on_cluster():
                    return super().predict(x, batch_size, self._verbose(verbose), steps, callbacks)
            finally:
                self._predicts = False
        # Several batches are in flight anyway: several per call would gain nothing.
        per_call, self.steps_per_execution = self.steps_per_execution, 1
        limit = dispatcher_of(self._cluster_strategy).limit
        self._ahead_of_predict = functools.partial(
            PrefetchedPredictions, submit=self._submit_prediction, steps=steps, limit=limit
        )
        try:
            with self._running_on_cluster():
                return super().predict(x, batch_size, verbose, steps, callbacks)
        finally:
            self._ahead_of_predict, self.steps_per_execution = None, per_call

    def _verbose(self, verbose):
        """Return the argument `verbose`: of synchronous hosts, only the first one shows progress."""
        return verbose if self._hosts.is_first else 0

    def _submit_prediction(self, batch):
        self.make_predict_function()
        return self.predict_function.submit(batch)

    # Help.

    def _by_workers(self, call, data, steps, anew):
        """Return the arguments `data` and `steps`. A dataset function becomes a dataset that Keras can
        count.
        """
        function, count = call.get(data), call.get(steps)
        if not (inspect.isroutine(function) or isinstance(function, functools.partial)):
            return function, count
        if not self._hosts.is_alone:
            return self.distribute_strategy.distribute_datasets_from_function(function), count
        if self._cluster_strategy is None:
            raise ValueError(
                f"`{data}` may be a dataset function on several machines only. Received: {data}={function!r}"
            )
        if not count:
            raise ValueError(
                f"`{steps}` must say how many batches to take of a dataset function. "
                f"Received: {steps}={count}"
            )
        dispatcher = dispatcher_of(self._cluster_strategy)
        # Kept: the dataset that Keras gets refers to it by number.
        self._worker_data = [d for d in getattr(self, "_worker_data", []) if d.anew != anew] + [
            WorkerData(function, dispatcher.coordinator, dispatcher.workers, count, anew)
        ]
        return self._worker_data[-1].calls, None

    @contextlib.contextmanager
    def _running_on_cluster(self):
        """After an error no step stays in flight. (A process that is about to exit does not wait.)"""
        if self._strategy is not None:
            self.check_hooks()
        try:
            cluster = self._cluster_strategy
            lost = self._hosts.naming_lost() if cluster is None else naming_lost_servers(cluster)
            with leaving_when_told(), lost:
                yield
        except BaseException as error:
            if self._cluster_strategy is not None:
                self.active_steps = None
                if isinstance(error, Exception):
                    dispatcher_of(self._cluster_strategy).forget()
            raise


def _check_strings(call):
    """Raise ValueError where the data are NumPy arrays of strings, which Keras does not take."""
    for name in ("x", "y", "validation_data"):
        for array in keras.tree.flatten(call.get(name)):
            if isinstance(array, np.ndarray) and array.dtype.kind in "SU":
                raise ValueError(
                    f"`{name}` must be a tensor where it has strings, such as tf.constant makes of an array; "
                    f"Keras takes no arrays of them. Received: {name} with an array of dtype {array.dtype}"
                )


def _bound(method, model, args, kwargs):
    """Return the arguments of a call by name."""
    bound = inspect.signature(method).bind(model, *args, **kwargs)
    call = dict(bound.arguments)
    call.pop("self")
    return {**call.pop("kwargs", {}), **call}
