"""Files and folders that appear under their names when they are complete: the one place that does it.

They are written in a scratch folder in the same folder, flushed to the disk and renamed. A process may be
killed and a disk may be full at any moment: the name stands for what was last complete. Whoever writes next
into the folder removes the scratch folder of a process that was killed.

Containers and other machines may write into the same folder, and the number of a process there says nothing
here. So a scratch folder has a random name, and its process keeps a lock in it (`flock`). It is removed only
when the lock is free. A lock may be unknown to another machine, or to the file system: then the time of the
lock file counts as well, which its process renews.
"""

import contextlib
import ctypes
import fcntl
import os
import re
import secrets
import shutil
import socket
import threading
import time

_LOCK = "lock"
#: Seconds after which the time of a lock is renewed, and after which one that was not renewed is free.
_RENEWED, _EXPIRED = 20, 600


def _boot():
    """Return 8 digits for the kernel that runs: all of its processes see each other's locks."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read(8)
    except OSError:
        return secrets.token_hex(4)


_BOOT = _boot()
_HOST = re.sub(r"[^\w.]", "-", socket.gethostname(), flags=re.ASCII)[:60]
# Host, boot, process, and a random part.
_SCRATCH = re.compile(r"\.[\w.-]*-(?P<boot>[0-9a-f]{8})-\d+-(?P<random>[0-9a-f]{8})\.partial", re.ASCII)


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
    with scratch_in(os.path.dirname(path)) as scratch:
        new = os.path.join(scratch, os.path.basename(path))
        yield new
        put(new, path)


@contextlib.contextmanager
def scratch_in(folder):
    """Makes a new folder on the file system of `folder`, and removes it in the end.

    First, what killed processes have left in `folder` is removed.

    Yields:
        str, its path. The last part, 8 random hexadecimal digits, is in `scratches(folder)` until the end.
    """
    remove_leftovers(folder)
    outer, inner, lock = _locked_scratch(folder)
    done = threading.Event()
    renews = threading.Thread(target=_renew, args=(lock, done), daemon=True)
    renews.start()
    try:
        yield inner
    finally:
        done.set()
        renews.join()
        with contextlib.suppress(OSError):
            _clear(outer, inner, lock)


def scratches(folder):
    """Return the names of the scratch folders in `folder` that processes may be writing to, as a set."""
    found = map(_SCRATCH.fullmatch, os.listdir(folder or "."))
    return {name["random"] for name in found if name}


def remove_leftovers(folder):
    """Removes the scratch folders in `folder` that no process writes to."""
    for entry in os.listdir(folder or "."):
        found = _SCRATCH.fullmatch(entry)
        if found:
            outer = os.path.join(folder, entry)
            with contextlib.suppress(OSError):  # somebody has it, removes it too, or does not let us
                _remove_leftover(outer, os.path.join(outer, found["random"]), found["boot"] == _BOOT)


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


# Scratch folders: an outer one, named for who looks at it, with the lock and an inner one.


def _locked_scratch(folder):
    """Return the paths of a new outer and inner folder, and the descriptor of the lock."""
    while True:
        random = secrets.token_hex(4)
        outer = os.path.join(folder, f".{_HOST}-{_BOOT}-{os.getpid()}-{random}.partial")
        inner = os.path.join(outer, random)
        os.mkdir(outer)
        with contextlib.suppress(FileNotFoundError):  # another process took it for a leftover
            lock = os.open(os.path.join(outer, _LOCK), os.O_RDWR | os.O_CREAT, 0o666)
            try:
                _take(lock)
                os.mkdir(inner)
                return outer, inner, lock
            except (BlockingIOError, FileNotFoundError):
                os.close(lock)


def _take(lock):
    """Return whether the lock was taken; False where the file system has no locks.

    Raises:
        BlockingIOError: a process has it.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _renew(lock, done):
    while not done.wait(_RENEWED):
        with contextlib.suppress(OSError):
            os.utime(lock)


def _remove_leftover(outer, inner, is_of_this_kernel):
    try:
        lock = os.open(os.path.join(outer, _LOCK), os.O_RDWR)
    except FileNotFoundError:
        os.rmdir(outer)  # it was killed before it had a lock; one that is about to make it tries again
        return
    try:
        is_taken = _take(lock)
        expired = time.time() - os.fstat(lock).st_mtime > _EXPIRED
    except OSError:
        os.close(lock)
        raise
    if expired or (is_taken and is_of_this_kernel):
        _clear(outer, inner, lock)
    else:
        os.close(lock)


def _clear(outer, inner, lock):
    """Removes a scratch folder whose lock is ours. One with files in it has its lock file, too."""
    try:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(inner)
        os.remove(os.path.join(outer, _LOCK))
    finally:
        os.close(lock)
    os.rmdir(outer)
