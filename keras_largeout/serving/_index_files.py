"""The folder of a saved index: the graph as its library writes it, and what else the index has."""

import json
import os
import zipfile

import numpy as np

from keras_largeout.files.atomic_write import is_local, whole_file
from keras_largeout.files.checksum import check_file, digest_of_file

_GRAPH, _REST = "graph", "index.npz"
_FORMAT = 1


def write(folder, graph, settings, arrays):
    """Write a folder that appears when it is complete, in the place of a saved index.

    Args:
        folder: str or path.
        graph: of the classes of `_libraries.py`.
        settings: dict that JSON can hold.
        arrays: dict of arrays.

    Raises:
        FileExistsError: there is something else.
        ValueError: `folder` is an address such as "gs://...".
    """
    if not is_local(folder):
        raise ValueError(f"`path` must be a folder on a file system. Received: path={folder!r}")
    folder = os.path.abspath(os.fspath(folder))
    is_index = os.path.isfile(os.path.join(folder, _REST))
    if os.path.lexists(folder) and not is_index and not (os.path.isdir(folder) and not os.listdir(folder)):
        raise FileExistsError(f"`path` must be new, or a saved index to replace. Received: {folder}")
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with whole_file(folder) as new:
        os.mkdir(new)
        graph.save(os.path.join(new, _GRAPH))
        said = {**settings, "format": _FORMAT, "graph": digest_of_file(os.path.join(new, _GRAPH))}
        said = np.frombuffer(json.dumps(said).encode(), np.uint8)
        np.savez(os.path.join(new, _REST), settings=said, **arrays)


def read(folder):
    """Return what `write` was given, once its digests are right: the path of the graph, settings and arrays.

    Raises:
        FileNotFoundError: `folder` is no saved index.
        OSError: a file is damaged.
        ValueError: a later version wrote it.
    """
    rest = os.path.join(os.fspath(folder), _REST)
    if not os.path.isfile(rest):
        raise FileNotFoundError(f"`path` must be the folder of a saved index. Received: {folder}")
    try:
        with np.load(rest) as file:
            arrays = {name: file[name] for name in file.files}
        settings = json.loads(bytes(arrays.pop("settings")))
        digest, written = settings.pop("graph"), settings.pop("format")
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise OSError(f"{rest} is damaged: it cannot be read. Received: {error}") from error
    if written > _FORMAT:
        raise ValueError(f"`path` must have the format {_FORMAT} of this version. Received: format {written}")
    graph = os.path.join(os.fspath(folder), _GRAPH)
    check_file(graph, digest)
    return graph, settings, arrays
