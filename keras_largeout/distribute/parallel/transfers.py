"""The traffic between devices after `parallelize` placed the layers of a model, counted in its steps."""

import contextvars

import numpy as np
import tensorflow as tf

from keras_largeout._context import setting
from keras_largeout.replicas.devices import plain_variable
from keras_largeout.tables.shard import ShardVariable

#: That which counts while a step is traced.
_counter = contextvars.ContextVar("keras_largeout_transfers", default=None)
_HOST = "CPU:0"


def note_transfer(value, source, target):
    """Counts a tensor that one device sends to another, where somebody counts.

    Args:
        value: dense tensor.
        source, target: names of devices.
    """
    counter = _counter.get()
    if counter is not None and source != target and isinstance(value, tf.Tensor):
        counter.note(value, source, target)


class TransferCounter:
    """Counts bytes between devices, forward and back: each tensor has a gradient of its size.

    It is one of the counters of `callbacks/_counting.py`.

    Args:
        devices: sequence of names.
    """

    def __init__(self, devices):
        self.devices = tuple(devices)
        self._noted = []
        with tf.init_scope(), tf.device(_HOST):
            self._bytes = plain_variable(np.zeros([len(devices)] * 2, np.int64), trainable=False)
            self._steps = plain_variable(np.int64(0), trainable=False)

    def counting(self):
        """Return a context in which all transfers traced are counted, and those before it are forgotten."""
        self._noted = []
        return setting(_counter, self)

    def note(self, value, source, target):
        """See `note_transfer`."""
        if source in self.devices and target in self.devices:
            place = [self.devices.index(source), self.devices.index(target)]
            back = value.dtype.is_floating
            self._noted.append((place, back, tf.size(value, tf.int64) * value.dtype.size))

    def end_step(self):
        """Adds up what the step has noted."""
        with tf.device(_HOST):
            self._steps.assign_add(1)
            places = [place for place, _, _ in self._noted]
            sizes = [size for _, _, size in self._noted]
            for (source, target), back, size in list(self._noted):
                if back:
                    places.append([target, source])
                    sizes.append(size)
            if sizes:
                self._bytes.assign_add(tf.scatter_nd(places, tf.stack(sizes), [len(self.devices)] * 2))
        self._noted = []

    def bytes_per_step(self):
        """Return float64 `[devices, devices]`: entry `[i, j]` is what device i sent to device j in a step."""
        return self._bytes.numpy() / max(1, int(self._steps.numpy()))

    def reset(self):
        """Forgets what was counted."""
        self._bytes.assign(tf.zeros_like(self._bytes))
        self._steps.assign(0)


def memory_of(variables, devices):
    """Return int64 `[devices]`: the bytes of variables on each device, with slots that tables keep beside
    them.

    Args:
        variables: Keras variables: weights, optimizer slots.
        devices: sequence of names.
    """
    memory = np.zeros(len(devices), np.int64)
    slots = [slot for v in variables if isinstance(v, ShardVariable) for slot in v.slots()]
    for variable in {id(v): v for v in (*variables, *slots)}.values():
        value = variable.value
        for i, device in enumerate(devices):
            if str(value.device).endswith(f":{device}"):
                memory[i] += int(np.prod(value.shape)) * value.dtype.size
    return memory
