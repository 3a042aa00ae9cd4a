"""Large arrays, a chunk of rows at a time: creation, initial values, reading, saving.

Nothing here ever holds a second copy of a table. After its first sparse update TensorFlow copies a variable
at every dense read (also for a slice of it), so rows are read by `tf.gather` and written by scatters, which
never copy.
"""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.ops._library import ops
from keras_largeout.replicas._tensorflow import without_callbacks
from keras_largeout.replicas.devices import device_scope, plain_variable

CHUNK_BYTES = 16 << 20
_CONSTANT = (keras.initializers.Zeros, keras.initializers.Ones, keras.initializers.Constant)
_INDEPENDENT = (
    keras.initializers.RandomUniform,
    keras.initializers.RandomNormal,
    keras.initializers.TruncatedNormal,
)


def rows_per_chunk(shape, itemsize=4):
    """Return how many rows of an array of this shape make one chunk (at least 1)."""
    row = max(1, int(np.prod(shape[1:], dtype=np.int64))) * itemsize
    return max(1, CHUNK_BYTES // row)


def chunk_ranges(shape, itemsize=4):
    """Return `(start, stop)` of every chunk, in order; nothing for an array without rows."""
    step = rows_per_chunk(shape, itemsize)
    return [(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]


def create(shape, dtype, *, name, trainable, device=None, mirrored=False):
    """Creates a `tf.Variable` on large pages where there are such; its values are undefined until written.

    Args:
        shape: tuple of ints, the first one the rows.
        dtype: dtype name.
        name, trainable: as for `tf.Variable`.
        device: device name, or None for TensorFlow's choice.
        mirrored: whether the current strategy makes it, a copy a device; else no strategy has a say.
    """
    make = tf.Variable if mirrored else plain_variable

    def initial_value():
        return ops.largeout_empty_table(shape, dtype=dtype)

    # `tf.device(None)` would forget the device of the caller's scope.
    place = contextlib.nullcontext() if device is None else tf.device(device)
    with tf.init_scope(), place, without_callbacks():
        return make(initial_value, dtype=dtype, trainable=trainable, name=name)


def write_at(variable, indices, rows):
    """Overwrites the rows `indices` (int array) with `rows`, in place, on the device of the variable."""
    with tf.init_scope(), device_scope(variable):
        tf.raw_ops.ResourceScatterUpdate(
            resource=variable.handle,
            indices=tf.constant(indices, tf.int64),
            updates=tf.cast(rows, variable.dtype),
        )


def read_at(variable, indices):
    """Return the rows `indices` (int array) as a NumPy array."""
    with tf.init_scope(), device_scope(variable):
        return tf.gather(variable, tf.constant(indices, tf.int64)).numpy()


def initial_rows(initializer, shape, dtype):
    """Return a callable `(start, stop) -> rows` that draws the rows of `initializer(shape)`.

    A table of one chunk is exactly `initializer(shape, dtype)`. A larger one is drawn chunk by chunk: random
    initializers get one seed a chunk, and those whose scale follows from the shape keep the scale of the
    whole table. One that has a method `rows(shape, dtype, start, stop)` is asked for just the rows; any other
    that is neither of Keras's random ones nor of its constant ones for the whole table at once.
    """
    if hasattr(initializer, "rows"):
        return lambda start, stop: initializer.rows(shape, dtype, start, stop)
    if shape[0] <= rows_per_chunk(shape, tf.as_dtype(dtype).size):
        return lambda start, stop: initializer(shape, dtype=dtype)[start:stop]
    if isinstance(initializer, keras.initializers.VarianceScaling):
        initializer = fixed_scale(initializer, shape)
    if np.ndim(getattr(initializer, "value", 0)):  # `Constant` of a matrix
        values = np.broadcast_to(initializer.value, shape)
        return lambda start, stop: tf.cast(values[start:stop], dtype)
    if isinstance(initializer, _CONSTANT):
        return lambda start, stop: initializer((stop - start, *shape[1:]), dtype=dtype)
    # Only where every value is drawn on its own; an orthogonal table, say, is one piece.
    independent = isinstance(initializer, _INDEPENDENT)
    seed = getattr(initializer, "seed", None) if independent else None
    if isinstance(seed, int):
        config = initializer.get_config()

        def draw(start, stop):
            # Odd multiplier: distinct chunks get distinct seeds.
            chunk = initializer.__class__.from_config(
                {**config, "seed": (seed + 0x9E3779B1 * (start + 1)) % (2**31 - 1)}
            )
            return chunk((stop - start, *shape[1:]), dtype=dtype)

        return draw
    if independent:  # a SeedGenerator gives new values at every call
        return lambda start, stop: initializer((stop - start, *shape[1:]), dtype=dtype)
    whole = None

    def cut(start, stop):
        nonlocal whole
        if whole is None:
            whole = initializer(shape, dtype=dtype)
        return whole[start:stop]

    return cut


def fixed_scale(initializer, shape):
    """Return the RandomUniform / normal initializer that a VarianceScaling is for this shape (its own
    formulas).
    """
    fan_in, fan_out = shape[0], int(np.prod(shape[1:]))
    fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[initializer.mode]
    variance = initializer.scale / max(1.0, fan)
    seed = initializer.seed
    if initializer.distribution == "uniform":
        limit = (3.0 * variance) ** 0.5
        return keras.initializers.RandomUniform(-limit, limit, seed=seed)
    if initializer.distribution == "untruncated_normal":
        return keras.initializers.RandomNormal(0.0, variance**0.5, seed=seed)
    return keras.initializers.TruncatedNormal(0.0, variance**0.5 / 0.87962566103423978, seed=seed)


def key_of(key, index):
    """Return the name under which a store holds chunk `index` of the array `key`."""
    return f"{key}_rows_{index:06d}"


def saved_chunks(store, key):
    """Return the names of the chunks of the array `key` in `store`, in order."""
    names = []
    while key_of(key, len(names)) in store:
        names.append(key_of(key, len(names)))
    return names
