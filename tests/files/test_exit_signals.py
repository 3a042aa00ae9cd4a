"""A process that is told to end: its exit, whatever TensorFlow is doing."""

import signal
import time

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
