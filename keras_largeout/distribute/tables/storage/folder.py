"""`TableFolder`: the files of one table, and who may use them."""

import fcntl
import json
import os
import weakref

from keras_largeout.files.whole import whole_file

_ABOUT, _LOCK = "table.json", "lock"


class TableFolder:
    """A folder that holds the rows of one table and of its optimizer slots, each a file per part.

    It is locked while the table exists. What it holds is complete when it was closed: by `close`, or when
    the table goes, or at the end of the process. A process that is killed leaves it open. Rows may then be
    torn, and the folder is refused: the last save of the model is what to go on from.

    Args:
        path: str, of the folder; it is made where it is not there.
        about: JSON-able dict, what the table is. That of an existing folder must be the same.
        first: list, what `FirstRows` needs. Of an existing folder its own is kept: see `first`.

    Attributes:
        path: str.
        first: list, the laws of the first values of the rows.
        existed: bool, whether the folder held the table before.

    Raises:
        BlockingIOError: another table, here or in another process, uses the folder.
        ValueError: it holds another table.
        OSError: it was not closed, or cannot be written.
    """

    def __init__(self, path, about, first):
        self.path = path
        os.makedirs(path, exist_ok=True)
        self._lock = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._take(about, first)
        except BaseException:
            os.close(self._lock)
            raise
        self._close = weakref.finalize(self, _closed, path, self._lock)

    def _take(self, about, first):
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(
                f"{self.path} is in use: a folder of `storage` must be that of one table of one process"
            ) from None
        known = _read(self.path)
        self.existed = known is not None
        if known is None:
            known = {"table": about, "first": first}
        elif known["table"] != about:
            raise ValueError(
                f"`storage` must be a folder of this table, {about}, or a new one. "
                f"Received: {self.path} with {known['table']}"
            )
        elif not known["closed"]:
            raise OSError(
                f"{self.path} was not closed: the process that trained it was killed, and rows may be torn. "
                "Give the table a new folder and load the last save of the model, or remove this one"
            )
        self.first = known["first"]
        _write(self.path, {**known, "closed": False})

    def file(self, name):
        """The path of the file `name`."""
        return os.path.join(self.path, f"{name}.rows")

    def close(self):
        """Everything is on the disk when it returns. The table must not be used any more."""
        self._close()


def _closed(path, lock):
    for name in os.listdir(path):
        if name.endswith(".rows"):
            with open(os.path.join(path, name), "rb") as file:
                os.fsync(file.fileno())
    _write(path, {**_read(path), "closed": True})
    os.close(lock)


def _read(path):
    try:
        with open(os.path.join(path, _ABOUT), encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def _write(path, content):
    with whole_file(os.path.join(path, _ABOUT)) as new, open(new, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
