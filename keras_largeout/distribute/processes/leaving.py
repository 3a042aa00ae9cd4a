"""The exit of a process that is told to end."""

import contextlib
import signal
import sys
import threading

_codes = []  # the exit code, once the process was told to end


def leave_on_sigterm():
    """Have SIGTERM end the process as `sys.exit` does: half-written files are removed on the way out.

    Where the script has a handler of its own, that stays.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)


@contextlib.contextmanager
def leaving_when_told():
    """Ends the process that was told to end where another error came in the place of the exit.

    A signal may arrive while TensorFlow makes an exception of an error of its own: then the exit is lost in a
    RuntimeError of pybind11.
    """
    try:
        yield
    except Exception:
        if _codes:
            sys.exit(_codes[-1])
        raise


def _leave(number, frame):
    _codes.append(128 + number)
    sys.exit(_codes[-1])
