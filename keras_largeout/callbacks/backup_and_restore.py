"""`BackupAndRestore`: Keras's, where the parameter servers write their tables themselves."""

import keras

from keras_largeout.distribute.tables.server_files import server_files


class BackupAndRestore(keras.callbacks.BackupAndRestore):
    """`keras.callbacks.BackupAndRestore`, without tables passing through the chief.

    Under a `tf.distribute.ParameterServerStrategy` each server writes its rows of tables and of their slots
    to a folder in `backup_dir`, all servers at the same time, and reads them again: see
    `kl.distribute.server_files`. The restarted script must have as many servers and the same plan. Elsewhere
    this is Keras's callback.

    Args:
        backup_dir: path that the chief and all servers reach under this name (a network file system; object
            storage that TensorFlow can write to).
        save_freq, double_checkpoint, delete_checkpoint: as for Keras's callback.
    """

    def on_epoch_end(self, epoch, logs=None):
        with self._by_servers():
            super().on_epoch_end(epoch, logs)

    def on_train_batch_end(self, batch, logs=None):
        with self._by_servers():
            super().on_train_batch_end(batch, logs)

    def _by_servers(self):
        return server_files(self.backup_dir, keep=2 if self.double_checkpoint else 1)
