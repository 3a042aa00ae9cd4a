"""Files and folders that appear under their names when they are complete: the one place that does it.

They are written in a scratch folder beside the name, flushed to the disk and renamed. A process may be killed
and a disk may be full at any moment: the name stands for what was last complete. The scratch folder of a
process that was killed is removed by the next one that writes into the same folder.
"""

import contextlib
import ctypes
import os
import re
import shutil

_SUFFIX = ".partial"


def is_local(path):
    """Return whether `path` names something on a file system: it is a path, and no address such as
    "gs://...".
    """
    return isinstance(path, (str, os.PathLike)) and "://" not in os.fspath(path)


@contextlib.contextmanager
def whole_file(path):
    """A path to write to. What is there in the end gets the name `path`, and replaces what has it now.

    After an error nothing has changed. Files that are written beside the given path disappear.

    Args:
        path: str or path of a file or folder on a file system; a link stands for what it points at.

    Yields:
        str, a path with the same last part.

    Raises:
        OSError: it cannot be written.
    """
    path = os.path.realpath(path)
    with scratch_beside(path) as scratch:
        new = os.path.join(scratch, os.path.basename(path))
        yield new
        put(new, path)


@contextlib.contextmanager
def scratch_beside(path):
    """A new folder on the file system of `path`, which is removed in the end.

    First, what killed processes have left for names in this folder is removed.
    """
    folder, name = os.path.split(os.path.realpath(path))
    _remove_leftovers(folder, name)
    scratch = os.path.join(folder, f".{os.getpid()}-{name}{_SUFFIX}")
    _remove(scratch)  # of a process that had the same number
    os.mkdir(scratch)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def put(new, path):
    """Gives the file or folder `new` the name `path`, when all of it is on the disk.

    Where a folder has that name it takes the place of `new`: at every moment there is one or the other. (A
    system without such an exchange has two renames, and for a moment neither.)
    """
    _flush(new)
    if os.path.isdir(path) and os.listdir(path):
        _exchange(new, path)
    else:
        os.replace(new, path)
    _flush_one(os.path.dirname(os.path.realpath(path)))


def _flush(path):
    """Waits until a file, or a folder and all that is in it, is on the disk."""
    for folder, _, files in os.walk(path):
        for file in files:
            _flush_one(os.path.join(folder, file))
        _flush_one(folder)
    if not os.path.isdir(path):
        _flush_one(path)


def _flush_one(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(new, path):
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None or rename(here, os.fsencode(new), here, os.fsencode(path), exchange) != 0:
        os.replace(path, f"{new}.old")
        os.replace(new, path)


def _remove_leftovers(folder, name):
    ours = re.compile(
        rf"\.(\d+)-(.+{re.escape(_SUFFIX)}|{re.escape(name)})"
    )  # the second: of versions before
    for entry in os.listdir(folder or "."):
        found = ours.fullmatch(entry)
        if found and not _runs(int(found[1])):
            _remove(os.path.join(folder, entry))


def _remove(path):
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.remove(path)


def _runs(process):
    """Return whether there is such a process on this machine; True where that cannot be known."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is another user's
        return True
    return True
