"""Large arrays, a chunk of rows at a time: creation, initial values, reading, saving.

Nothing here ever holds a second copy of a table. After its first sparse update TensorFlow copies a variable
at every dense read (also for a slice of it), so rows are read by `tf.gather` and written by scatters, which
never copy.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.ops._library import ops

CHUNK_BYTES = 16 << 20
_CONSTANT = (keras.initializers.Zeros, keras.initializers.Ones, keras.initializers.Constant)
_INDEPENDENT = (
    keras.initializers.RandomUniform,
    keras.initializers.RandomNormal,
    keras.initializers.TruncatedNormal,
)


def rows_per_chunk(shape, itemsize=4):
    """How many rows of an array of this shape make one chunk (at least 1)."""
    row = max(1, int(np.prod(shape[1:], dtype=np.int64))) * itemsize
    return max(1, CHUNK_BYTES // row)


def chunk_ranges(shape, itemsize=4):
    """`(start, stop)` of every chunk, in order; nothing for an array without rows."""
    step = rows_per_chunk(shape, itemsize)
    return [(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]


def create(shape, dtype, values, *, name, trainable, device=None):
    """Creates a `tf.Variable` whose rows are written chunk by chunk.

    Args:
        shape: tuple of ints, the first one the rows.
        dtype: dtype name.
        values: callable `(start, stop) -> [stop - start, ...]`, the initial rows.
        name, trainable: as for `tf.Variable`.
        device: device name, or None for TensorFlow's choice.
    """
    with tf.init_scope(), tf.device(device):
        variable = tf.Variable(
            lambda: ops.largeout_empty_table(shape, dtype=dtype),
            dtype=dtype,
            trainable=trainable,
            name=name,
        )
        for start, stop in chunk_ranges(shape, variable.dtype.size):
            write(variable, start, values(start, stop))
    return variable


def write(variable, start, rows):
    """Overwrites the rows from `start` on with `rows`, in place."""
    rows = tf.cast(rows, variable.dtype)
    indices = tf.range(start, start + tf.shape(rows, tf.int64)[0], dtype=tf.int64)
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=indices, updates=rows)


def read(variable, start, stop):
    """Rows `start .. stop` as a NumPy array."""
    return tf.gather(variable, tf.range(start, stop, dtype=tf.int64)).numpy()


def to_numpy(variable):
    """The whole array, one copy of it."""
    shape = tuple(variable.shape)
    out = np.empty(shape, variable.dtype.as_numpy_dtype)
    for start, stop in chunk_ranges(shape, variable.dtype.size):
        out[start:stop] = read(variable, start, stop)
    return out


def initial_rows(initializer, shape, dtype):
    """A callable `(start, stop) -> rows` that draws the rows of `initializer(shape)`.

    A table of one chunk is exactly `initializer(shape, dtype)`. A larger one is drawn chunk by chunk: random
    initializers get one seed a chunk, and those whose scale follows from the shape keep the scale of the
    whole table. An initializer that is neither of Keras's random ones nor of its constant ones is asked for
    the whole table at once.
    """
    if shape[0] <= rows_per_chunk(shape, tf.as_dtype(dtype).size):
        return lambda start, stop: initializer(shape, dtype=dtype)[start:stop]
    if isinstance(initializer, keras.initializers.VarianceScaling):
        initializer = _fixed_scale(initializer, shape)
    if isinstance(initializer, _CONSTANT):
        with tf.init_scope():  # not in the graph of a train step that is being traced and makes its slots
            chunk = initializer((rows_per_chunk(shape, tf.as_dtype(dtype).size), *shape[1:]), dtype=dtype)
        return lambda start, stop: chunk[: stop - start]
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


def _fixed_scale(initializer, shape):
    """The RandomUniform / normal initializer that a VarianceScaling is for this shape (its own formulas)."""
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


def _key(key, index):
    return f"{key}_rows_{index:06d}"


def save_rows(store, key, variable):
    """Writes the rows of `variable` to `store`: `{key}_rows_000000`, `{key}_rows_000001`, ..., a chunk each.

    Args:
        store: the mutable mapping that Keras hands to `save_own_variables`.
        key: str without "/".
        variable: a large `keras.Variable` or `tf.Variable`, `[rows, ...]`.
    """
    variable = getattr(variable, "value", variable) if isinstance(variable, keras.Variable) else variable
    for index, (start, stop) in enumerate(chunk_ranges(tuple(variable.shape), variable.dtype.size)):
        rows = read(variable, start, stop)
        # HDF5 has no bfloat16; float32 holds every one of its values.
        store[_key(key, index)] = rows.astype("float32") if variable.dtype == tf.bfloat16 else rows


def load_rows(store, key, variable):
    """Reads back what `save_rows` wrote, whatever the chunks were, in place.

    Raises:
        ValueError: the store holds no such rows, or rows of another shape; `variable` is then unchanged.
    """
    native = variable.value if isinstance(variable, keras.Variable) else variable
    start = 0
    for name in check_rows(store, key, tuple(native.shape)):
        rows = np.asarray(store[name])
        write(native, start, rows)
        start += rows.shape[0]


def check_rows(store, key, shape):
    """The names of the chunks that `save_rows` wrote, in order.

    Raises:
        ValueError: the store holds no such rows, or rows of another shape.
    """
    names = []
    while _key(key, len(names)) in store:
        names.append(_key(key, len(names)))
    if not names and 0 not in shape:
        raise ValueError(f"The weights file holds no rows for `{key}`. Expected an array of shape {shape}.")
    saved = (sum(store[n].shape[0] for n in names), *store[names[0]].shape[1:]) if names else shape
    if tuple(saved) != shape:
        raise ValueError(
            f"The weights file does not fit `{key}`: expected shape {shape}. Received: shape {tuple(saved)}."
        )
    return names
