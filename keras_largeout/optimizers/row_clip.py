"""Clipping of gradients of which some are rows: Keras's three rules, over whole tables."""

import functools

import tensorflow as tf

from keras_largeout.replicas.collectives import all_reduce_sum


def clipping(optimizer):
    """Return the rule that `optimizer` asks for, None without one.

    It is called with the gradients of a step, a list of dense ones and one of `(values, Weight)` of rows, and
    with the `Hosts` where there are several. It returns `clip(values, weight)`, to be called for each of
    them; for a dense one without `weight`.
    """
    rules = (
        (_by_norm, optimizer.clipnorm),
        (_by_global_norm, optimizer.global_clipnorm),
        (_by_value, optimizer.clipvalue),
    )
    for rule, limit in rules:
        if limit is not None and limit > 0:
            return functools.partial(rule, limit)
    return None


def _by_norm(limit, dense, rows, hosts):
    """Return each weight by its own norm (`tf.clip_by_norm`); a table's runs over all its shards."""
    squares = _squares_of_rows(rows, hosts)
    factors = {owner: limit / tf.maximum(tf.sqrt(square), limit) for owner, square in squares.items()}

    def clip(values, weight=None):
        if weight is None:
            return tf.clip_by_norm(values, limit)
        return values * tf.cast(factors[id(weight.owner)], values.dtype)

    return clip


def _by_global_norm(limit, dense, rows, hosts):
    """Return all weights by their common norm (`tf.clip_by_global_norm`)."""
    squares = [_square(g) for g in dense] + list(_squares_of_rows(rows, hosts).values())
    norm = tf.sqrt(tf.add_n(squares))
    # An infinite norm leaves NaN, as in TensorFlow.
    factor = limit * tf.minimum(1.0 / norm, 1.0 / limit) + (norm - norm)
    return lambda values, weight=None: values * tf.cast(factor, values.dtype)


def _by_value(limit, dense, rows, hosts):
    return lambda values, weight=None: tf.clip_by_value(values, -limit, limit)


def _squares_of_rows(rows, hosts):
    """Return the sum of squares of each table: a dict from `id`s of owners."""
    everywhere, parts = {}, {}
    for values, weight in rows:
        one = everywhere if weight.on_every_host else parts
        one[id(weight.owner)] = one.get(id(weight.owner), 0.0) + _square(values)
    if parts and not hosts.is_alone:
        summed = all_reduce_sum(hosts, tf.stack(list(parts.values())))
        parts = dict(zip(parts, tf.unstack(summed, len(parts))))
    return {owner: everywhere.get(owner, 0.0) + parts.get(owner, 0.0) for owner in {**everywhere, **parts}}


def _square(values):
    return tf.reduce_sum(tf.square(tf.cast(values, tf.float32)))
