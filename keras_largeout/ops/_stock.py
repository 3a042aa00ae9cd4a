"""Whether layers must use stock TensorFlow ops: true while a model is traced for export."""

import contextlib
import threading

_state = threading.local()


@contextlib.contextmanager
def stock_ops():
    """Within this context, in this thread, `is_exporting()` is true."""
    before = is_exporting()
    _state.exporting = True
    try:
        yield
    finally:
        _state.exporting = before


def is_exporting():
    """True while a serving function is traced: layers then take their path of stock ops."""
    return getattr(_state, "exporting", False)
