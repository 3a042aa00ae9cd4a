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

    Keras's loop counts the batches of `calls`, a dataset of this many empty elements; each stands for the
    next batch of whichever worker runs the step.

    Args:
        function: from a `tf.distribute.InputContext` to a `tf.data.Dataset` of batches.
        coordinator: `tf.distribute.coordinator.ClusterCoordinator`.
        workers: int.
        steps: int, batches of an epoch.
        anew: bool, whether every epoch begins with the first batches (evaluation), or goes on (training).
    """

    def __init__(self, function, coordinator, workers, steps, anew):
        self.anew, self._iterator = anew, None
        self.number = next(_numbers)
        _known[self.number] = self

        def of_worker():
            # A tensor: every worker runs the same traced function.
            index = tf.distribute.coordinator.experimental_get_current_worker_index()
            return _dataset(function, workers, index).repeat()

        self._datasets = coordinator.create_per_worker_dataset(of_worker)
        self.element_spec = _dataset(function, workers, 0).element_spec
        self.calls = tf.data.Dataset.range(steps).map(lambda i: {_KEY: tf.stack([self.number, i])})

    def iterator(self, position):
        """The iterators of all workers for the step `position` of an epoch."""
        if self._iterator is None or (self.anew and position == 0):
            self._iterator = iter(self._datasets)
        return self._iterator

    def symbolic_batch(self):
        """What a batch looks like, for Keras to build a model with."""
        return tf.nest.map_structure(
            lambda spec: keras.KerasTensor(tuple(spec.shape), spec.dtype.name), self.element_spec
        )


def worker_data_of(batch):
    """`(WorkerData, position)` that an element of `WorkerData.calls` stands for; None for other batches."""
    if not (isinstance(batch, dict) and _KEY in batch):
        return None
    number, position = (int(n) for n in batch[_KEY])
    return _known[number], position


def _dataset(function, workers, index):
    dataset = function(tf.distribute.InputContext(workers, index, num_replicas_in_sync=1))
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(
            f"A dataset function must return a tf.data.Dataset of batches. Received: {type(dataset).__name__}"
        )
    return dataset
