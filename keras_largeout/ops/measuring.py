"""The state of a trial: while layers are measured, a backward pass takes no step of a layer's own
optimizer.
"""

import contextlib
import threading

_state = threading.local()


@contextlib.contextmanager
def measuring():
    """A context in which `is_measuring()` is true, in this thread."""
    before = is_measuring()
    _state.measuring = True
    try:
        yield
    finally:
        _state.measuring = before


def is_measuring():
    """Return True while `parallelize` measures the layers of a model, which it must not change."""
    return getattr(_state, "measuring", False)
