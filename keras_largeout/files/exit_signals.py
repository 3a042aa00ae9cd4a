"""The exit of a process that is told to end."""

import _thread
import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
import time
import weakref

_TELL = signal.SIGTERM, signal.SIGHUP
_not_inside = set()  # names of modules in which no handler may raise
_codes = []  # the exit code, once the process was told to end
_told = []  # the signals that told it, of those that its exit status names
_waits = False  # whether the process must not leave yet
_process = None  # the one that has handlers: not its forks


def leave_on_sigterm():
    """Have SIGTERM end the process as `sys.exit` does: half-written files are removed on the way out.

    Where the script has its own handler, that stays.
    """
    if _may_have_handlers() and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, _end):
        signal.signal(signal.SIGTERM, _leave)
        _raise_ignored_exits_again()


def close_on_signals():
    """Have SIGTERM and SIGHUP end the process as Ctrl-C does: open files are closed on the way out.

    Its exit status still says that the signal ended it. Where the script has its own handler, that
    stays. So does SIG_IGN (`nohup`). Threads other than the main one cannot have handlers: nothing changes.
    """
    global _process
    if not _may_have_handlers():
        return
    if _process is None:
        atexit.register(_wait)  # runs before what is closed at the exit
    _process = os.getpid()
    _raise_ignored_exits_again()
    for number in _TELL:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def end_on_signals():
    """Restore the usual effect of the signals, if `close_on_signals` changed it."""
    if _may_have_handlers() and not _waits:
        for number in _TELL:
            if signal.getsignal(number) is _end:
                signal.signal(number, signal.SIG_DFL)


def never_leave_inside(module):
    """Have the handlers try again later where a signal comes while the module of this name runs."""
    _not_inside.add(module)


@contextlib.contextmanager
def leaving_later():
    """A context for what must be done: a signal that comes meanwhile ends the process when it is done."""
    global _waits
    before, _waits = _waits, True
    try:
        yield
    finally:
        _waits = before
    if _told and not _waits:
        _thread.interrupt_main(_told[-1])  # as if it came now: this may be another thread


@contextlib.contextmanager
def leaving_when_told():
    """Ends the process that was told to end where another error came in the place of the exit.

    A signal may arrive while TensorFlow makes an exception of an error: then the exit is lost in a
    RuntimeError of pybind11.
    """
    try:
        yield
    except Exception:
        if _codes:
            sys.exit(_codes[-1])
        raise


def _may_have_handlers():
    return threading.current_thread() is threading.main_thread()


def _leave(number, frame):
    if frame is not None and frame.f_globals.get("__name__") in _not_inside:
        _thread.start_new_thread(_again, (number,))
        return
    _codes.append(128 + number)
    sys.exit(_codes[-1])


def _raise_ignored_exits_again():
    """Have an exit that Python ignores, as it was raised in a finalizer, be raised again after it."""
    before = sys.unraisablehook
    if getattr(before, "func", None) is not _heard:
        sys.unraisablehook = functools.partial(_heard, before)


def _heard(before, ignored):
    if ignored.exc_type is SystemExit and _codes:
        _thread.start_new_thread(_again, (_codes[-1] - 128,))
    else:
        before(ignored)


def _again(number):
    time.sleep(0.001)
    _thread.interrupt_main(number)


def _end(number, frame):
    if os.getpid() != _process:
        _end_now(number)
    _told.append(number)
    if not _waits:
        _leave(number, frame)


def _wait():
    global _waits
    _waits = True


def _say_so():
    if _told and os.getpid() == _process:
        _end_now(_told[0])


def _end_now(number):
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


# At the exit the newest finalizer runs first: what was opened after this import is closed before.
weakref.finalize(_end, _say_so)
