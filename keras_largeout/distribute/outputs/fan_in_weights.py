"""The weights of a layer with fixed fan-in: kernel, bias, and which input each connection comes from."""

import math
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.ops.fan_in.rewire import fan_in_connections, fan_in_degrees
from keras_largeout.replicas.collectives import all_reduce_sum
from keras_largeout.replicas.devices import device_scope
from keras_largeout.tables import chunks
from keras_largeout.tables.array import ShardedArray
from keras_largeout.tables.row_range import RowRange, saved_shape
from keras_largeout.tables.table import ShardedTable


class Connections(keras.initializers.Initializer):
    """Different inputs for every class, uniform; they depend on seed and class alone.

    Args:
        num_inputs: int, inputs are `0 .. num_inputs - 1`.
        seed: int.
    """

    def __init__(self, num_inputs, seed):
        self.num_inputs, self.seed = num_inputs, seed

    def __call__(self, shape, dtype=None):
        return self.rows(shape, dtype, 0, shape[0])

    def rows(self, shape, dtype, start, stop):
        """Return the rows `start .. stop` of what a call with this shape gives."""
        return fan_in_connections(
            stop - start, shape[1], self.num_inputs, (self.seed, 0), first_class=start, dtype=dtype
        )


class Part(NamedTuple):
    """The weights of some classes, on one device: `tf.Variable`s `[n, fan_in]`, `[n, fan_in]`, `[n]` or None.

    `kernel`, `connections`, `bias`: of the classes `first_class .. first_class + n`. `index`: of the device.
    """

    kernel: tf.Variable
    connections: tf.Variable
    bias: tf.Variable
    first_class: int
    index: int

    @property
    def operands(self):
        """The operands of the ops."""
        return self.kernel, self.connections, self.bias

    def on_its_device(self):
        """Return a context in which ops run where the weights are."""
        return device_scope(self.kernel)


class FanInWeights:
    """Kernel and connections `[num_classes, fan_in]`, and a bias `[num_classes]` if there is one.

    Over several devices each has a run of classes. All that belongs to a class is on one device. All
    classes have equally many connections, so all devices have the same work.

    Args:
        num_classes, fan_in, num_inputs: ints.
        dtype: of the kernel, float32 or bfloat16; the bias is float32, connections uint16 or uint32.
        use_bias: bool.
        kernel_initializer: None: uniform in +-1/sqrt(fan_in).
        bias_initializer: of the bias.
        seed: int.
        trainable: bool, whether an optimizer of the model trains kernel and bias.

    Attributes:
        kernel, bias: `ShardedTable`s; `bias` may be None. connections: `ShardedArray`.
        kernel_initializer: the initializer of the kernel.
    """

    def __init__(
        self,
        num_classes,
        fan_in,
        num_inputs,
        dtype,
        use_bias,
        kernel_initializer,
        bias_initializer,
        seed,
        trainable,
    ):
        shape, limit = (num_classes, fan_in), 1 / math.sqrt(fan_in)
        if kernel_initializer is None:
            kernel_initializer = keras.initializers.RandomUniform(-limit, limit, seed=seed)
        self.num_inputs, self.fan_in, self.kernel_initializer = num_inputs, fan_in, kernel_initializer
        make = {"trainable": trainable, "placement": "range"}
        self.kernel = ShardedTable(shape, kernel_initializer, dtype=dtype, name="kernel", **make)
        self.bias = ShardedTable(shape[:1], bias_initializer, name="bias", **make) if use_bias else None
        self.connections = ShardedArray(
            shape,
            self.kernel,
            Connections(num_inputs, seed),
            dtype="uint16" if num_inputs <= 2**16 else "uint32",
            name="connections",
            trainable=False,
        )

    @property
    def tables(self):
        return [self.kernel] if self.bias is None else [self.kernel, self.bias]

    @property
    def trainable(self):
        """True if the model's optimizer trains kernel or bias."""
        return any(shard.trainable for table in self.tables for shard in table.shards)

    @property
    def initialized(self):
        """False only while Keras builds a model symbolically and has not created its variables yet."""
        return self.connections.initialized and all(table.initialized for table in self.tables)

    def parts(self):
        """Return a `Part` for each device that has classes, in their order."""
        offsets = self.kernel.placement.offsets
        return [
            Part(
                kernel.value,
                self.connections.parts[index].value,
                None if self.bias is None else self.bias.array.parts[index].value,
                int(offsets[index]),
                index,
            )
            for index, kernel in self.kernel.array.parts.items()
        ]

    def in_degrees(self):
        """Return how many connections each input has: int64 array `[num_inputs]`."""
        degrees = np.zeros(self.num_inputs, np.int64)
        for part in self.parts():
            with part.on_its_device():
                degrees += fan_in_degrees(part.connections, self.num_inputs).numpy()
        return all_reduce_sum(self.kernel.hosts, tf.constant(degrees)).numpy()

    def save(self, store):
        for table in self.tables:
            table.save(store)
        self.connections.save(store, "connections")
        store["num_inputs"] = np.array(self.num_inputs)

    def check(self, store):
        """Raises ValueError, naming what is different, unless `load` could read `store`."""
        own = {"fan_in": self.fan_in, "inputs": self.num_inputs, "use_bias": self.bias is not None}
        connections = saved_shape(store, "connections")
        saved = {
            "fan_in": None if connections is None else connections[1],
            "inputs": int(np.asarray(store["num_inputs"])) if "num_inputs" in store else None,
            "use_bias": saved_shape(store, "bias") is not None,
        }
        wrong = [key for key in own if own[key] != saved[key]]
        if wrong:
            expected, received = (
                ", ".join(f"{key}={values[key]}" for key in wrong) for values in (own, saved)
            )
            raise ValueError(
                f"The weights file is of another layer: expected {expected}. Received: a file with {received}"
            )
        for table in self.tables:
            table.check(store)
        RowRange(self.connections).check(store, "connections")
        self._check_connections(store)

    def _check_connections(self, store):
        """Raises ValueError for a saved connection to an input that does not exist."""
        start = 0
        for name in chunks.saved_chunks(store, "connections"):
            rows = np.asarray(store[name])
            good = (rows >= 0) & (rows < self.num_inputs)
            if not good.all():
                row, column = np.unravel_index(np.argmin(good), rows.shape)
                raise ValueError(
                    f"`connections` must be in [0, {self.num_inputs}), the inputs of the layer. "
                    f"Received: a file with connections[{start + row}, {column}] = {rows[row, column]}"
                )
            start += len(rows)

    def load(self, store):
        """Reads back what `save` wrote.

        Raises:
            ValueError: as `check`; nothing is then changed.
        """
        self.check(store)
        for table in self.tables:
            table.load(store)
        self.connections.load(store, "connections")
