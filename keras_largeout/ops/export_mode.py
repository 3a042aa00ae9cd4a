"""Whether layers must use stock TensorFlow ops: true while a model is traced for export."""

import contextlib
import threading

_state = threading.local()


@contextlib.contextmanager
def stock_ops():
    """Within this context, in this thread, `is_exporting()` is true."""
    before = getattr(_state, "stand_ins", None)
    _state.stand_ins = {}
    try:
        yield
    finally:
        _state.stand_ins = before


def is_exporting():
    """True while a serving function is traced: layers then take their path of stock ops."""
    return getattr(_state, "stand_ins", None) is not None


def stand_ins():
    """A dict that lives as long as the export: what was made in the place of tables in parts."""
    return _state.stand_ins
