"""Clipping of gradients of which some are rows: Keras's three rules, over whole tables."""

import tensorflow as tf


def clipping(optimizer):
    """The rule that `optimizer` asks for, to be called with the gradients of a step; None without one."""
    if optimizer.clipnorm is not None and optimizer.clipnorm > 0:
        return lambda dense, rows: _ByNorm(optimizer.clipnorm, dense, rows)
    if optimizer.global_clipnorm is not None and optimizer.global_clipnorm > 0:
        return lambda dense, rows: _ByGlobalNorm(optimizer.global_clipnorm, dense, rows)
    if optimizer.clipvalue is not None and optimizer.clipvalue > 0:
        return lambda dense, rows: _ByValue(optimizer.clipvalue)
    return None


class _ByNorm:
    """Each weight by its own norm (`tf.clip_by_norm`); a table's runs over all its shards."""

    def __init__(self, limit, dense, rows):
        self.limit = limit
        squares = {}
        for values, variable in rows:
            squares.setdefault(_table_of(variable), []).append(_square(values))
        self.factors = {
            key: limit / tf.maximum(tf.sqrt(tf.add_n(parts)), limit) for key, parts in squares.items()
        }

    def dense(self, gradient):
        return tf.clip_by_norm(gradient, self.limit)

    def rows(self, values, variable):
        return values * tf.cast(self.factors[_table_of(variable)], values.dtype)


class _ByGlobalNorm:
    """All weights by their common norm (`tf.clip_by_global_norm`)."""

    def __init__(self, limit, dense, rows):
        squares = [_square(g) for g in dense] + [_square(values) for values, _ in rows]
        norm = tf.sqrt(tf.add_n(squares))
        # An infinite norm leaves NaN, as in TensorFlow.
        self.factor = limit * tf.minimum(1.0 / norm, 1.0 / limit) + (norm - norm)

    def dense(self, gradient):
        return gradient * tf.cast(self.factor, gradient.dtype)

    def rows(self, values, variable):
        return self.dense(values)


class _ByValue:
    def __init__(self, limit):
        self.limit = limit

    def dense(self, gradient):
        return tf.clip_by_value(gradient, -self.limit, self.limit)

    def rows(self, values, variable):
        return self.dense(values)


def _square(values):
    return tf.reduce_sum(tf.square(tf.cast(values, tf.float32)))


def _table_of(variable):
    """What the norm of `variable` is taken over: the table whose part it is, or itself."""
    return id(getattr(variable, "array", variable))
