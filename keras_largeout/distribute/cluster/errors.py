"""Errors of a cluster, each in one sentence that names the process."""

import contextlib
import re

import tensorflow as tf

_FROM_PS = re.compile(r"remote target /job:ps/replica:0/task:(\d+)")
# A server that was started again does not know what the chief made in the one before.
_FORGOTTEN = (
    "unknown device",
    "Unable to find the relevant tensor remote_handle",
    "Unable to find a context_id",
)


class ServerLostError(RuntimeError):
    """A parameter server ended, and the weights that it held with it.

    Args:
        strategy: `tf.distribute.ParameterServerStrategy`.
        index: int, the number of the server.

    Attributes:
        index: as above.
    """

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy, index: int) -> None:
        cluster = getattr(strategy, "cluster", None)
        name = f"parameter server {index}" if cluster is None else cluster.name("ps", index)
        super().__init__(
            f"{name} was lost, and the weights that it held. Start it and this script again: with "
            "kl.callbacks.BackupAndRestore training goes on from the last epoch."
        )
        self.index = index


class WorkersSilentError(RuntimeError):
    """Every worker stands still.

    Args:
        names: list of str, the workers.
    """

    def __init__(self, names):
        super().__init__(
            f"{' and '.join(names)} did not answer within `heartbeat_timeout`, and no other worker is there. "
            "Start them and this script again: with kl.callbacks.BackupAndRestore training goes on from the "
            "last epoch."
        )


def lost_server(error):
    """Return the number of the parameter server whose end caused `error`, or None."""
    if not isinstance(error, tf.errors.OpError):
        error = getattr(error, "original_exception", None)
    text = str(error)
    found = _FROM_PS.search(text)
    if found is None:
        return None
    gone = isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError))
    forgotten = isinstance(error, tf.errors.InvalidArgumentError) and any(part in text for part in _FORGOTTEN)
    return int(found.group(1)) if gone or forgotten else None


@contextlib.contextmanager
def naming_lost_servers(strategy):
    """Turns what TensorFlow raises when a parameter server has ended into one `ServerLostError`."""
    try:
        yield
    except Exception as error:
        index = lost_server(error)
        if index is None:
            raise
        raise ServerLostError(strategy, index) from None  # TensorFlow has logged what it saw
