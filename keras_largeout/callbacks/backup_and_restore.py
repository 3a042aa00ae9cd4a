"""`BackupAndRestore`: Keras's, in whole files, where parameter servers write their tables themselves."""

import contextlib
import json
import logging
import os
import shutil
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.callbacks._atomic_files import AtomicFiles
from keras_largeout.distribute.hosts.multi_worker import hosts_of_model
from keras_largeout.files.atomic_write import is_local, whole_file
from keras_largeout.files.checksum import note_of
from keras_largeout.files.model_files import noted
from keras_largeout.files.table_files import read_json
from keras_largeout.files.verified_loading import verify_file
from keras_largeout.replicas.collectives import all_gather_scalar, barrier
from keras_largeout.tables.server_files import server_files
from keras_largeout.tables.storage.closing import begin_again

_LOG = logging.getLogger("keras_largeout")
# The files that Keras's callback writes, and what it adds to the names of the last but one.
_WEIGHTS, _EPOCH, _BEFORE = "latest.weights.h5", "training_metadata.json", ".bkp"


class BackupAndRestore(AtomicFiles, keras.callbacks.BackupAndRestore):
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
    - With an integer `save_freq`, training goes on behind the last batch of the backup: batches before it are
      read, and passed by without a step (callbacks see them, with empty logs). So the optimizer takes as many
      steps as without a restart, and schedules agree. The batches are the same as without a restart where
      a `kl.Model` is trained on arrays, or on a `keras.utils.PyDataset` without its own `on_epoch_end`;
      with `shuffle=False`, or arrays with the same `keras.utils.set_random_seed`. A sentence in the log
      ("keras_largeout") says where that is not known: some batches may then be repeated and others skipped.
      Metrics of that epoch are of the batches after the restart.
    - On synchronous hosts the first one writes, and all read the file when they begin. The restarted
      script may have any number of hosts.
    - A script that was killed before its first backup starts from the beginning, and so do tables in files
      that the killed process made. Tables that were there before it stay an error: their rows may be torn.

    Args:
        backup_dir: path that the chief and all servers reach under this name (a network file system; object
            storage that TensorFlow can write to: files there are written as Keras writes them).
        save_freq, double_checkpoint, delete_checkpoint: as for Keras's callback.

    Raises:
        ValueError: an argument that Keras refuses.
        OSError: a file cannot be written; or the backup is damaged, and there is none before it.

    Example:

    ```python
    model.fit(dataset, epochs=10, callbacks=[kl.callbacks.BackupAndRestore("run/backup")])
    ```
    """

    _elsewhere = None  # the folder of a host that is not the first one
    _state: dict[str, Any] | None = None  # what the weights belong to: the epoch, and the batch in it
    _done = (None, 0)  # an epoch, and how many batches of it are in the weights that were restored
    _train_function = None  # that of the model, while it passes a batch by

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        hosts = hosts_of_model(self.model)
        if is_local(self.backup_dir) and hosts.is_first:
            self._find_whole_state()
        if not hosts.is_alone:
            self._check_shared(hosts)
        super().on_train_begin(logs)
        if is_local(self.backup_dir) and not os.path.exists(os.path.join(self.backup_dir, _WEIGHTS)):
            for folder in begin_again(self.model):
                _LOG.warning(
                    "There is no backup: the rows of %s, whose process was killed, begin again", folder
                )
        self._find_batch()
        if not hosts.is_first:
            self._save_elsewhere()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_end(logs)
        if self._elsewhere is not None:
            self._elsewhere.cleanup()

    def _check_shared(self, hosts):
        """Raises ValueError unless all hosts find the same backup, or none, when the first one has looked."""
        barrier(hosts)
        path = os.path.join(self.backup_dir, _WEIGHTS)
        found = int(os.path.getsize(path)) if is_local(path) and os.path.exists(path) else -1
        if np.any(all_gather_scalar(hosts, found) != found):
            raise ValueError(
                "`backup_dir` must be a folder that all hosts share under this name. "
                f"Received: backup_dir={self.backup_dir!r}, where they find different files"
            )

    def _save_elsewhere(self):
        """Make this host, which is not the first one, write its files to its own folder.

        It takes part in saving, as rows of tables are on all hosts.
        """
        self._elsewhere, model, params = tempfile.TemporaryDirectory(), self.model, self.params
        folder = os.path.join(self._elsewhere.name, "backup")
        keras.callbacks.BackupAndRestore.__init__(
            self, folder, self.save_freq, self.double_checkpoint, self.delete_checkpoint
        )
        self.set_model(model)
        self.set_params(params)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._state = {"epoch": epoch, "batch": 0}
        super().on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._state = {"epoch": epoch + 1, "batch": 0}
        with self._backing_up():
            super().on_epoch_end(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._is_done(batch):
            self._train_function, self.model.train_function = self.model.train_function, self._pass_by

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._train_function is not None:
            self.model.train_function, self._train_function = self._train_function, None
            return
        order = getattr(self.model, "order_of_batches", None)
        self._state = {**(self._state or {"epoch": 0}), "batch": batch, "done": batch + 1, "order": order}
        with self._backing_up():
            super().on_train_batch_end(batch, logs)

    def _is_done(self, batch):
        epoch, count = self._done
        return self._state is not None and self._state["epoch"] == epoch and batch < count

    def _pass_by(self, iterator):
        """Take the place of the model's `train_function`: read the batches of a step, and make none."""
        if not self._by_servers:
            for _ in range(self.model.steps_per_execution):
                next(iterator)
        return {}

    @property
    def _by_servers(self):
        """True if workers of a cluster read the batches, in no order."""
        return isinstance(self.model.distribute_strategy, tf.distribute.ParameterServerStrategy)

    def _find_batch(self):
        """Find in the backup how many batches of its epoch are done."""
        self._done = (None, 0)
        try:
            with open(os.path.join(self.backup_dir, _EPOCH), encoding="utf-8") as file:
                state = json.load(file)
        except (OSError, ValueError):  # there is none, or it is not on a file system
            return
        if not state.get("done"):
            return
        self._done = (state["epoch"], state["done"])
        order = None if self._by_servers else getattr(self.model, "order_of_batches", None)
        if order is None or order != state.get("order"):
            _LOG.warning(
                "BackupAndRestore goes on in epoch %d after %d batches, in data whose order may be another "
                "than before: in this epoch some batches may be repeated and others skipped.",
                state["epoch"] + 1,
                state["done"],
            )

    @contextlib.contextmanager
    def _backing_up(self):
        keep = 2 if self.double_checkpoint else 1
        with self.whole_files(), noted(self._state), server_files(self.backup_dir, keep=keep):
            yield

    def _find_whole_state(self):
        """Gives Keras the last whole backup: its weights, and the epoch that they say they are of."""
        weights, epoch = (os.path.join(self.backup_dir, name) for name in (_WEIGHTS, _EPOCH))
        if os.path.exists(weights):
            self._find_whole_weights(weights, epoch)
        if os.path.exists(epoch):
            read_json(epoch)  # Keras would not name what is damaged

    def _find_whole_weights(self, weights, epoch):
        try:
            verify_file(weights)
        except OSError:
            if not os.path.exists(weights + _BEFORE):
                raise
            verify_file(weights + _BEFORE)
            for path in (weights, epoch):
                with contextlib.suppress(FileNotFoundError):
                    _copy(path + _BEFORE, path)
        state, steps = note_of(weights), (self.params or {}).get("steps")
        if state and steps and state.get("done", 0) >= steps:  # only the end of the epoch was missing
            state = {"epoch": state["epoch"] + 1, "batch": 0}
        if state:  # not in a file that Keras's callback wrote
            with whole_file(epoch) as path, open(path, "w", encoding="utf-8") as file:
                json.dump(state, file)


def _copy(path, to):
    with open(path, "rb") as source, whole_file(to) as new, open(new, "wb") as target:
        shutil.copyfileobj(source, target, 16 << 20)
