"""Whether layers must use stock TensorFlow ops: true while a model is traced for export."""

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
    """Within this context, in this thread, `is_exporting()` is true.

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
    """True while a serving function is traced: layers then take their path of stock ops."""
    return getattr(_state, "export", None) is not None


def stand_ins():
    """A dict that lives as long as the export: what was made in the place of tables in parts.

    None where the export is not ours, and nobody would write them.
    """
    return _state.export.stand_ins


def in_int8():
    """Whether tables of two axes are exported in int8."""
    return _state.export.int8


def quantized():
    """A dict that lives as long as the export: the tables in int8."""
    return _state.export.quantized
