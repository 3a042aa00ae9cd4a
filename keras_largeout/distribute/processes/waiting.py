"""While a process waits for the others of its run: who is missing."""

import contextlib
import logging
import threading

from keras_largeout.distribute.processes.heartbeat import answers

_LOG = logging.getLogger("keras_largeout")
_PATIENCE = 15.0  # seconds until a message says who is missing


@contextlib.contextmanager
def telling_who_is_missing(cluster):
    """Logs which processes are missing: TensorFlow waits for them silently, without a time limit."""
    arrived = threading.Event()

    def tell():
        patience = _PATIENCE
        while not arrived.wait(patience):
            missing = [cluster.name(j, i) for j, i, address in cluster.others() if not answers(address, 1.0)]
            if missing:
                _LOG.warning("Waiting for %s.", ", ".join(missing))
            patience = min(2 * patience, 300.0)

    threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        arrived.set()
