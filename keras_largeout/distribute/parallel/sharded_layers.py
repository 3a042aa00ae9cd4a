"""Layers whose weights are cut over devices: `Dense` by columns or by rows, `Embedding` by columns.

A layer stays one of its class, with its config, and its files are those of a whole layer. Only where it is
built and called is another way taken.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_largeout._keras import is_symbolic, mask_of, uncast, with_mask
from keras_largeout.distribute.parallel.recording import compute_there, sum_there, with_gradients_there
from keras_largeout.distribute.parallel.sharded_slots import ShardedWeight
from keras_largeout.distribute.parallel.transfers import note_transfer
from keras_largeout.ops import export_mode

#: Activations that look at one value at a time: they work on a part of the columns.
_ELEMENTWISE = {
    "elu", "exponential", "gelu", "hard_sigmoid", "hard_silu", "leaky_relu", "linear", "mish", "relu",
    "relu6", "selu", "sigmoid", "silu", "softplus", "softsign", "tanh",
}  # fmt: skip
_SUMMABLE = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)


class Columns:
    """A tensor `[..., n]` whose columns are on several devices.

    Attributes:
        parts: list of tensors, one per device.
        devices: their names.
        mask: the mask of the whole, or None.
    """

    def __init__(self, parts, devices, mask=None):
        self.parts, self.devices, self.mask = parts, devices, mask
        self._whole = None

    def whole(self):
        """Return the tensor, on the first device; one for all who ask."""
        if self._whole is None:
            home = self.devices[0]
            for part, device in zip(self.parts, self.devices):
                note_transfer(part, device, home)
            (whole,) = compute_there(home, lambda *parts: [tf.concat(parts, -1)], self.parts, list)
            self._whole = with_mask(whole, self.mask)
        return self._whole


def spread(value, devices):
    """Return `value` for each device; its gradients are summed on the first one."""

    def gradient(*upstream):
        return [sum_there(devices[0], upstream)]

    for device in devices:
        note_transfer(value, devices[0], device)
    return with_gradients_there(devices[0], gradient, [value] * len(devices), [value], [])


def cut_sizes(columns, parts):
    """Return how many columns each part has: as equal as can be, the longer ones first."""
    return [columns // parts + (i < columns % parts) for i in range(parts)]


def is_elementwise(layer):
    """Return whether a layer without weights works on a part of the columns as on all of them."""
    if isinstance(layer, keras.layers.Activation):
        return _is_elementwise(layer.activation)
    return isinstance(layer, (keras.layers.ReLU, keras.layers.LeakyReLU, keras.layers.ELU))


def stays_in_columns(layer):
    """Return whether what a layer returns that is cut by columns can stay so: not where its activation
    needs all.
    """
    return isinstance(layer, keras.layers.Embedding) or _is_elementwise(layer.activation)


def _is_elementwise(activation):
    return getattr(activation, "__name__", "") in _ELEMENTWISE


def can_be_cut(layer, devices, by="columns"):
    """Return whether the weights of a built layer may be cut over so many devices with the same numbers."""
    if type(layer) is keras.layers.Dense:
        plain = layer.kernel_constraint is None and layer.bias_constraint is None
        penalties = [layer.kernel_regularizer, layer.bias_regularizer]
        size = layer.units if by == "columns" else layer.kernel.shape[0]
    elif type(layer) is keras.layers.Embedding and by == "columns":
        plain, penalties = layer.embeddings_constraint is None, [layer.embeddings_regularizer]
        size = layer.output_dim
    else:
        return False
    adapted = getattr(layer, "lora_enabled", False) or getattr(layer, "quantization_mode", None)
    plain = plain and not adapted and layer.activity_regularizer is None
    return plain and size >= devices and all(p is None or isinstance(p, _SUMMABLE) for p in penalties)


def cut(layer, devices, by):
    """Make a layer that is not built yet create its weights in parts.

    Args:
        layer: `Dense` or `Embedding`; it is changed.
        devices: names.
        by: "columns", or for a `Dense` "rows": of its kernel.

    Returns:
        A `CutDense` or `CutEmbedding`: what calls it.
    """
    return (CutDense if isinstance(layer, keras.layers.Dense) else CutEmbedding)(layer, devices, by)


class _Cut:
    def __init__(self, layer, devices, by):
        self.layer, self.devices, self.by = layer, devices, by
        self.cut_weights = []
        layer.build, layer.call = self._build, self._call
        layer.save_own_variables, layer.load_own_variables = self._save, self._load
        layer.supports_jit = False

    def _parts(self, name, shape, axis, **kwargs):
        """Return the `ShardedWeight` of a weight of this shape."""
        parts, sizes = [], cut_sizes(shape[axis], len(self.devices))
        for i, (device, size) in enumerate(zip(self.devices, sizes)):
            with tf.device(device):
                part = (*shape[:axis], size, *shape[axis + 1 :])
                parts.append(self.layer.add_weight(shape=part, name=f"{name}_{i}", **kwargs))
        self.cut_weights.append(ShardedWeight(parts, axis))
        return self.cut_weights[-1]

    def _whole(self, weight):
        self.cut_weights.append(ShardedWeight([weight], 0))
        return self.cut_weights[-1]

    def _save(self, store):
        for i, weight in enumerate(self.cut_weights):
            store[str(i)] = weight.numpy()

    def _load(self, store):
        for i, weight in enumerate(self.cut_weights):
            weight.assign(np.asarray(store[str(i)]), self.layer.name)

    def _cast(self, value):
        return tf.cast(value, self.layer.compute_dtype)

    def _call(self, inputs, **_):
        """Return the whole outputs, for callers outside of a section."""
        if is_symbolic() or export_mode.is_exporting():
            return self._plainly(inputs)
        result = self(inputs)
        return result.whole() if isinstance(result, Columns) else result


class CutEmbedding(_Cut):
    def _build(self, input_shape=None):
        layer = self.layer
        self._rows = self._parts(
            "embeddings",
            (layer.input_dim, layer.output_dim),
            1,
            initializer=layer.embeddings_initializer,
            regularizer=layer.embeddings_regularizer,
        )
        layer.built = True

    def _plainly(self, ids):
        return tf.gather(self._cast(self._rows.tensor()), tf.cast(ids, tf.int32))

    def __call__(self, ids):
        def rows(part):
            return lambda: [self._cast(tf.gather(uncast(part), ids))]

        ids = tf.cast(ids, tf.int32)
        parts = [
            compute_there(device, rows(part), [], lambda part=part: [uncast(part)])[0]
            for part, device in zip(self._rows.parts, self.devices)
        ]
        return Columns(parts, self.devices, self.layer.compute_mask(ids))


class CutDense(_Cut):
    def _build(self, input_shape):
        layer, by_columns = self.layer, self.by == "columns"
        kernel = {"initializer": layer.kernel_initializer, "regularizer": layer.kernel_regularizer}
        bias = {"initializer": layer.bias_initializer, "regularizer": layer.bias_regularizer}
        self._kernel = self._parts("kernel", (input_shape[-1], layer.units), int(by_columns), **kernel)
        self._bias = None
        if layer.use_bias and by_columns:
            self._bias = self._parts("bias", (layer.units,), 0, **bias)
        elif layer.use_bias:
            with tf.device(self.devices[0]):
                self._bias = self._whole(layer.add_weight(shape=(layer.units,), name="bias", **bias))
        layer.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: input_shape[-1]})
        layer.built = True

    def _plainly(self, inputs):
        result = keras.ops.matmul(self._cast(inputs), self._cast(self._kernel.tensor()))
        result = result if self._bias is None else result + self._cast(self._bias.tensor())
        return self.layer.activation(result)

    def __call__(self, inputs):
        return self._by_columns(inputs) if self.by == "columns" else self._by_rows(inputs)

    def _by_columns(self, inputs):
        whole = inputs.whole() if isinstance(inputs, Columns) else inputs
        here = stays_in_columns(self.layer)
        parts = []
        for i, x in enumerate(spread(self._cast(whole), self.devices)):
            kernel, bias = self._kernel.parts[i], None if self._bias is None else self._bias.parts[i]
            parts.append(self._computed(i, [x], kernel, bias, here)[0])
        columns = Columns(parts, self.devices, mask_of(whole))
        if here:
            return columns
        (result,) = compute_there(
            self.devices[0], lambda x: [self.layer.activation(x)], [columns.whole()], list
        )
        return result

    def _by_rows(self, inputs):
        if not isinstance(inputs, Columns):
            sizes = cut_sizes(inputs.shape[-1], len(self.devices))
            home = self.devices[0]
            parts = compute_there(home, lambda x: tf.split(x, sizes, -1), [self._cast(inputs)], list)
            for part, device in zip(parts, self.devices):
                note_transfer(part, home, device)
        else:
            parts = inputs.parts
        sums = [
            self._computed(i, [self._cast(x)], self._kernel.parts[i], None, False)[0]
            for i, x in enumerate(parts)
        ]
        for each, device in zip(sums, self.devices):
            note_transfer(each, device, self.devices[0])
        bias = None if self._bias is None else self._bias.parts[0]

        def total(*sums):
            result = tf.add_n(list(sums))
            return [self.layer.activation(result if bias is None else result + self._cast(uncast(bias)))]

        own = [] if bias is None else [uncast(bias)]
        return compute_there(self.devices[0], total, sums, lambda: own)[0]

    def _computed(self, i, inputs, kernel, bias, activate):
        def product(x):
            result = keras.ops.matmul(x, self._cast(uncast(kernel)))
            result = result if bias is None else result + self._cast(uncast(bias))
            return [self.layer.activation(result) if activate else result]

        variables = [uncast(w) for w in (kernel, bias) if w is not None]
        return compute_there(self.devices[i], product, inputs, lambda: variables)
