"""`ModelCheckpoint`: Keras's, whose files are complete or not there."""

from typing import Any

import keras

from keras_largeout.callbacks._atomic_files import AtomicFiles


class ModelCheckpoint(AtomicFiles, keras.callbacks.ModelCheckpoint):
    """`keras.callbacks.ModelCheckpoint` that never leaves half a file, for any `keras.Model`.

    A file is written in a new folder in the same folder, `.<host>-<boot>-<process>-<random>.partial`, flushed
    to the disk and then renamed. Whatever happens before, a full disk or a kill, the file that had the name
    stays as it was. What a killed process has left is removed when the next file is saved into the same
    folder: at once where it ran on the same machine, in any container, and else after 10 minutes. Any number
    of processes, containers and machines may save into one folder; who saves the same file last has it.

    A weights file ends in a digest of all its bytes, and a `.keras` file has one of each of its members:
    damage is noticed when it is loaded. `kl.Model` then changes nothing at all, a plain `keras.Model` no
    layer of this package and no slots of its tables.

    Args:
        filepath: str or path, as for Keras's callback. An address ("gs://...") is left to Keras.
        monitor, verbose, save_best_only, save_weights_only: as for Keras's callback.
        mode, save_freq, initial_value_threshold: as for Keras's callback.

    Raises:
        ValueError: an argument that Keras refuses.
        OSError: a file cannot be written.

    Example:

    ```python
    saves = kl.callbacks.ModelCheckpoint("run/{epoch:02d}.keras", monitor="val_loss")
    model.fit(dataset, epochs=10, validation_data=validation, callbacks=[saves])
    ```
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        with self.whole_files():
            super().on_epoch_end(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        with self.whole_files():
            super().on_train_batch_end(batch, logs)
