"""Child processes that never outlive their parent; what they print is shown under their names, and kept."""

import collections
import contextlib
import ctypes
import os
import re
import selectors
import signal
import subprocess
import sys
import time

from keras_largeout.distribute.processes.log_lines import as_text

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here: nothing may be loaded between fork and exec
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")


class Log:
    """A file to which output is appended. A full disk loses output, and ends nothing.

    Args:
        path: path of the file.
        limit: int, bytes after which the file becomes `PATH.1`, in place of an older one; 0 for no limit.
    """

    def __init__(self, path, limit):
        self._path, self._limit, self._failed = path, limit, False
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed with the process)

    def write(self, data):
        """Append bytes; the `OSError` of the first failure in a row, else None."""
        try:
            if self._limit and 0 < self._file.tell() > self._limit - len(data):
                os.replace(self._path, f"{self._path}.1")
                full, self._file = self._file, open(self._path, "ab", buffering=0)  # noqa: SIM115
                full.close()
            self._file.write(data)
        except OSError as error:
            said, self._failed = self._failed, True
            return None if said else error
        self._failed = False
        return None

    def close(self):
        with contextlib.suppress(OSError):
            self._file.close()


class Child:
    """A running process in its own session.

    Args:
        name: what the console calls it.
        command: list of str.
        environment: dict of str, its whole environment.
        log: path of the file that its output is added to.
        hidden_until: bytes; the console shows nothing before a line that holds them (the file has all).
            Libraries are talkative while they load.
        log_bytes: int, the size at which the file is rotated; 0 for no limit.
        form: a function of `lines.FORMS`. The file has text as it comes, and JSON by the line.

    Attributes:
        stood_still: whether it was killed because it stood still.
    """

    def __init__(self, name, command, environment, log, hidden_until=None, log_bytes=0, form=as_text):
        self.name = name
        self.log, self.stood_still = log, False
        self.ready = hidden_until is None
        self.last_lines = collections.deque(maxlen=25)
        self._hidden_until = hidden_until
        self._file = Log(log, log_bytes)
        self._form = form
        self._rest = b""
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()),
        )
        self.output = self.process.stdout.fileno()
        os.set_blocking(self.output, False)

    def drain(self):
        """Reads what there is to read; `(lines for the console, whether more can come)`."""
        shown = []
        while True:
            try:
                data = os.read(self.output, 1 << 16)
            except BlockingIOError:
                return shown, True
            if not data:
                if self._rest:
                    shown += self._see(self._rest + b"\n")
                    self._rest = b""
                return shown, False
            if self._form is as_text:
                shown += self._keep(data)
            data = self._rest + data
            end = 0
            for match in _LINE.finditer(data):
                shown += self._see(match.group())
                end = match.end()
            self._rest = data[end:]

    def _see(self, line):
        self.last_lines.append(line.decode("utf-8", "replace").rstrip())
        self.ready = self.ready or self._hidden_until in line
        formed = self._form(self.name, line)
        lost = [] if self._form is as_text else self._keep(formed)
        return [*lost, formed] if self.ready else lost

    def _keep(self, data):
        """Write to the file; return a line for the console when the first of it is lost, in a list."""
        error = self._file.write(data)
        if error is None:
            return []
        return [self._form("launch", f"output of {self.name} is lost: {error}\n".encode(), "ERROR")]

    @property
    def stopped(self):
        """True if a signal has stopped the process (SIGSTOP, Ctrl-Z)."""
        with contextlib.suppress(OSError), open(f"/proc/{self.process.pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
        return False

    def send(self, number):
        """Sends a signal to the process and to whatever it started."""
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def close(self):
        """Ends what is left of the process and of whatever it started."""
        self.send(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self._file.close()

    def how_it_ended(self):
        """Return `"was killed by SIGKILL"`, `"ended with exit code 1"`."""
        code = self.process.returncode
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class Console:
    """Waits for output and for ends of children, and passes the output on.

    Args:
        form: a function of `lines.FORMS`.

    Attributes:
        looked: when `wait` was last called, by `time.monotonic`.
    """

    def __init__(self, form=as_text):
        self._form, self.looked = form, time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._wake, wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # any handler: the pipe is woken
        self._selector.register(self._wake, selectors.EVENT_READ, None)

    def add(self, child):
        self._selector.register(child.output, selectors.EVENT_READ, child)

    def wait(self, timeout):
        """Waits until something is printed, a child ends or a signal comes, and prints what there is."""
        self.looked = time.monotonic()
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                while True:
                    try:
                        os.read(self._wake, 512)
                    except BlockingIOError:
                        break
            else:
                self.show(key.data)

    def show(self, child):
        """Passes on what `child` printed since."""
        if child.output not in self._selector.get_map():
            return
        lines, more = child.drain()
        if not more:
            self._selector.unregister(child.output)
        _print(b"".join(lines))

    def remove(self, child):
        self.show(child)
        if child.output in self._selector.get_map():
            self._selector.unregister(child.output)

    def say(self, text, level="INFO"):
        """Print lines of the launcher's own output, at a level of `logging`."""
        _print(b"".join(self._form("launch", f"{line}\n".encode(), level) for line in text.splitlines()))


def _print(data):
    with contextlib.suppress(OSError):  # a full disk, where the console is a file
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _die_with(parent):
    """Runs in the child before it becomes its program: the kernel kills it when its parent ends."""

    def prepare():
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the line above
            os._exit(1)

    return prepare
