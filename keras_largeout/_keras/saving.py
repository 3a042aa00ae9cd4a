"""Files: who vouches for one, which is being loaded, and where in it a layer is."""

import functools
import sys

from keras_largeout._keras.versions import _need


def in_safe_mode():
    """Return whether a config is being deserialized that nobody vouches for (`load_model(safe_mode=True)`).

    Why: nothing public says so. A layer's own `from_config`, which `clone_model` calls, is not in safe mode.
    """
    return bool(_need("keras.src.saving.serialization_lib", "in_safe_mode")())


def while_loading(context):
    """Have Keras load the model of each file inside `context(path)`.

    Why: `from_config` does not know which file its config comes from.
    """
    load = _need("keras.src.saving.saving_lib", "load_model")

    @functools.wraps(load)
    def load_model(filepath, *args, **kwargs):
        with context(filepath):
            return load(filepath, *args, **kwargs)

    sys.modules["keras.src.saving.saving_lib"].load_model = load_model


def store_path(store):
    """Return where in its file the mapping is that Keras hands to `save_own_variables`: "layers/dense",
    say.

    Why: Keras loads what it finds under that name, and goes on without where a damaged file has another one.

    Returns:
        A str; None for a mapping that is not of a file.
    """
    return _need(store, "_h5_entry_path") if hasattr(store, "h5_file") else None
