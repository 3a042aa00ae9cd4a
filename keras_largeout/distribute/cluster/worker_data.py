"""Data that each worker reads itself: a dataset function instead of a dataset."""

import itertools
import weakref

import keras
import tensorflow as tf

_KEY = "keras_largeout_worker_data"
_numbers = itertools.count()
_known = weakref.WeakValueDictionary()  # number -> WorkerData


class WorkerData:
    """The batches of a dataset function, read by each worker for its own steps.

    Keras's loop knows from the size of `calls` how many batches an epoch has. An element stands for all the
    batches of a call, the next ones of whichever worker runs it; so one is read per call, and an epoch does
    not come to the last of them.

    Args:
        function: from a `tf.distribute.InputContext` to a `tf.data.Dataset` of batches.
        coordinator: `tf.distribute.coordinator.ClusterCoordinator`.
        workers: int.
        steps: int, batches of an epoch.
        again: bool, whether every epoch begins with the first batches (evaluation), or goes on (training).
    """

    def __init__(self, function, coordinator, workers, steps, anew):
        self.anew, self.steps, self._iterator = anew, steps, None
        self.number = next(_numbers)
        _known[self.number] = self

        def of_worker():
            # A tensor: every worker runs the same traced function.
            index = tf.distribute.coordinator.experimental_get_current_worker_index()
            return _dataset(function, workers, index).repeat()

        graph = _traced(of_worker, function)
        self._datasets = coordinator.create_per_worker_dataset(graph)
        self.element_spec = graph.structured_outputs.element_spec
        self.calls = tf.data.Dataset.range(steps).map(lambda i: {_KEY: tf.stack([self.number, i])})

    def iterator(self, call):
        """Return the iterators of all workers for a call, the first of an epoch being call 0."""
        if self._iterator is None or (self.anew and call == 0):
            self._iterator = iter(self._datasets)
        return self._iterator

    def symbolic_batch(self):
        """Return what a batch looks like, for Keras to build a model with."""
        return tf.nest.map_structure(
            lambda spec: keras.KerasTensor(tuple(spec.shape), spec.dtype.name), self.element_spec
        )


def worker_data_of(batch):
    """Return `(WorkerData, index of the call)` of an element of `WorkerData.calls`; None for other
    batches.
    """
    if not (isinstance(batch, dict) and _KEY in batch):
        return None
    number, call = batch[_KEY].numpy().tolist()
    return _known[number], call


def _traced(of_worker, function):
    """Return the graph that every worker runs: nothing in it may be in the memory of this process."""

    def refuse(*_, **__):
        raise ValueError(f"A dataset function must not make variables. Received: {function}, which makes one")

    with tf.variable_creator_scope(refuse):
        graph = tf.function(of_worker).get_concrete_function()
    if any(tensor.dtype == tf.variant for tensor in graph.inputs):
        raise ValueError(
            "A dataset function must make its datasets itself, for each worker calls it. "
            f"Received: {function}, which uses a dataset that was made outside of it"
        )
    return graph


def _dataset(function, workers, index):
    dataset = function(tf.distribute.InputContext(workers, index, num_replicas_in_sync=1))
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(
            f"A dataset function must return a tf.data.Dataset of batches. Received: {type(dataset).__name__}"
        )
    return dataset


class ChiefFedDataset:
    """A strategy whose batches stay where they are made: the chief deals them out, one per step.

    Args:
        strategy: `tf.distribute.ParameterServerStrategy`.
        ahead: None, or a function of a dataset that returns what is iterated over in its place.
    """

    def __init__(self, strategy, ahead=None):
        self._strategy = strategy
        self._ahead = ahead

    def experimental_distribute_dataset(self, dataset, options=None):
        return dataset if self._ahead is None else self._ahead(dataset)

    def __getattr__(self, name):
        return getattr(self._strategy, name)
