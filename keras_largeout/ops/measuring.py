"""The state of a trial: while layers are measured, a backward pass takes no step of a layer's own
optimizer.
"""

import contextvars

from keras_largeout._context import setting

_measuring = contextvars.ContextVar("keras_largeout_measuring", default=False)


def measuring():
    """Return a context in which `is_measuring()` is true, in this thread."""
    return setting(_measuring, True)


def is_measuring():
    """Return True while `parallelize` measures the layers of a model, which it must not change."""
    return _measuring.get()
