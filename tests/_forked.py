"""Processes that begin with TensorFlow imported, as that takes 4 to 5 seconds of a processor.

Each is forked from one process that has imported the package and started nothing: it has its own process id,
environment, output and TensorFlow runtime, and can be killed like any other. What differs from a process of
its own is the start of the interpreter and its end (`os._exit` after the exit functions).
"""

import atexit
import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["keras_largeout"])


class Forked:
    """As much of a `subprocess.Popen` as `_cluster.Running` uses; its stderr goes to `stdout`.

    Args:
        command: `[script, ...]`, `["-m", module, ...]` or `["-c", source, ...]`, as after `python`.
        environment: dict, all of its environment. None: that of this process.
    """

    def __init__(self, command, environment=None):
        environment = os.environ if environment is None else environment
        command = list(map(str, command))
        reader, writer = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(target=_become, args=(command, dict(environment), writer))
        self._process.start()
        self.pid = self._process.pid
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()), errors="replace")
        reader.close()

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("forked", timeout)
        return self._process.exitcode


def run(command, environment=None):
    """Runs it to its end: `(exit code, what it printed)`."""
    process = Forked(command, environment)
    with process.stdout:
        text = process.stdout.read()
    return process.wait(), text


def _become(command, environment, output):
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # when its parent ends, which ends with the tests
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(tempfile.gettempdir())
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    output.close()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=True)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.orig_argv = [sys.executable, *command]
    os._exit(_run(command))


def _run(command):
    """Runs it as the interpreter would; the exit code."""
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        elif command[0] == "-c":
            sys.argv = ["-c", *command[2:]]
            exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = command
            sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
            runpy.run_path(command[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
        if not isinstance(code, (int, type(None))):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        code = 1
        try:
            sys.excepthook(*sys.exc_info())
        except SystemExit as end:
            code = end.code
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code or 0
