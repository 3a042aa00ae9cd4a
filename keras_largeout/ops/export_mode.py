"""The state of an export: layers use TensorFlow's own ops while a model is traced for one."""

import contextvars

from keras_largeout._context import setting

_export = contextvars.ContextVar("keras_largeout_export", default=None)


class _Export:
    """One export: what was made in the place of tables, by their arrays."""

    def __init__(self, stand_ins, int8):
        self.stand_ins = {} if stand_ins else None
        self.int8, self.quantized = int8, {}


def stock_ops(stand_ins=True, int8=False):
    """Return a context in which `is_exporting()` is true, in this thread.

    Args:
        stand_ins: bool, whether somebody writes the tables in parts that others stand for.
        int8: bool, whether tables of two axes are exported in int8.
    """
    return setting(_export, _Export(stand_ins, int8))


def is_exporting():
    """Return True while a serving function is traced: layers then take their path of stock ops."""
    return _export.get() is not None


def stand_ins():
    """Return a dict that lives as long as the export: what was made in the place of tables in parts.

    None where the export is not ours, and nobody would write them.
    """
    return _export.get().stand_ins


def in_int8():
    """Return whether tables of two axes are exported in int8."""
    return _export.get().int8


def quantized():
    """Return a dict that lives as long as the export: the tables in int8."""
    return _export.get().quantized
