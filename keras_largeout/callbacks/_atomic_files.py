"""Callbacks that save a model: each of its files is complete or not there, whatever class the model has."""

import contextlib

from keras_largeout.files.model_files import model_file
from keras_largeout.tables.server_files import bytes_to_save
from keras_largeout.training.saving import Saving


class AtomicFiles:
    """First base of a Keras callback that saves `self.model`."""

    _saves = False

    @property
    def model(self):
        """The model that is trained; while the callback saves, one that saves whole files."""
        model = super().model
        # `kl.Model` does so itself.
        return _Whole(model) if self._saves and not isinstance(model, Saving) else model

    @contextlib.contextmanager
    def whole_files(self):
        """Within this context the callback may save the model."""
        self._saves = True
        try:
            yield
        finally:
            self._saves = False


class _Whole:
    """A model, but for the two methods that write files."""

    def __init__(self, model):
        vars(self)["_model"] = model

    def save(self, filepath, overwrite=True, **kwargs):
        with model_file(filepath, overwrite, least=bytes_to_save(self._model)) as path:
            self._model.save(path, overwrite=overwrite, **kwargs)

    def save_weights(self, filepath, overwrite=True, **kwargs):
        with model_file(filepath, overwrite, least=bytes_to_save(self._model)) as path:
            self._model.save_weights(path, overwrite=overwrite, **kwargs)

    def __getattr__(self, name):
        return getattr(self._model, name)

    def __setattr__(self, name, value):
        setattr(self._model, name, value)
