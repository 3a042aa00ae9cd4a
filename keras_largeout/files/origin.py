"""Which file a model is being loaded from: what its config says is bounded by that file."""

import contextlib
import contextvars
import os
import zipfile
from typing import NamedTuple

from keras_largeout.files.whole import is_local

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
    token = _origin.set(Origin(folder, _content_bytes(path) if bounded else None))
    try:
        yield
    finally:
        _origin.reset(token)


def current_origin():
    """Return the `Origin` of the model that is being loaded; None outside of `loading_from`."""
    return _origin.get()


def _content_bytes(path):
    if os.path.isdir(path):
        return sum(
            os.path.getsize(os.path.join(at, file)) for at, _, files in os.walk(path) for file in files
        )
    if not zipfile.is_zipfile(path):
        return os.path.getsize(path)
    with zipfile.ZipFile(path) as archive:
        return sum(min(m.file_size, _MOST_EXPANSION * m.compress_size) for m in archive.infolist())
