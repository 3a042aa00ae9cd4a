"""Atomic writes of what Keras saves for a model: one file, or a map and the files that it names."""

import contextlib
import contextvars
import errno
import json
import os
import re
import shutil

from keras_largeout._context import setting
from keras_largeout.files.atomic_write import is_local, put, scratch_in, scratches, whole_file
from keras_largeout.files.checksum import add_checksum
from keras_largeout.files.verified_loading import MAP_DIGEST, digest_of_map, files_of_groups

_note = contextvars.ContextVar("keras_largeout_note", default=None)


def noted(note):
    """Return a context in which weights files are saved with `note`, a dict, beside their checksum."""
    return setting(_note, note)


@contextlib.contextmanager
def model_file(filepath, overwrite=True, sharded=False, least=0):
    """A path for Keras to save to: what it writes there appears at `filepath` when it is complete.

    HDF5 files get a digest of all their bytes (`files/checksum.py`).

    Args:
        filepath: what `save` or `save_weights` was given.
        overwrite: bool. Where False, and there is such a file, Keras asks, and writes to `filepath`. So it
            does where `filepath` is a folder, or an address such as "gs://...".
        sharded: bool, whether Keras writes a map and several files.
        least: int, of how many bytes the file will be at least.

    Yields:
        A path.

    Raises:
        OSError: the disk has no room for it.
    """
    plain = not is_local(filepath) or os.path.isdir(filepath)
    if plain or (os.path.exists(filepath) and not overwrite):
        yield filepath
        return
    _check_room(filepath, least)
    if sharded:
        with _map_file(os.fspath(filepath)) as path:
            yield path
    else:
        with whole_file(filepath) as path:
            yield path
            if path.endswith(".h5"):
                add_checksum(path, _note.get())


def _check_room(filepath, least):
    """Raises OSError early: HDF5 1.14 may end the process by a segmentation fault when a disk runs full."""
    folder = os.path.dirname(os.path.realpath(filepath))
    if not os.path.isdir(folder):
        return  # whoever writes says so
    free = shutil.disk_usage(folder).free
    if free < least:
        raise OSError(
            errno.ENOSPC,
            f"The disk must have {least} free bytes, beside the file that is there. Received: {free}",
            os.fspath(filepath),
        )


@contextlib.contextmanager
def _map_file(path):
    """The same for a map, `.weights.json`: it gets its name last, and the files that it names have new names.

    Keras opens `<name>_00000.weights.h5` before it has read the map, whatever that names. It is an empty one.
    """
    import h5py

    folder, name = os.path.split(os.path.realpath(os.path.splitext(path)[0] + ".json"))
    stem = name.removesuffix(".json").removesuffix(".weights")
    opened = os.path.join(folder, f"{stem}_00000.weights.h5")
    before = _named(os.path.join(folder, name))
    with scratch_in(folder) as scratch:
        new = os.path.join(scratch, f"{stem}-{os.path.basename(scratch)}.weights.json")
        yield new
        with open(new, encoding="utf-8") as file:
            content = json.load(file)
        content[MAP_DIGEST] = digest_of_map(content)
        with open(new, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=4)
        written = set(os.listdir(scratch)) - {os.path.basename(new)}
        for file in sorted(written):
            add_checksum(os.path.join(scratch, file), _note.get())
            put(os.path.join(scratch, file), os.path.join(folder, file))
        empty = os.path.join(scratch, "empty")
        h5py.File(empty, "w").close()
        if not os.path.exists(opened):
            put(empty, opened)
        put(new, os.path.join(folder, name))
        if os.path.exists(empty):  # one of the files of the map before: some versions look into it
            put(empty, opened)
    _remove_unnamed(folder, stem, before, os.path.join(folder, name), keep=os.path.basename(opened))


def _remove_unnamed(folder, stem, before, path, keep):
    """Removes the files of the map before, and of saves that were killed before they had a map.

    Files of a save in progress are kept: its scratch folder is there until `path` names them. So the three
    questions must come in this order: which files there are, who is saving, what the map names.
    """
    ours = re.compile(rf"{re.escape(stem)}-([0-9a-f]{{8}})_\d{{5}}\.weights\.h5")
    there = {file: ours.fullmatch(file) for file in os.listdir(folder)}
    saving = scratches(folder)
    named = _named(path)
    for file, found in there.items():
        is_old = found[1] not in saving if found else file in before and file.endswith(".weights.h5")
        if is_old and file not in named and file != keep:
            with contextlib.suppress(FileNotFoundError):  # another save removes it, too
                os.remove(os.path.join(folder, file))


def _named(path):
    """Return the files that a map names; none where there is no map that can be read."""
    try:
        with open(path, encoding="utf-8") as file:
            groups = files_of_groups(json.load(file))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()
    return set().union(*groups.values())
