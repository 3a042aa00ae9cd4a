"""Saving and loading of a `kl.Model`: atomic writes, and files that are checked before they are loaded."""

import contextlib
import os
import warnings
from typing import Any

from keras_largeout._keras import all_layers
from keras_largeout.distribute.hosts.multi_worker import hosts_of_model, written_by_first
from keras_largeout.files.model_files import model_file
from keras_largeout.files.origin import saving_to
from keras_largeout.files.verified_loading import load_pass, verify, verify_file
from keras_largeout.tables.server_files import bytes_to_save
from keras_largeout.tables.shard import outside_tables


class Saving:
    """A base, before `keras.Model`, which also has `wait_for_steps`."""

    def save(
        self, filepath: str | os.PathLike, overwrite: bool = True, zipped: bool | None = None, **kwargs: Any
    ) -> None:
        """Save as Keras does, but atomically. Writes to a folder (`zipped=False`) are not atomic."""
        self.wait_for_steps()
        with self._file(filepath, overwrite) as path:
            super().save(path, overwrite=overwrite, zipped=zipped, **kwargs)

    def save_weights(
        self,
        filepath: str | os.PathLike,
        overwrite: bool = True,
        max_shard_size: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Save weights as Keras does, but atomically; also a `.weights.json` and its files."""
        self.wait_for_steps()
        sharded = max_shard_size is not None
        with self._file(filepath, overwrite, sharded) as path:
            super().save_weights(path, overwrite=overwrite, max_shard_size=max_shard_size, **kwargs)

    @contextlib.contextmanager
    def _file(self, filepath, overwrite, sharded=False):
        """A path to save to. Of several hosts the first one saves; all go on when the file is there."""
        hosts = hosts_of_model(self)
        with written_by_first(hosts, filepath) as path:
            if path is not filepath:
                yield path
                return
            with (
                saving_to(path),
                model_file(path, overwrite, sharded, least=bytes_to_save(self)) as path,
            ):
                yield path

    def load_weights(self, filepath: str | os.PathLike, skip_mismatch: bool = False, **kwargs: Any) -> None:
        """Load weights as Keras does. A file that is damaged, or does not fit all layers and the optimizer,
        changes nothing.

        The file is gone through twice. First everything in it is compared with its digests, with the shapes
        of the layers and with the optimizer; then it is loaded. (Meanwhile there is a second copy of what
        layers of Keras hold, and none of a table.) Files without digests, which Keras or an earlier version
        has written, are loaded too.

        Args:
            filepath, skip_mismatch: as for Keras's. With `skip_mismatch`, layers that do not fit are left
                out, and the others are loaded; a damaged file is still refused.

        Raises:
            OSError: the file is damaged.
            ValueError: the file is of another model or optimizer.
        """
        self.wait_for_steps()
        if not verify_file(filepath) or skip_mismatch or not self.built:
            super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)
            return
        for layer in all_layers(self):
            if hasattr(layer, "make_slots"):
                layer.make_slots()
        # Layers of Keras check what they get while they take it. It is taken from them where one fails.
        before = [(variable, variable.numpy()) for variable in self._variables_of_keras()]
        try:
            with load_pass(only_checks=True), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                super().load_weights(filepath, **kwargs)
        except BaseException:
            for variable, value in before:
                variable.assign(value)
            raise
        with load_pass(only_checks=False):
            super().load_weights(filepath, **kwargs)

    def load_own_variables(self, store: Any) -> None:
        verify(store)  # the model comes before its layers
        super().load_own_variables(store)

    def _variables_of_keras(self):
        """Return all variables but the parts of tables, each once."""
        variables = [*self.variables, *self.metrics_variables]
        if getattr(self, "optimizer", None) is not None:  # a model that was never compiled has none
            variables += self.optimizer.variables
        return list({id(v): v for v in outside_tables(variables)}.values())
