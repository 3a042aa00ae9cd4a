"""`LazyInitializer`: the first values of single rows, from a seed and the row alone.

A table in a file is not written when it is made. A row that was never written has these values, whenever it
is asked for, and whatever was asked for before.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.ops.mixing import mixed, shifted
from keras_largeout.tables import chunks

_CONSTANT, _UNIFORM, _NORMAL, _TRUNCATED = "constant", "uniform", "normal", "truncated_normal"
_TAIL = 0.022750131948179195  # of the standard normal distribution, below -2


class LazyInitializer:
    """The first values of an array's rows.

    They have the distribution of the initializer, and are not its numbers: Keras's draw many rows at a time.

    Args:
        laws: list of `(first row, law, a, b, seed)`, ascending. From that row on values are `a` ("constant"),
            uniform in `[a, b)`, or normal with mean `a` and standard deviation `b` ("normal", or
            "truncated_normal": within two standard deviations, as Keras's).
        shape: tuple of ints, of the array.
        dtype: dtype name.
    """

    def __init__(self, laws, shape, dtype):
        self.laws, self.shape, self.dtype = [tuple(law) for law in laws], tuple(shape), dtype

    @classmethod
    def of(cls, initializer, shape, dtype):
        """Return the values that a Keras initializer asks for.

        Raises:
            ValueError: none of Zeros, Ones, Constant, RandomUniform, RandomNormal, TruncatedNormal and those
                that scale with the shape, such as GlorotUniform.
        """
        sections = getattr(initializer, "sections", None)
        if sections is None:
            return cls([(0, *_law(initializer, shape))], shape, dtype)
        parts = zip(sections, initializer.initializers)
        return cls([(s.start, *_law(i, (s.rows, *shape[1:]))) for s, i in parts], shape, dtype)

    @property
    def are_zero(self):
        """True if all of them are zero, as in a new file."""
        return all(law == _CONSTANT and a == 0 for _, law, a, _, _ in self.laws)

    def __call__(self, rows):
        """Return the values of `rows`, int64 `[n]`: `[n, ...]`, of the dtype of the array."""
        width = int(np.prod(self.shape[1:], dtype=np.int64))
        starts, laws, a, b, seeds = zip(*self.laws)
        of = tf.searchsorted(tf.constant(starts, tf.int64), rows, side="right") - 1
        a, b = (tf.gather(tf.constant(values, tf.float32), of)[:, None] for values in (a, b))
        random = sorted({law for law in laws if law != _CONSTANT})
        values = tf.broadcast_to(a, [tf.size(rows), width])
        if random:
            here = rows - tf.gather(tf.constant(starts, tf.int64), of)
            counter = here[:, None] * width + tf.range(width, dtype=tf.int64)
            bits = mixed(mixed(counter) + tf.gather(tf.constant(seeds, tf.int64), of)[:, None])
            # 2^-53 times an odd half: never 0, never 1.
            unit = (tf.cast(shifted(bits, 11), tf.float64) + 0.5) * 2.0**-53
        for law in random:
            drawn = a + _drawn(law, unit, a, b)
            chosen = tf.gather(tf.constant([one == law for one in laws]), of)[:, None]
            values = tf.where(chosen, drawn, values)
        return tf.cast(tf.reshape(values, [-1, *self.shape[1:]]), self.dtype)


def _drawn(law, unit, a, b):
    """Return what is added to `a`: float32, from float64 numbers between 0 and 1."""
    if law == _UNIFORM:
        return tf.cast(unit, tf.float32) * (b - a)
    if law == _TRUNCATED:
        unit = _TAIL + unit * (1 - 2 * _TAIL)
    return tf.cast(tf.math.ndtri(unit), tf.float32) * b


def _law(initializer, shape):
    """Return `(law, a, b, seed)` of a Keras initializer."""
    keras_s = keras.initializers
    if isinstance(initializer, keras_s.VarianceScaling):
        initializer = chunks.fixed_scale(initializer, shape)
    constants = {keras_s.Zeros: 0.0, keras_s.Ones: 1.0}
    for kind, value in constants.items():
        if isinstance(initializer, kind):
            return _CONSTANT, value, 0.0, 0
    if isinstance(initializer, keras_s.Constant) and np.ndim(initializer.value) == 0:
        return _CONSTANT, float(initializer.value), 0.0, 0
    if isinstance(initializer, keras_s.RandomUniform):
        return _UNIFORM, initializer.minval, initializer.maxval, _seed(initializer)
    for kind, law in ((keras_s.RandomNormal, _NORMAL), (keras_s.TruncatedNormal, _TRUNCATED)):
        if isinstance(initializer, kind):
            return law, initializer.mean, initializer.stddev, _seed(initializer)
    raise ValueError(
        "`initializer` of a table in files must be one of Keras's that draws each value by itself: constant, "
        f"uniform or normal. Received: {initializer!r}"
    )


def _seed(initializer):
    seed = initializer.seed
    if isinstance(seed, keras.random.SeedGenerator):  # new values at every call
        seed = keras.random.randint((), 0, 2**31 - 1, seed=seed)
    return int(seed)
