"""`TableFolder`: the files of one table, and who may use them."""

import fcntl
import json
import os
import weakref

from keras_largeout.files.whole import whole_file

_ABOUT, _LOCK = "table.json", "lock"

#: How the files are laid out.
FORMAT = "records"


class TableFolder:
    """A folder that holds the rows of one table beside their optimizer slots, a file per part.

    It is locked while the table exists: for one trainer, or for any number of readers. What it holds is
    complete when it was closed: by `close`, or when the table goes, or at the end of the process. A process
    that is killed leaves it open. Rows may then be torn, and the folder is refused: the last save of the
    model is what to go on from.

    Args:
        path: str, of the folder; it is made where it is not there.
        about: JSON-able dict, what the table is. That of an existing folder must be the same.
        first: list, what `FirstRows` needs. Of an existing folder its own is kept: see `first`.
        read_only: whether the folder must be there, and nothing in it is changed.

    Attributes:
        path: str.
        read_only: bool.
        first: list, the laws of the first values of the rows.
        existed: bool, whether the folder held the table before.

    Raises:
        BlockingIOError: another table, here or in another process, uses the folder.
        ValueError: it holds another table.
        FileNotFoundError: there is none to read.
        OSError: it was not closed, or cannot be written.
    """

    def __init__(self, path, about, first, read_only=False):
        self.path, self.read_only = path, read_only
        self._lock = self._open()
        try:
            self._take(about, first)
        except BaseException:
            os.close(self._lock)
            raise
        close = os.close if read_only else _closed
        self._close = weakref.finalize(self, close, *([] if read_only else [path]), self._lock)

    def _open(self):
        lock = os.path.join(self.path, _LOCK)
        if self.read_only:
            try:
                return os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise FileNotFoundError(
                    "`storage` with ?mode=ro must be the folder of a table that is there. "
                    f"Received: {self.path}"
                ) from None
        try:
            os.makedirs(self.path, exist_ok=True)
            return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except PermissionError:
            raise PermissionError(
                "`storage` must be a folder that may be written; file:<folder>?mode=ro reads one that may "
                f"not. Received: {self.path}"
            ) from None

    def _take(self, about, first):
        try:
            fcntl.flock(self._lock, (fcntl.LOCK_SH if self.read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(
                f"{self.path} is in use: a folder of `storage` must be that of one table of one process, or "
                "of readers alone (?mode=ro)"
            ) from None
        known = _read(self.path)
        self.existed = known is not None
        if known is None:
            if self.read_only:
                raise FileNotFoundError(
                    "`storage` with ?mode=ro must be the folder of a table that is there. "
                    f"Received: {self.path}, which holds none"
                )
            known = {"table": about, "first": first, "layouts": {}}
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
        self.first, self._layouts = known["first"], known["layouts"]
        if not self.read_only:
            _write(self.path, {**known, "closed": False})

    def check_writable(self):
        """Raises ValueError where the folder is only read."""
        if self.read_only:
            raise ValueError(
                "`storage` of a table that is trained, or whose rows are overwritten, must not end in "
                f"?mode=ro. Received: file:{self.path}?mode=ro"
            )

    def file(self, name):
        """The path of the file `name`."""
        return os.path.join(self.path, f"{name}.rows")

    def layout(self, name):
        """Which file has the rows of the part `name`, and which slots it has: see `Records`."""
        return self._layouts.get(name, {"number": 0, "slots": []})

    def keep_layout(self, name, layout):
        """Writes down what `layout(name)` is from now on."""
        self._layouts[name] = layout
        _write(self.path, {**_read(self.path), "layouts": self._layouts})

    def close(self):
        """Everything is on the disk when it returns. The table must not be used any more."""
        self._close()


def _closed(path, lock):
    if not os.path.exists(os.path.join(path, _ABOUT)):  # somebody removed the folder
        os.close(lock)
        return
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
