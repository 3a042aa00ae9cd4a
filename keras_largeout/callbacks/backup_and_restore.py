"""`BackupAndRestore`: Keras's, in whole files, where parameter servers write their tables themselves."""

import contextlib
import json
import os
import shutil
import tempfile

import keras
import numpy as np

from keras_largeout.callbacks._whole_files import WholeFiles
from keras_largeout.distribute.hosts.in_step import hosts_of_model
from keras_largeout.distribute.replicas.between_hosts import of_each, wait
from keras_largeout.distribute.tables.server_files import server_files
from keras_largeout.files.loading import verify_file
from keras_largeout.files.model_files import noted
from keras_largeout.files.seal import note_of
from keras_largeout.files.whole import is_local, whole_file

# The files that Keras's callback writes, and what it adds to the names of the last but one.
_WEIGHTS, _EPOCH, _BEFORE = "latest.weights.h5", "training_metadata.json", ".bkp"


class BackupAndRestore(WholeFiles, keras.callbacks.BackupAndRestore):
    """`keras.callbacks.BackupAndRestore` that survives a kill while it saves, for any `keras.Model`.

    - The weights and the number of their epoch appear together, in one file that is complete or not there:
      see `ModelCheckpoint`. A script that was killed at any moment goes on where the last whole backup was
      made.
    - A damaged backup is noticed before anything is loaded. With `double_checkpoint` the one before it is
      taken.
    - Under a `tf.distribute.ParameterServerStrategy` no table passes through the chief: each server writes
      its rows of tables and of their slots to a folder in `backup_dir`, all servers at the same time, and
      reads them again: see `kl.distribute.server_files`. The restarted script must have as many servers and
      the same plan.
    - On several hosts in step the first one writes, and all read the file when they begin. The restarted
      script may have any number of hosts.

    Args:
        backup_dir: path that the chief and all servers reach under this name (a network file system; object
            storage that TensorFlow can write to: files there are written as Keras writes them).
        save_freq, double_checkpoint, delete_checkpoint: as for Keras's callback.

    Raises:
        ValueError: an argument that Keras refuses.
        OSError: a file cannot be written; or the backup is damaged, and there is none before it.

    Example:
        >>> model.fit(dataset, epochs=10, callbacks=[kl.callbacks.BackupAndRestore("run/backup")])
    """

    _elsewhere = None  # the folder of a host that is not the first one
    _state = None  # what the weights belong to: the epoch, and the batch in it

    def on_train_begin(self, logs=None):
        hosts = hosts_of_model(self.model)
        if is_local(self.backup_dir) and (hosts is None or hosts.index == 0):
            self._find_whole_state()
        if hosts is not None:
            self._check_shared(hosts)
        super().on_train_begin(logs)
        if hosts is not None and hosts.index:
            self._save_elsewhere()

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        if self._elsewhere is not None:
            self._elsewhere.cleanup()

    def _check_shared(self, hosts):
        """Raises ValueError unless all hosts find the same backup, or none, when the first one has looked."""
        wait(hosts)
        path = os.path.join(self.backup_dir, _WEIGHTS)
        found = int(os.path.getsize(path)) if is_local(path) and os.path.exists(path) else -1
        if np.any(of_each(hosts, found) != found):
            raise ValueError(
                "`backup_dir` must be a folder that all hosts share under this name. "
                f"Received: backup_dir={self.backup_dir!r}, where they find different files"
            )

    def _save_elsewhere(self):
        """Has this host, which is not the first one, make its files in a folder of its own.

        It takes part in saving, as rows of tables lie on all hosts.
        """
        self._elsewhere, model, params = tempfile.TemporaryDirectory(), self.model, self.params
        folder = os.path.join(self._elsewhere.name, "backup")
        keras.callbacks.BackupAndRestore.__init__(
            self, folder, self.save_freq, self.double_checkpoint, self.delete_checkpoint
        )
        self.set_model(model)
        self.set_params(params)

    def on_epoch_begin(self, epoch, logs=None):
        self._state = {"epoch": epoch, "batch": 0}
        super().on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self._state = {"epoch": epoch + 1, "batch": 0}
        with self._backing_up():
            super().on_epoch_end(epoch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self._state = {**(self._state or {"epoch": 0}), "batch": batch}
        with self._backing_up():
            super().on_train_batch_end(batch, logs)

    @contextlib.contextmanager
    def _backing_up(self):
        keep = 2 if self.double_checkpoint else 1
        with self.whole_files(), noted(self._state), server_files(self.backup_dir, keep=keep):
            yield

    def _find_whole_state(self):
        """Gives Keras the last whole backup: its weights, and the epoch that they say they are of."""
        weights, epoch = (os.path.join(self.backup_dir, name) for name in (_WEIGHTS, _EPOCH))
        if not os.path.exists(weights):
            return
        try:
            verify_file(weights)
        except OSError:
            if not os.path.exists(weights + _BEFORE):
                raise
            verify_file(weights + _BEFORE)
            for path in (weights, epoch):
                with contextlib.suppress(FileNotFoundError):
                    _copy(path + _BEFORE, path)
        state = note_of(weights)
        if state:  # not in a file that Keras's callback wrote
            with whole_file(epoch) as path, open(path, "w", encoding="utf-8") as file:
                json.dump(state, file)


def _copy(path, to):
    with open(path, "rb") as source, whole_file(to) as new, open(new, "wb") as target:
        shutil.copyfileobj(source, target, 16 << 20)
