"""The functions by which Keras's loops run a step: here, on whichever worker is free."""

import collections
import functools
import itertools
from concurrent.futures import Future

import keras
import tensorflow as tf

from keras_largeout._keras import all_layers, optimizers_inside, step_counter
from keras_largeout.distribute.cluster.dispatch import dispatcher_of
from keras_largeout.distribute.cluster.local_state import LocalState, nothing_added
from keras_largeout.distribute.cluster.packed import Packed, one_of, stack
from keras_largeout.distribute.cluster.totals import Totals
from keras_largeout.distribute.cluster.worker_data import worker_data_of
from keras_largeout.replicas._tensorflow import concrete_function

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
        self._of_batches = tf.function(self._run_each, autograph=False, reduce_retracing=True)
        self._of = functools.cache(self._function)
        self._reading = {}  # batches of a call -> the iterator they are read from, and the function

    def __call__(self, iterator):
        first = tensors(next(iterator))
        self._model.active_steps = self
        function, source = self._call(first, iterator)
        self._dispatcher.submit(function, (source,), self._receive)
        if not isinstance(iterator, tf.data.Iterator):  # train_on_batch, test_on_batch
            return self.finish() or self.totals.running()
        return self.totals.running()

    def _call(self, first, iterator):
        """Return the function of the next call, whose first element is `first`, and its argument."""
        data = worker_data_of(first)
        if data is not None:
            worker_data, call = data
            count = min(self._per_call, worker_data.steps - call * self._per_call)
            iterator = worker_data.iterator(call)
            return self._of_reading(count, iterator), iterator
        batches = [first, *take(iterator, self._per_call - 1)]
        if len(batches) > 1 and (batch_stack := stack(batches)) is not None:
            return self._of(one_of, len(batches)), batch_stack
        return self._of_batches, batches

    def _of_reading(self, count, iterator):
        """Return the function of `count` batches that a worker reads itself: traced, then looked up once."""
        function = self._of(_next_of, count)
        known, found = self._reading.get(count, (None, None))
        if known is not iterator:
            found = function
        elif found is function:
            with self._strategy.scope():
                found = concrete_function(function, iterator)
        self._reading[count] = iterator, found
        return found

    def _function(self, batch_of, count):
        """Return the function of a source of `count` batches, of which `batch_of(source, i)` is one."""
        return tf.function(
            lambda source: self._run(lambda i: batch_of(source, i), count),
            autograph=False,
            reduce_retracing=True,
        )

    def _run(self, batch_at, count):
        """Return the steps of a call, in the graph of a worker, which has two of them: the first, and a
        loop's.
        """
        state, logs = self._one(batch_at(0), nothing_added(self.totals.variables))

        def one_more(i, state, logs):
            return i + 1, *self._one(batch_at(i), state)

        if count > 1:
            _, state, logs = tf.while_loop(
                lambda i, *_: i < count, one_more, (tf.constant(1), state, logs), parallel_iterations=1
            )
        return self._answer.pack((state, logs))

    def _run_each(self, batches):
        """Take steps on batches of different shapes: the graph holds every step."""
        state = nothing_added(self.totals.variables)
        for batch in batches:
            state, logs = self._one(batch, state)
        return self._answer.pack((state, logs))

    def _one(self, batch, state):
        """Return one step: the state after it, and what it logs."""

        def in_replica(batch, state):
            # Inside the replica: it is traced in its own thread, and Keras's scopes are thread-local.
            with LocalState(self.totals.variables, state, self._counters) as local:
                logs = self._step(batch)
            return local.results(), keras.tree.map_structure(tf.convert_to_tensor, logs)

        return self._strategy.run(in_replica, args=(batch, state))

    def _receive(self, answer):
        self.totals.add(*self._answer.unpack(answer))

    def finish(self):
        """Waits for all steps, and gives the metrics of the model their state; the last step's logs."""
        self._dispatcher.join()
        return self.totals.write()


def _next_of(iterator, index):
    return next(iterator)


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
        """Return a future of the outputs for one batch."""
        return self._dispatcher.submit(self._function, (batch,))

    def __call__(self, batches):
        """Return the outputs of one batch, of `predict_on_batch` or of `PrefetchedPredictions`."""
        (batch,) = batches
        answer = batch if isinstance(batch, Future) else self.submit(tensors(batch))
        return self._dispatcher.result(answer)


class PrefetchedPredictions:
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
    """Return up to `count` next batches as a list, which is shorter where there are no more."""
    return [tensors(batch) for batch in itertools.islice(iterator, count)]


def tensors(batch):
    """Return a batch as workers take it: tensors, and None where Keras says that there is nothing."""

    def convert(value):
        if isinstance(value, (tf.Tensor, *COMPOSITE)):
            return value
        if value is None or isinstance(value, tf.experimental.Optional):
            return None
        return tf.convert_to_tensor(value)

    return keras.tree.map_structure(convert, batch)


def _all_counters(model):
    """Return the counters of the model's optimizer, and of optimizers that layers and their tables have."""
    found = []
    for layer in all_layers(model):
        optimizers = [getattr(layer, "optimizer", None), *getattr(layer, "optimizers", ())]
        found += [v for optimizer in optimizers for v in counters(optimizer)]
    return list({id(v): v for v in found}.values())


def counters(optimizer):
    """Return the variables in which an optimizer, and those inside it, count their steps."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return []
    found = map(step_counter, optimizers_inside(optimizer))
    return list({id(v): v for v in found}.values())
