"""A digest of each array that a layer or an optimizer saves, kept beside the arrays under one more key."""

import contextlib
import json
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

KEY = "digests"
_VERSION = 1


@contextlib.contextmanager
def digested(store, place=None):
    """Adds to `store` the digests of all arrays that are written inside.

    Args:
        store: the mutable mapping that Keras hands to `save_own_variables`.
        place: str, where in the file it is; None where it is not in a file.

    Yields:
        What to write to instead.
    """
    with ThreadPoolExecutor(1) as thread:
        writer = _Digested(store, thread)
        yield writer
    said = {"version": _VERSION, "place": place, "arrays": writer.said}
    store[KEY] = np.frombuffer(json.dumps(said).encode(), np.uint8)


class _Digested:
    """A store that is written to, and the digests of what was written."""

    def __init__(self, store, thread):
        self._store, self._thread, self.said = store, thread, {}

    def __setitem__(self, key, value):
        value = np.asarray(value)
        digest = self._thread.submit(_crc32, value)  # while the array is written
        self._store[key] = value
        self.said[key] = [digest.result(), _dtype(value), list(value.shape)]


def saved_shapes(store):
    """Return dict from the keys of the arrays in `store` to their shapes; {} where it has no digests."""
    if KEY not in store:
        return {}
    return {key: tuple(shape) for key, (_, _, shape) in _read(store[KEY])["arrays"].items()}


def check_arrays(store, where, place=None):
    """Compares arrays with their digests; nothing where there are none.

    Args:
        store: mapping from keys to arrays, or to HDF5 datasets, which are read one at a time.
        where: str for errors, what the store is a part of.
        place: str, where in the file it is; None where it is not in a file.

    Raises:
        OSError: an array is missing, or has other bytes, another dtype or shape than when it was saved, or
            the arrays were saved elsewhere in the file.
    """
    if KEY not in store:
        return
    try:
        found = _read(store[KEY])
        said, expected = found["arrays"], found["place"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OSError(
            f"{where} is damaged: the array of its digests cannot be read. Received: {error}"
        ) from error
    if None not in (place, expected) and place != expected:
        raise OSError(f"{where} is damaged: it must be found as {expected!r}. Received: {place!r}")
    for key, (crc32, *expected) in said.items():
        if key not in store:
            raise OSError(f"{where} is damaged: it must have the array {key!r}. Received: no such array")
        array = store[key]
        if not hasattr(array, "shape"):
            array = np.asarray(array)
        found = [_dtype(array), list(array.shape)]
        if found != expected:  # before it is read: a damaged shape may be that of terabytes
            raise OSError(
                f"{where} is damaged: its array {key!r} must have the dtype and shape with which it was "
                f"saved, {expected}. Received: {found}"
            )
        found = _crc32(np.asarray(array))
        if found != crc32:
            raise OSError(
                f"{where} is damaged: its array {key!r} must have the CRC-32 with which it was saved, "
                f"{crc32:08x}. Received: {found:08x}"
            )


def _read(array):
    said = json.loads(bytes(np.asarray(array, np.uint8)))
    if said["version"] != _VERSION:
        raise ValueError(f"digests of version {said['version']}, where {_VERSION} is known")
    return said


def _crc32(array):
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _dtype(array):
    """Return a str. (HDF5 has no bfloat16, and gives back bytes.)"""
    dtype = np.dtype(array.dtype)
    return f"{dtype.itemsize} bytes" if dtype.kind == "V" else dtype.str
