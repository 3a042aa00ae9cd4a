"""Synchronous hosts stop together: one that went on alone would wait for the others forever."""

import keras

from keras_largeout.replicas.collectives import all_gather_scalar


class StopTogether(keras.callbacks.Callback):
    """The last callback of `fit` on each of several hosts: where `stop_training` is set on one, all stop.

    Callbacks of Keras decide by the logs, which are the same everywhere. Others may decide by the time, and
    where a host has one that looks at batches, all hosts ask one another after each call of a step.

    Args:
        hosts: `Hosts`.
        callbacks: the others of this host.
    """

    on_every_host = True

    def __init__(self, hosts, callbacks):
        super().__init__()
        self._hosts, self._own = hosts, any(map(_may_stop_a_batch, callbacks))

    def on_train_begin(self, logs=None):
        self._asks = all_gather_scalar(self._hosts, self._own).any()

    def on_train_batch_end(self, batch, logs=None):
        if self._asks:
            self._agree()

    def on_epoch_end(self, epoch, logs=None):
        self._agree()

    def _agree(self):
        self.model.stop_training = bool(all_gather_scalar(self._hosts, bool(self.model.stop_training)).any())


def _may_stop_a_batch(callback):
    """Return whether what it does after a batch is written neither here nor in Keras."""
    for owner in (callback, *type(callback).__mro__):  # a `LambdaCallback` has it as its own attribute
        if any(name in vars(owner) for name in ("on_train_batch_end", "on_batch_end")):
            return owner is callback or owner.__module__.partition(".")[0] not in ("keras", "keras_largeout")
    return False
