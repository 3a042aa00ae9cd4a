"""What a `keras.Model` does otherwise under a strategy, above all a `ParameterServerStrategy`."""

import collections
import contextlib
import functools
import inspect
import os

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from keras_largeout.distribute.cluster.dispatch import dispatcher_of
from keras_largeout.distribute.cluster.steps import COMPOSITE, Predictions, Steps, take, tensors
from keras_largeout.distribute.cluster.worker_data import WorkerData, worker_data_of


class ClusterTraining:
    """First base of a Keras model; elsewhere it changes nothing.

    Keras's own `fit` and `evaluate` run: their loops, data adapters, callbacks and progress bar. What they
    call for a step (`make_train_function`) hands the step to a worker instead, and what they call for the
    metrics of an epoch waits until all steps are done.
    """

    active_steps = None  # the `Steps` that may have steps under way

    @property
    def _cluster_strategy(self):
        strategy = self._distribute_strategy
        return strategy if isinstance(strategy, tf.distribute.ParameterServerStrategy) else None

    @property
    def distribute_strategy(self):
        """The strategy in whose scope the model was made."""
        strategy = super().distribute_strategy
        cluster = isinstance(strategy, tf.distribute.ParameterServerStrategy)
        return _FedByChief(strategy) if cluster else strategy

    # The loops.

    def fit(self, *args, **kwargs):
        call = _bound(keras.Model.fit, self, args, kwargs)
        call["x"], call["steps_per_epoch"] = self._by_workers(call, "x", "steps_per_epoch", anew=False)
        call["validation_data"], call["validation_steps"] = self._by_workers(
            call, "validation_data", "validation_steps", anew=True
        )
        with self._cluster_at_work():
            return super().fit(**call)

    def evaluate(self, *args, **kwargs):
        call = _bound(keras.Model.evaluate, self, args, kwargs)
        call["x"], call["steps"] = self._by_workers(call, "x", "steps", anew=True)
        with self._cluster_at_work():
            return super().evaluate(**call)

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        if self._cluster_strategy is None:
            return super().predict(x, batch_size, verbose, steps, callbacks)
        batches = TFEpochIterator(
            x=x, batch_size=batch_size, steps_per_epoch=steps, distribute_strategy=self.distribute_strategy
        )
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = keras.callbacks.CallbackList(
                callbacks,
                add_progbar=verbose != 0,
                verbose=verbose,
                epochs=1,
                steps=batches.num_batches,
                model=self,
            )
        with self._cluster_at_work():
            return self._predict(batches, callbacks)

    def _predict(self, batches, callbacks):
        dispatcher = dispatcher_of(self._cluster_strategy)
        self.make_predict_function()
        self.stop_predicting = False
        outputs, waiting = [], collections.deque()
        callbacks.on_predict_begin()

        def answered(count):
            while len(waiting) > count:
                step, answer = waiting.popleft()
                outputs.append(dispatcher.result(answer))
                callbacks.on_predict_batch_end(step, {"outputs": outputs[-1]})

        with batches.catch_stop_iteration():
            for step, _, iterator in batches:
                (batch,) = take(iterator, 1)
                callbacks.on_predict_batch_begin(step)
                waiting.append((step, self.predict_function.submit(batch)))
                answered(dispatcher.limit)
                if self.stop_predicting:
                    break
        answered(0)
        callbacks.on_predict_end()
        return keras.tree.map_structure_up_to(outputs[0], lambda *parts: _joined(parts), *outputs)

    # What the loops call.

    def make_train_function(self, force=False):
        if self._cluster_strategy is None:
            return super().make_train_function(force)
        self._check_runs_graphs()
        if self.train_function is None or force:
            self.train_function = Steps(self, self.train_step, self._cluster_strategy, trains=True)
        return self.train_function

    def make_test_function(self, force=False):
        if self._cluster_strategy is None:
            return super().make_test_function(force)
        self._check_runs_graphs()
        if self.test_function is None or force:
            self.test_function = Steps(self, self.test_step, self._cluster_strategy, trains=False)
        return self.test_function

    def make_predict_function(self, force=False):
        if self._cluster_strategy is None:
            return super().make_predict_function(force)
        if self.predict_function is None or force:
            self.predict_function = Predictions(self, self._cluster_strategy)
        return self.predict_function

    def reset_metrics(self):
        super().reset_metrics()
        for steps in (self.train_function, self.test_function):
            if isinstance(steps, Steps):
                steps.totals.clear()

    def _get_metrics_result_or_logs(self, logs):
        if self.active_steps is not None:
            steps, self.active_steps = self.active_steps, None
            logs = steps.finish()
        return super()._get_metrics_result_or_logs(logs)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        strategy = self._distribute_strategy
        if strategy is not None and iterator is not None:
            for _, _, batches in iterator:
                data_batch = next(batches)
                break
            data = worker_data_of(data_batch)
            if data is not None:
                data_batch = data[0].symbolic_batch()
            iterator = None
            parts = [strategy.experimental_local_results(part)[0] for part in keras.tree.flatten(data_batch)]
            if any(isinstance(part, COMPOSITE) for part in parts):
                self._build_by_tracing(strategy, data_batch)
                return
            data_batch = keras.tree.pack_sequence_as(data_batch, parts)
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)

    def _build_by_tracing(self, strategy, batch):
        """Makes what is not made yet: Keras's symbolic batches cannot be ragged or sparse."""
        with strategy.scope():
            if self._cluster_strategy is not None:
                tf.function(self.test_step, autograph=False).get_concrete_function(tensors(batch))
            else:
                step = tf.function(lambda batch: strategy.run(self.test_step, (batch,)), autograph=False)
                step.get_concrete_function(batch)
            if self.optimizer is not None and not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)

    # Saving: between steps, and whole files only.

    def save(self, filepath, overwrite=True, zipped=None, **kwargs):
        self.wait_for_steps()
        with _whole_file(filepath, overwrite) as path:
            super().save(path, overwrite=overwrite, zipped=zipped, **kwargs)

    def save_weights(self, filepath, overwrite=True, **kwargs):
        self.wait_for_steps()
        with _whole_file(filepath, overwrite) as path:
            super().save_weights(path, overwrite=overwrite, **kwargs)

    def wait_for_steps(self):
        """Waits until no worker has a step under way: before the weights are looked at, or changed."""
        if self.active_steps is not None and self._cluster_strategy is not None:
            dispatcher_of(self._cluster_strategy).join()

    # Help.

    def _check_runs_graphs(self):
        if self.run_eagerly:
            raise ValueError(
                "`run_eagerly` must be False under a ParameterServerStrategy: workers run graphs. "
                f"Received: run_eagerly={self.run_eagerly}"
            )

    def _by_workers(self, call, data, steps, anew):
        """The arguments `data` and `steps` of a call, where data is a function as what Keras can count."""
        function, count = call.get(data), call.get(steps)
        if not (inspect.isroutine(function) or isinstance(function, functools.partial)):
            return function, count
        if self._cluster_strategy is None:
            raise ValueError(
                f"`{data}` may be a dataset function under a ParameterServerStrategy only. "
                f"Received: {data}={function!r}"
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
    def _cluster_at_work(self):
        """Leaves no step under way behind after an error. (A process that is to end does not wait.)"""
        try:
            yield
        except BaseException as error:
            if self._cluster_strategy is not None:
                self.active_steps = None
                if isinstance(error, Exception):
                    dispatcher_of(self._cluster_strategy).forget()
            raise


class _FedByChief:
    """A strategy whose batches stay where they are made: the chief deals them out, one to a step."""

    def __init__(self, strategy):
        self._strategy = strategy

    def experimental_distribute_dataset(self, dataset, options=None):
        return dataset

    def __getattr__(self, name):
        return getattr(self._strategy, name)


def _bound(method, model, args, kwargs):
    """The arguments of a call by name."""
    bound = inspect.signature(method).bind(model, *args, **kwargs)
    call = dict(bound.arguments)
    call.pop("self")
    return {**call.pop("kwargs", {}), **call}


def _joined(parts):
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(axis=0, sp_inputs=parts)
    if isinstance(parts[0], tf.RaggedTensor):
        return tf.concat(parts, axis=0)
    if any(part.shape[1:] != parts[0].shape[1:] for part in parts):
        return tf.concat([tf.RaggedTensor.from_tensor(part) for part in parts], axis=0)
    return tf.concat(parts, axis=0).numpy()


@contextlib.contextmanager
def _whole_file(filepath, overwrite):
    """A path to write at: it becomes `filepath` when all is written, so that no half of it is ever there."""
    path = os.fspath(filepath)
    whole = path.endswith((".keras", ".weights.h5", ".h5")) and "://" not in path
    if not whole or (os.path.exists(path) and not overwrite) or os.path.isdir(path):
        yield filepath
        return
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{os.getpid()}-{name}")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(beside)
