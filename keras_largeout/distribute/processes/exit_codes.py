"""The exit codes of a run on several processes. `docs/guides/operate.md` has the table for operators."""

import sys

#: The script has ended by itself; a server was told to end, and did.
SUCCESS = 0
#: An error that nobody caught; a server that could not start. Python's own code.
FAILED = 1
#: The command line, `TF_CONFIG` or the script's name is wrong: another start ends in the same way.
MISCONFIGURED = 2
#: A parameter server, a host, the last worker or the chief was lost: another start goes on from the backup.
#: (`EX_TEMPFAIL` of <sysexits.h>.)
LOST = 75
#: Added to the number of the signal that ended a process.
SIGNAL = 128


def of_process(returncode):
    """Return the exit code as a shell gives it, of a `returncode` of `subprocess`."""
    return SIGNAL - returncode if returncode < 0 else returncode


def exit_as_lost(was_lost):
    """Have an error that nobody catches end this process with `LOST`, after Python has printed it.

    Args:
        was_lost: function of the error; returns True where it says that another process was lost.
    """
    before = sys.excepthook

    def hook(kind, error, trace):
        before(kind, error, trace)
        if was_lost(error):
            raise SystemExit(LOST)  # what was registered for the exit still runs

    sys.excepthook = hook
