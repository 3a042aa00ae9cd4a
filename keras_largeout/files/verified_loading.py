"""Loading in two passes: all of a file is verified before anything of it is written into a variable.

What is verified, of a file that this package has written:

- a `.keras` file: everything (the members of a zip archive have a CRC-32 each),
- a file with a checksum (`files/checksum.py`: from `kl.Model`, `kl.callbacks`): everything,
- any other: what layers and optimizers of this package have written (`files/array_digests.py`).
"""

import contextlib
import contextvars
import io
import json
import os
import weakref
import zipfile
import zlib

from keras_largeout._context import setting
from keras_largeout.files.array_digests import KEY, check_arrays
from keras_largeout.files.atomic_write import is_local
from keras_largeout.files.checksum import verify_checksum

MAP_DIGEST = "keras_largeout"

# None; or whether the pass under way only checks. (Then the file itself was verified before.)
_only_checks = contextvars.ContextVar("keras_largeout_only_checks", default=None)
# Whether tables take files with another number of rows.
_other_rows = contextvars.ContextVar("keras_largeout_other_rows", default=False)
# Store -> None, or what is wrong with its file.
_verified = weakref.WeakKeyDictionary()


def load_pass(only_checks):
    """Return a context for a pass over a verified file: `only_checking()` inside is `only_checks`."""
    return setting(_only_checks, only_checks)


def only_checking():
    """Return whether `load_own_variables` must check what it is given, and change nothing."""
    return bool(_only_checks.get())


def other_rows():
    """Return a context in which a table loads its rows from a file with fewer or more rows."""
    return setting(_other_rows, True)


def may_have_other_rows():
    """Return whether we are inside `other_rows`."""
    return _other_rows.get()


def verify(store):
    """Verifies the file of `store`, all of it, when the first layer or optimizer is loaded from it.

    Keras goes on with the next layer when one has failed: each that asks is told, and none is changed.

    Args:
        store: the mapping that Keras hands to `load_own_variables`.

    Raises:
        OSError: the file is damaged.
    """
    if _only_checks.get() is not None:
        return
    if not hasattr(store, "h5_file"):
        check_arrays(store, "What was saved")
        return
    if store not in _verified:
        _verified[store] = None
        try:
            _verify_behind(store)
        except OSError as error:
            _verified[store] = str(error)
    if _verified[store] is not None:
        raise OSError(_verified[store])


def _verify_behind(store):
    if store.archive is not None:
        _verify_archive(store.archive)
        return
    path = getattr(store, "path_or_io", None) or store.path  # the second: of a map of several files
    if not isinstance(path, io.BytesIO):  # a member of an archive: read whole, so its CRC-32 was right
        verify_file(path)


def verify_file(path):
    """Compares a file with the digests that it has.

    Args:
        path: str or path of a weights file, `.weights.h5` or `.weights.json`, or a `.keras` file.

    Returns:
        Whether there is such a file here: bool. (A folder, or an address, has none.)

    Raises:
        OSError: the file is damaged.
    """
    if not is_local(path) or not os.path.isfile(path):
        return False
    path = os.fspath(path)
    if path.endswith(".keras"):
        try:
            archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise OSError(f"{path} is damaged: it must be a zip archive. Received: {error}") from error
        with archive:
            _verify_archive(archive)
        return True
    weight_map = _weight_map(path) if path.endswith(".json") else None
    files = [path]
    if weight_map is not None:
        names = {name for names in weight_map.values() for name in names}
        files = [os.path.join(os.path.dirname(path), name) for name in sorted(names)]
    if None in [verify_checksum(file) for file in files]:
        _verify_arrays(path, files, weight_map)
    return True


def _verify_archive(archive):
    try:
        wrong = archive.testzip()
    except Exception as error:  # whatever `zipfile` makes of damaged headers
        raise OSError(f"{archive.filename} is damaged: it cannot be read. Received: {error}") from error
    if wrong is not None:
        raise OSError(
            f"{archive.filename} is damaged: its member {wrong!r} must have the CRC-32 with which it was "
            "saved. Received: another one"
        )


def _weight_map(path):
    """Return the groups that a `.weights.json` names, and the names of the files that have a part of each."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        expected = content.pop(MAP_DIGEST, None)
        found = files_of_groups(content)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise OSError(f"{path} is damaged: it must be Keras's map of weights. Received: {error!r}") from error
    if expected not in (None, digest_of_map(content)):
        raise OSError(
            f"{path} is damaged: it must have the CRC-32 with which it was saved, {expected}. "
            f"Received: {digest_of_map(content)}"
        )
    return found


def files_of_groups(content):
    """Map each group of a `.weights.json` to the names of the files that have a part of it."""
    groups = content["weight_map"].items()
    return {group: {names} if isinstance(names, str) else set(names) for group, names in groups}


def digest_of_map(content):
    """Return the CRC-32 of the content of a `.weights.json`, an int."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _verify_arrays(path, files, weight_map):
    """Checks every group that has digests. A group may be spread over several files, which a map names."""
    import h5py

    with contextlib.ExitStack() as stack:
        groups, holders = {}, {}

        def note(name, found):
            if isinstance(found, h5py.Dataset):
                group = found.parent.name
                groups.setdefault(group, {})[name.rpartition("/")[2]] = found
                holders.setdefault(group, set()).add(os.path.basename(found.file.filename))

        try:
            for file in files:
                stack.enter_context(h5py.File(file, "r")).visititems(note)
            for name, group in groups.items():
                where, known = f"{path}, group {name},", weight_map
                if KEY in group and known is not None and known.get(name) != holders[name]:
                    raise OSError(
                        f"{where} is damaged: the map must name {sorted(holders[name])} for it. "
                        f"Received: {sorted(known.get(name, ()))}"
                    )
                check_arrays(group, where, name.removesuffix("vars").strip("/"))
        except OSError:
            raise
        except Exception as error:  # whatever HDF5 makes of damage
            raise OSError(f"{path} is damaged: HDF5 cannot read it. Received: {error!r}") from error
