"""A watch that notices parameter servers that no longer answer."""

import threading
import time

from keras_largeout.distribute.replicas._tensorflow import is_alive
from keras_largeout.distribute.replicas.devices import processes

_SECONDS = 3.0


class ServerWatch:
    """Asks the parameter servers every few seconds, in its own thread, whether they still answer.

    Most often TensorFlow finds out by itself, in a step that needs the server. But a step may also wait for
    an answer that never comes.

    Attributes:
        lost: the index of a server that did not answer twice in a row, or None.
    """

    def __init__(self):
        self.lost = None
        self._missed = [0] * len(processes("ps"))
        threading.Thread(target=self._run, name="keras_largeout_servers", daemon=True).start()

    def _run(self):
        while self.lost is None:
            time.sleep(_SECONDS)
            for index in range(len(self._missed)):
                # A server that stands still holds up this thread and nothing else.
                self._missed[index] = 0 if is_alive("ps", index) else self._missed[index] + 1
                if self._missed[index] == 2:
                    self.lost = index
