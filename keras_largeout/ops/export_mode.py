"""The state of an export: layers use TensorFlow's own ops while a model is traced for one."""

import contextlib
import threading

_state = threading.local()


class _Export:
    """One export: what was made in the place of tables, by their arrays."""

    def __init__(self, stand_ins, int8):
        self.stand_ins = {} if stand_ins else None
        self.int8, self.quantized = int8, {}


@contextlib.contextmanager
def stock_ops(stand_ins=True, int8=False):
    """A context in which `is_exporting()` is true, in this thread.

    Args:
        stand_ins: bool, whether somebody writes the tables in parts that others stand for.
        int8: bool, whether tables of two axes are exported in int8.
    """
    before = getattr(_state, "export", None)
    _state.export = _Export(stand_ins, int8)
    try:
        yield
    finally:
        _state.export = before


def is_exporting():
    """Return True while a serving function is traced: layers then take their path of stock ops."""
    return getattr(_state, "export", None) is not None


def stand_ins():
    """Return a dict that lives as long as the export: what was made in the place of tables in parts.

    None where the export is not ours, and nobody would write them.
    """
    return _state.export.stand_ins


def in_int8():
    """Return whether tables of two axes are exported in int8."""
    return _state.export.int8


def quantized():
    """Return a dict that lives as long as the export: the tables in int8."""
    return _state.export.quantized
