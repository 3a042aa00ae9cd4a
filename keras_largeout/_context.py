"""`setting`: a value that holds inside a context, in the thread that has entered it."""

import contextlib


@contextlib.contextmanager
def setting(variable, value):
    """A context in which `variable`, a `contextvars.ContextVar`, has this value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
