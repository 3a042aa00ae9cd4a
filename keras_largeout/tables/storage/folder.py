"""`TableFolder`: the files of one table, and who may use them."""

import contextlib
import fcntl
import itertools
import os
import warnings
import weakref

import tensorflow as tf

from keras_largeout.files.exit_signals import close_on_signals, end_on_signals, leaving_later
from keras_largeout.files.table_files import (
    ABOUT,
    LOCK,
    ROWS,
    check_rows,
    read_about,
    rows_files,
    write_about,
    write_closed,
)
from keras_largeout.replicas.devices import plain_variable

#: How the files are laid out.
FORMAT = "records"

_OPEN = weakref.WeakValueDictionary()  # path -> the `TableFolder` of this process that may write there


class TableFolder:
    """A folder that holds the rows of one table beside their optimizer slots, a file per part.

    It is locked while the table exists: for one trainer, or for any number of readers. Who opens it to train
    while another table of this process does takes it over: that one is closed. What it holds is complete when
    it was closed: by `close`, or when the table goes, or at the end of the process, also by Ctrl-C, SIGTERM
    or SIGHUP (unless the script has a handler that does not end it). A process that is killed by SIGKILL
    leaves it open. Rows may then be torn. They are kept, and the table has none, until all of its rows are
    loaded from a save of the model (`overwriting`), or begin again (`begin_again`): using it before is an
    error.

    Args:
        path: str, of the folder; it is made where it is not there.
        about: JSON-able dict, what the table is. That of an existing folder must be the same.
        first: list, what `LazyInitializer` needs. Of an existing folder its own is kept: see `first`.
        read_only: whether the folder must be there, and nothing in it is changed.
        new: whether a folder beside it is made where there is one.
        overwrite: whether what is in there is deleted.

    Attributes:
        path: str.
        read_only: bool.
        first: list, the laws of the first values of the rows.
        existed: bool, whether the folder held the table before.
        torn: bool, whether what it holds may be torn, and nothing was loaded yet.

    Raises:
        BlockingIOError: another process uses the folder, or this one trains what is to be read only, or the
            reverse.
        ValueError: it holds another table.
        FileNotFoundError: there is none to read.
        OSError: it cannot be written; or `table.json` is damaged or gone, or a file of rows is gone or is not
            the one that was closed.
    """

    _first_number = 0

    def __init__(self, path, about, first, read_only=False, new=False, overwrite=False):
        self.path, self.read_only = _new(path) if new else path, read_only
        self._parts, self._torn, self._unfinished = weakref.WeakSet(), [], set()
        with tf.init_scope(), tf.device("CPU:0"):
            self._is_open = plain_variable(True, trainable=False)
        self._lock = self._open()
        try:
            self._take(about, first, overwrite)
        except BaseException:
            os.close(self._lock)
            raise
        if read_only:
            self._close = weakref.finalize(self, os.close, self._lock)
        else:
            self._close = weakref.finalize(self, _closed, self.path, self._lock, self._torn, self._unfinished)
            _OPEN[os.path.realpath(self.path)] = self
            close_on_signals()

    def _open(self):
        lock = os.path.join(self.path, LOCK)
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

    def _take(self, about, first, overwrite):
        here = None if self.read_only or overwrite else _OPEN.get(os.path.realpath(self.path))
        if here is not None and here.is_open:
            self._check_table(read_about(self.path), about)
            warnings.warn(
                f"{self.path} is the folder of another table of this process, which is closed now. Its rows "
                "are there as that one left them. For its own table end `storage` in ?mode=new",
                stacklevel=2,
            )
            here.close()
        try:
            fcntl.flock(self._lock, (fcntl.LOCK_SH if self.read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(
                f"{self.path} is in use: a folder of `storage` must be that of one table of one process, or "
                "of readers alone (?mode=ro)"
            ) from None
        if overwrite:
            _empty(self.path)
        known = read_about(self.path)
        self.existed = known is not None
        if known is None:
            if self.read_only:
                raise FileNotFoundError(
                    "`storage` with ?mode=ro must be the folder of a table that is there. "
                    f"Received: {self.path}, which holds none"
                )
            known = {"table": about, "first": first, "layouts": {}}
        self._check_table(known, about)
        if self.existed and not known["closed"]:
            self._torn += rows_files(self.path) or [""]
            if self.read_only:
                raise OSError(self._is_torn)
        elif self.existed:
            check_rows(self.path, known)
        self.first, self._layouts = known["first"], known["layouts"]
        if self.torn:  # new files, beside those that are there
            number = 1 + max((layout["number"] for layout in self._layouts.values()), default=0)
            self._layouts, self._first_number = {}, number
        self._never_closed = not self.existed or (known.get("never_closed", False) and not known["closed"])
        if not self.read_only:
            state = {"closed": False, "files": {}, "never_closed": self._never_closed}
            write_about(self.path, {**known, **state})

    def _check_table(self, known, about):
        if known is not None and known["table"] != about:
            raise ValueError(
                f"`storage` must be a folder of this table, {about}, or a new one. "
                f"Received: {self.path} with {known['table']}"
            )

    @property
    def torn(self):
        return bool(self._torn)

    @property
    def _is_torn(self):
        return (
            f"{self.path} was not closed: the process that trained it was killed, or a load of its rows "
            "failed. Rows may be torn. Load the last save of the model (`load_weights`, or `fit` with "
            "`kl.callbacks.BackupAndRestore`), or remove the folder"
        )

    @contextlib.contextmanager
    def overwriting(self, rows):
        """A context in which all rows of a table or slot are overwritten. Files that may be torn go first.

        If it fails, and is not repeated, the folder stays one whose rows may be torn.

        Args:
            rows: str, a name for the rows that are overwritten.
        """
        if self.torn:
            self._remove_torn()
        self._unfinished.add(rows)
        yield
        self._unfinished.remove(rows)

    def begin_again(self):
        """Give rows that may be torn their first values, if the folder was never closed since it was made.

        Rows of a folder that was closed are kept: they may be all that is left of a training.

        Returns:
            bool, whether the rows begin again.
        """
        begins = self.torn and self._never_closed
        if begins:
            self._remove_torn()
        return begins

    def _remove_torn(self):
        write_about(self.path, {**read_about(self.path), "layouts": self._layouts})
        for name in self._torn:
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.remove(os.path.join(self.path, name))
        self._torn.clear()

    def check_writable(self):
        """Raises ValueError where the folder is only read."""
        if self.read_only:
            raise ValueError(
                "`storage` of a table that is trained, or whose rows are overwritten, must not end in "
                f"?mode=ro. Received: file:{self.path}?mode=ro"
            )

    def file(self, name):
        """Return the path of the file `name`."""
        return os.path.join(self.path, f"{name}{ROWS}")

    def layout(self, name):
        """Return which file has the rows of the part `name`, and which slots it has: see `Records`."""
        return self._layouts.setdefault(name, {"number": self._first_number, "slots": []})

    def keep_layout(self, name, layout):
        """Writes down what `layout(name)` is from now on."""
        self._layouts[name] = layout
        if not self.torn:
            write_about(self.path, {**read_about(self.path), "layouts": self._layouts})

    @property
    def is_open(self):
        """True if the table may still be used."""
        return self._close.alive

    def while_open(self, tensor):
        """Return `tensor`, for a step that uses the table: it fails after `close`.

        Raises:
            ValueError: it was closed before.
            OSError: its rows may be torn.
        """
        closed = (
            "A table in files must be open to be used. Received: the one of "
            f"{self.path}, which was closed by `kl.close_files`, or by a table that took the folder over"
        )
        if not self.is_open:
            raise ValueError(closed)
        if self.torn:
            raise OSError(self._is_torn)
        if tf.executing_eagerly():
            return tensor
        with tf.device("CPU:0"), tf.control_dependencies([tf.debugging.Assert(self._is_open, [closed])]):
            return tf.identity(tensor)

    def closes(self, part):
        """Register a part: `part.close()` is called before the folder is closed."""
        self._parts.add(part)

    def close(self):
        """Write everything to the disk and close the files. The table cannot be used after this call."""
        if self.is_open:
            with tf.init_scope():
                self._is_open.assign(False)
            for part in self._parts:
                part.close()
        self._close()


def _new(path):
    """Return a folder that was made just now: `path`, or one beside it with a number."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    for number in itertools.count(1):
        found = path if number == 1 else f"{path}-{number}"
        try:
            os.mkdir(found)
        except FileExistsError:
            continue
        if found != path:
            warnings.warn(
                f"{path} exists and stays as it is: the rows of this table are in {found}. "
                "(`kl.storage` chooses another folder, or overwrites what is there.)",
                stacklevel=2,
            )
        return found


def _empty(path):
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(path, ABOUT))
    _remove_but(path, [])


def _remove_but(path, kept):
    """Removes the files of rows in a folder, except files of these names."""
    for name in rows_files(path):
        if name not in kept:
            os.remove(os.path.join(path, name))


def _closed(path, lock, torn, unfinished):
    with leaving_later():
        _close(path, lock, torn, unfinished)
    if not any(folder.is_open for folder in _OPEN.values()):
        end_on_signals()


def _close(path, lock, torn, unfinished):
    if torn:  # it was not used: what was there before is left as it was
        _remove_but(path, torn)
        os.close(lock)
        return
    if unfinished or not os.path.exists(os.path.join(path, ABOUT)):  # or somebody removed the folder
        os.close(lock)
        return
    write_closed(path)
    os.close(lock)
