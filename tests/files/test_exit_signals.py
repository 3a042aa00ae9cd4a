"""A process that is told to end: its exit, whatever TensorFlow is doing."""

import signal
import sys
import time
import weakref

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from keras_largeout.files import exit_signals


@pytest.fixture(autouse=True)
def _not_told(monkeypatch):
    monkeypatch.setattr(exit_signals, "_codes", [])


def test_a_signal_lost_in_an_error_of_tensorflow_ends_a_host():
    with pytest.raises(SystemExit) as end, exit_signals.leaving_when_told():
        try:
            exit_signals._leave(signal.SIGTERM, None)
        except SystemExit:  # as pybind11 does, when a signal arrives while it makes an exception
            raise RuntimeError("UnavailableError REPLACED BY SystemExit: 143") from None
    assert end.value.code == 143


def test_an_error_without_a_signal_stays():
    with pytest.raises(RuntimeError, match="other"), exit_signals.leaving_when_told():
        raise RuntimeError("other")


HANDLE = """
def _handle(self):
    if not asked:
        asked.append(True)
        signal.raise_signal(signal.SIGUSR1)
    return self._context_handle
"""


def test_a_signal_while_a_tensor_is_made_ends_the_process_after_it(monkeypatch):
    """C++ of TensorFlow asks for the context, and crashes where that raises."""
    of_tensorflow = {"__name__": context.__name__, "asked": [], "signal": signal}
    exec(HANDLE, of_tensorflow)
    before = signal.signal(signal.SIGUSR1, exit_signals._leave)
    try:
        with pytest.raises(SystemExit) as end:
            monkeypatch.setattr(context.Context, "_handle", property(of_tensorflow["_handle"]))
            tf.constant([1, 2])
            time.sleep(60)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert end.value.code == 128 + signal.SIGUSR1
    assert of_tensorflow["asked"]


class Mortal:
    pass


def test_a_signal_in_a_finalizer_ends_the_process_after_it(monkeypatch):
    """Python prints what a finalizer raises, and goes on."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # puts it back
    exit_signals._raise_ignored_exits_again()
    before = signal.signal(signal.SIGUSR1, exit_signals._leave)
    try:
        mortal = Mortal()
        weakref.finalize(mortal, signal.raise_signal, signal.SIGUSR1)
        with pytest.raises(SystemExit) as end:
            del mortal
            time.sleep(60)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert end.value.code == 128 + signal.SIGUSR1


def test_other_errors_of_finalizers_are_still_told(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: told.append(ignored.exc_type))
    exit_signals._raise_ignored_exits_again()
    mortal = Mortal()
    weakref.finalize(mortal, divmod, 1, 0)
    del mortal
    assert told == [ZeroDivisionError]


def test_hooks_that_call_each_other_end(monkeypatch):
    """Another library may put its hook between ours of two calls."""
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: told.append(ignored.exc_type))
    exit_signals._raise_ignored_exits_again()
    ours = sys.unraisablehook
    exit_signals._raise_ignored_exits_again()
    assert sys.unraisablehook is ours
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: ours(ignored))
    exit_signals._raise_ignored_exits_again()
    mortal = Mortal()
    weakref.finalize(mortal, divmod, 1, 0)
    del mortal
    assert told == [ZeroDivisionError]
