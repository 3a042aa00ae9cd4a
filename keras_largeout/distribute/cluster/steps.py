"""The functions by which Keras's loops run a step: here, on whichever worker is free."""

import collections
import functools
import itertools
from concurrent.futures import Future

import keras
import tensorflow as tf

from keras_largeout._keras import all_layers, step_counter
from keras_largeout.distribute.cluster.dispatch import dispatcher_of
from keras_largeout.distribute.cluster.local_state import LocalState
from keras_largeout.distribute.cluster.packed import Packed, stack, unstack
from keras_largeout.distribute.cluster.totals import Totals
from keras_largeout.distribute.cluster.worker_data import worker_data_of

COMPOSITE = (tf.RaggedTensor, tf.SparseTensor)


class Steps:
    """Takes the place of `model.train_function` or `model.test_function`.

    A call takes the next batches of an iterator, has them computed by some worker, and returns at once with
    the metrics of what has been answered so far. `finish` waits for all.

    Args:
        model: `keras.Model`, built.
        step: its `train_step` or `test_step`.
        strategy: its `tf.distribute.ParameterServerStrategy`.
        trains: bool.
    """

    def __init__(self, model, step, strategy, trains):
        self.totals = Totals(model)
        self._model, self._step, self._strategy = model, step, strategy
        self._per_call = model.steps_per_execution
        self._counters = _all_counters(model) if trains else []
        self._answer = Packed()
        self._dispatcher = dispatcher_of(strategy)
        self._of_batches = tf.function(self._run, autograph=False, reduce_retracing=True)
        self._of_stacks = functools.cache(self._of_stack)
        self._of_workers = tf.function(
            lambda iterator: self._run([next(iterator) for _ in range(self._per_call)]), autograph=False
        )

    def __call__(self, iterator):
        batches = take(iterator, self._per_call)
        self._model.active_steps = self
        data = worker_data_of(batches[0])
        if data is not None:
            worker_data, position = data
            self._dispatcher.submit(self._of_workers, (worker_data.iterator(position),), self._receive)
        elif len(batches) > 1 and (batch_stack := stack(batches)) is not None:
            self._dispatcher.submit(self._of_stacks(len(batches)), (batch_stack,), self._receive)
        else:
            self._dispatcher.submit(self._of_batches, (batches,), self._receive)
        if not isinstance(iterator, tf.data.Iterator):  # train_on_batch, test_on_batch
            return self.finish() or self.totals.running()
        return self.totals.running()

    def _of_stack(self, count):
        """The function of `count` batches in one structure."""
        return tf.function(
            lambda batches: self._run(unstack(batches, count)), autograph=False, reduce_retracing=True
        )

    def _run(self, batches):
        """The steps of a call, in the graph of a worker."""

        def in_replica(batches):
            # Inside the replica: it is traced in its own thread, and Keras's scopes are thread-local.
            with LocalState(self.totals.variables, self._counters) as state:
                for batch in batches:
                    logs = self._step(batch)
            return self._answer.pack((state.results(), logs))

        return self._strategy.run(in_replica, args=(batches,))

    def _receive(self, answer):
        self.totals.add(*self._answer.unpack(answer))

    def finish(self):
        """Waits for all steps, and gives the metrics of the model their state; the last step's logs."""
        self._dispatcher.join()
        return self.totals.write()


class Predictions:
    """Takes the place of `model.predict_function`."""

    def __init__(self, model, strategy):
        self._dispatcher = dispatcher_of(strategy)
        self._function = tf.function(
            lambda batch: strategy.run(model.predict_step, args=(batch,)),
            autograph=False,
            reduce_retracing=True,
        )

    def submit(self, batch):
        """A future of the outputs for one batch."""
        return self._dispatcher.submit(self._function, (batch,))

    def __call__(self, batches):
        """The outputs of one batch: of `predict_on_batch`, or one that `Ahead` has submitted."""
        (batch,) = batches
        answer = batch if isinstance(batch, Future) else self.submit(tensors(batch))
        return self._dispatcher.result(answer)


class Ahead:
    """The batches of a dataset as futures of their outputs, in order; several are under way at a time.

    Args:
        dataset: iterable of batches.
        submit: function from a batch to a future of its outputs.
        steps: int, how many batches are read; None for all.
        limit: int, how many batches are read ahead.
    """

    def __init__(self, dataset, submit, steps, limit):
        self._dataset, self._submit, self._steps, self._limit = dataset, submit, steps, limit

    def __iter__(self):
        waiting = collections.deque()
        for batch in itertools.islice(self._dataset, self._steps):
            waiting.append(self._submit(tensors(batch)))
            if len(waiting) > self._limit:
                yield waiting.popleft()
        yield from waiting


def take(iterator, count):
    """Up to `count` next batches as a list. Raises StopIteration where there is none."""
    batches = [tensors(next(iterator))]
    for _ in range(count - 1):
        try:
            batches.append(tensors(next(iterator)))
        except StopIteration:
            break
    return batches


def tensors(batch):
    """A batch as workers take it: tensors, and None where Keras says that there is nothing."""

    def convert(value):
        if isinstance(value, (tf.Tensor, *COMPOSITE)):
            return value
        if value is None or isinstance(value, tf.experimental.Optional):
            return None
        return tf.convert_to_tensor(value)

    return keras.tree.map_structure(convert, batch)


def _all_counters(model):
    """Those of the model's optimizer, and of optimizers that layers have of their own."""
    found = [v for layer in all_layers(model) for v in counters(getattr(layer, "optimizer", None))]
    return list({id(v): v for v in found}.values())


def counters(optimizer):
    """The variables in which an optimizer, and those inside it, count their steps."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return []
    inside = [*getattr(optimizer, "optimizers", ()), getattr(optimizer, "inner_optimizer", None)]
    found = [step_counter(optimizer), *(v for other in inside for v in counters(other))]
    return list({id(v): v for v in found}.values())
