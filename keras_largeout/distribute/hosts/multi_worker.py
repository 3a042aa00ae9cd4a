"""The strategy over several hosts and the callbacks of each host, as Keras's loops see them."""

import contextlib
import os
import tempfile

import keras
import tensorflow as tf

from keras_largeout.distribute.hosts.stopping import StopTogether
from keras_largeout.replicas.collectives import all_gather, all_reduce_sum, barrier
from keras_largeout.replicas.host_fed import HostFed
from keras_largeout.replicas.hosts import hosts_of

#: They write files or send messages, and do nothing that hosts do together: the first host's alone stay. One
#: that reads tables, and writes elsewhere on the other hosts, has a true attribute `on_every_host`.
_OF_FIRST_HOST = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


class SyncStrategy(HostFed):
    """A strategy over several hosts, of which a step returns the same numbers on every host.

    Keras reduces what a step returns over the hosts only where it has an axis to reduce, and numbers have
    none.

    Args:
        strategy: `tf.distribute.MultiWorkerMirroredStrategy`.
        predicts: whether steps return a value for each example, and not means.
    """

    def __init__(self, strategy, predicts=False):
        super().__init__(strategy)
        self._predicts = predicts

    def run(self, step, args=(), kwargs=None, options=None):
        outputs = self.strategy.run(step, args, kwargs, options)
        return (self._of_all_examples if self._predicts else self._means)(outputs)

    def _means(self, outputs):
        """Return the means over all replicas of all hosts, each a number, or an array of a known shape."""
        hosts, leaves = hosts_of(self.strategy), keras.tree.flatten(outputs)
        means = [
            tf.add_n([tf.cast(part, tf.float32) for part in self._parts(leaf)]) / hosts.per_host
            for leaf in leaves
        ]
        if not means:
            return outputs
        together = tf.concat([tf.reshape(mean, [-1]) for mean in means], axis=0) / hosts.count
        pieces = tf.split(all_reduce_sum(hosts, together), [mean.shape.num_elements() for mean in means])
        means = [tf.reshape(piece, mean.shape) for piece, mean in zip(pieces, means)]
        return keras.tree.pack_sequence_as(outputs, means)

    def _of_all_examples(self, outputs):
        """Return the rows of all replicas of all hosts, in the order of the batch.

        TensorFlow deals a batch out in parts: to the first replica of each host, then to the second of each.
        """
        hosts = hosts_of(self.strategy)
        for leaf in keras.tree.flatten(outputs):
            if self._parts(leaf)[0].dtype == tf.string:
                raise ValueError(
                    "Outputs of `predict` on several hosts must be numbers: strings do not travel between "
                    "them. Call the model on each host, or export it. Received: an output of strings"
                )
        return keras.tree.map_structure(
            lambda leaf: tf.concat([all_gather(hosts, part)[0] for part in self._parts(leaf)], axis=0),
            outputs,
        )

    def _parts(self, value):
        return self.strategy.experimental_local_results(value)


def hosts_of_model(model):
    """Return the `Hosts` that train a model."""
    strategy = model.distribute_strategy
    return hosts_of(strategy.strategy if isinstance(strategy, HostFed) else strategy)


@contextlib.contextmanager
def written_by_first(hosts, path):
    """A context that gives the path to write to: `path` on the first host, None on the others.

    Args:
        hosts: `Hosts`.
        path: path of a file or folder.

    Yields:
        A path. All hosts go on when what the first one wrote is there.
    """
    if hosts.is_first:
        yield path
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield os.path.join(folder, os.path.basename(path))
    with hosts.naming_lost():
        barrier(hosts)


def callbacks_here(hosts, callbacks):
    """Return the callbacks of `fit` that work on this host, and the one by which hosts stop
    together.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    callbacks = [callback for callback in keras.tree.flatten(callbacks) if callback is not None]
    if not hosts.is_first:
        callbacks = [
            callback
            for callback in callbacks
            if getattr(callback, "on_every_host", False) or not isinstance(callback, _OF_FIRST_HOST)
        ]
    return [*callbacks, StopTogether(hosts, callbacks)]
