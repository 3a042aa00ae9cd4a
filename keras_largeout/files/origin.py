"""The file that a model is loaded from, or saved to: it bounds what a config says, and paths begin there."""

import contextlib
import contextvars
import os
import zipfile
from typing import NamedTuple

from keras_largeout._context import setting
from keras_largeout.files.atomic_write import is_local

#: How many times its size on the disk a member of an archive counts at most, as in Keras.
_MOST_EXPANSION = 100


class Origin(NamedTuple):
    """A file that a model is loaded from.

    Attributes:
        folder: str, the path of the folder that the file is in.
        nbytes: int, the bytes of its content; None where the caller says the sizes.
    """

    folder: str
    nbytes: int | None


_origin = contextvars.ContextVar("keras_largeout_origin", default=None)
_target = contextvars.ContextVar("keras_largeout_target", default=None)


@contextlib.contextmanager
def loading_from(path, bounded=True):
    """A context in which a model is loaded from a file. Inside another such context it changes nothing.

    Args:
        path: str or path of a `.keras` file, or of a folder with the same content.
        bounded: bool, whether the file's content bounds the sizes of tables.
    """
    if _origin.get() is not None or not is_local(path) or not os.path.exists(path):
        yield
        return
    folder = os.path.dirname(os.path.abspath(path))
    with setting(_origin, Origin(folder, _content_bytes(path) if bounded else None)):
        yield


def current_origin():
    """Return the `Origin` of the model that is being loaded; None outside of `loading_from`."""
    return _origin.get()


def saving_to(path):
    """Return a context in which a model is saved to a file.

    Args:
        path: str or path, or an address such as "gs://...".
    """
    return setting(_target, os.path.dirname(os.path.abspath(path)) if is_local(path) else None)


def path_in_file(path):
    """Return how a file that is being saved names another one: by a path relative to its own folder.

    Args:
        path: str, an absolute path; or an address, which stays as it is.
    """
    target = _target.get()
    return path if target is None or not is_local(path) else os.path.relpath(path, target)


def path_from_file(path, store):
    """Return the absolute path (or address) of what `path_in_file` has named.

    Args:
        store: the mapping that Keras hands to `load_own_variables`.
    """
    origin, file = current_origin(), getattr(store, "path_or_io", None) or getattr(store, "path", None)
    if not is_local(path) or (origin is None and not isinstance(file, (str, os.PathLike))):
        return path
    # Where there is an origin, the store is of a member of it.
    folder = os.path.dirname(os.path.abspath(file)) if origin is None else origin.folder
    return os.path.normpath(os.path.join(folder, path))


def _content_bytes(path):
    if os.path.isdir(path):
        return sum(
            os.path.getsize(os.path.join(at, file)) for at, _, files in os.walk(path) for file in files
        )
    if not zipfile.is_zipfile(path):
        return os.path.getsize(path)
    with zipfile.ZipFile(path) as archive:
        return sum(min(m.file_size, _MOST_EXPANSION * m.compress_size) for m in archive.infolist())
