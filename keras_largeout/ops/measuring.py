"""Whether layers are called to be measured: a backward pass then takes no step of a layer's own optimizer."""

import contextlib
import threading

_state = threading.local()


@contextlib.contextmanager
def measuring():
    """Within this context, in this thread, `is_measuring()` is true."""
    before = is_measuring()
    _state.measuring = True
    try:
        yield
    finally:
        _state.measuring = before


def is_measuring():
    """True while `parallelize` measures the layers of a model, which it must not change."""
    return getattr(_state, "measuring", False)
