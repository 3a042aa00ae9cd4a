"""How a process leaves that is told to end."""

import signal
import sys
import threading


def leave_on_sigterm():
    """SIGTERM ends the process as `sys.exit` does: what is half written is removed on the way out.

    Where the script has a handler of its own, that stays.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)


def _leave(number, frame):
    sys.exit(128 + number)
