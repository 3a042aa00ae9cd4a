"""Imports TensorFlow without what it says on its start: import this before anything that imports TensorFlow.

Some of it is printed before TensorFlow can be told not to (oneDNN, missing GPUs), so for that moment the
standard error goes to a file, which is shown where something fails. Later only Python speaks: what its
exceptions say is what TensorFlow would log as an error. `TF_CPP_MIN_LOG_LEVEL=0` shows everything.

Keras warns at the end of each dataset of unknown size, as of files that are read while a model trains: that
is left out too.
"""

import contextlib
import os
import sys
import tempfile
import warnings


@contextlib.contextmanager
def held_back():
    """What C++ code writes to the standard error meanwhile is shown only if there is an exception."""
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(shown, 2)
            said.seek(0)
            os.write(2, said.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)


wanted = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") in ("0", "1")
with contextlib.nullcontext() if wanted else held_back():
    import tensorflow as tf

    tf.config.list_physical_devices()  # looks for GPUs, and says so

warnings.filterwarnings("ignore", message="Your input ran out of data")
