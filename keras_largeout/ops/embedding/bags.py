"""Bags: ids of any kind, dense, ragged or sparse, as one flat vector and where each bag of it begins."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf


class Bags(NamedTuple):
    """Ids that are looked up together. Without a combiner each id is its own bag.

    Attributes:
        ids: integers `[n]`.
        weights: `None` or floats `[n]`.
        splits: `None`, or integers `[bags + 1]`: bag `b` is `ids[splits[b]:splits[b + 1]]`.
        size: where `splits` is None, the ids of every bag: an int, or a scalar tensor.
        count: the number of bags: an int, or a scalar tensor.
        restore: a function that turns `[bags, dim]`, one row per bag, into what the lookup of the ids gives.
    """

    ids: tf.Tensor
    weights: tf.Tensor | None
    splits: tf.Tensor | None
    size: int | tf.Tensor | None
    count: int | tf.Tensor
    restore: Callable


def bags_of(ids, weights=None, combiner=None):
    """Return the `Bags` of `ids`.

    Args:
        ids: integer `tf.Tensor`, `tf.RaggedTensor` or `tf.SparseTensor` (indices in row-major order).
        weights: `None`, or floats of the kind and shape of `ids`.
        combiner: `None`: every id by itself (sparse ids give zeros in the empty places). Else the last axis
            of `ids` is the bag.

    Raises:
        ValueError: sparse ids of rank 1, or weights whose shape is known to be another.
        tf.errors.InvalidArgumentError: weights whose shape turns out to be another.
    """
    if isinstance(ids, tf.RaggedTensor):
        return _ragged(ids, weights, combiner)
    if isinstance(ids, tf.SparseTensor):
        return _sparse(ids, weights, combiner)
    return _dense(ids, weights, combiner)


def concat_bags(bags):
    """Return the layout of several `Bags` one after the other: `(splits, size)`, one of them None."""
    sizes = {b.size if isinstance(b.size, int) else None for b in bags}
    if len(sizes) == 1 and (size := sizes.pop()):
        return None, size
    lengths = [
        tf.fill([b.count], tf.cast(b.size, tf.int64))
        if b.splits is None
        else tf.cast(b.splits[1:] - b.splits[:-1], tf.int64)
        for b in bags
    ]
    ends = tf.cumsum(lengths[0] if len(bags) == 1 else tf.concat(lengths, 0))
    return tf.concat([tf.zeros([1], tf.int64), ends], 0), None


def _dense(ids, weights, combiner):
    if weights is not None:
        weights = _of_shape(weights, ids)
    kept = ids.shape if combiner is None else ids.shape[:-1]
    shape = tf.shape(ids)
    size = 1 if combiner is None else ids.shape[-1]
    if size is None:
        size = shape[-1]
    if kept.rank == 1:
        count = kept[0] if kept[0] is not None else shape[0]
    else:
        count = kept.num_elements()
        count = tf.reduce_prod(shape[: kept.rank]) if count is None else count

    def restore(rows):
        if kept.rank == 1:
            return rows
        return _reshaped(rows, shape[: kept.rank], kept)

    flat = None if weights is None else tf.reshape(weights, [-1])
    return Bags(tf.reshape(ids, [-1]), flat, None, size, count, restore)


def _ragged(ids, weights, combiner):
    if weights is not None:
        ids, weights = _same_partition(ids, weights)
    values, factors = ids.flat_values, None if weights is None else weights.flat_values
    if combiner is None or values.shape.rank > 1:  # uniform inner dimensions: the last one is combined
        bags = _dense(values, factors, combiner)
        return bags._replace(restore=lambda rows: ids.with_flat_values(bags.restore(rows)))
    splits = ids.nested_row_splits[-1]
    count = splits.shape[0] - 1 if splits.shape[0] is not None else tf.shape(splits)[0] - 1

    def restore(rows, outer=ids):
        return rows if outer.ragged_rank == 1 else outer.with_values(restore(rows, outer.values))

    return Bags(values, factors, splits, None, count, restore)


def _sparse(ids, weights, combiner):
    if weights is not None and weights.indices is not ids.indices:
        tf.debugging.assert_equal(weights.indices, ids.indices, "`weights` must have the indices of `ids`.")
    factors = None if weights is None else weights.values
    shape, static = ids.dense_shape, ids.shape
    if combiner is None:
        count = tf.shape(ids.values)[0]

        def fill(rows):
            full = tf.scatter_nd(ids.indices, rows, tf.concat([shape, tf.shape(rows, tf.int64)[-1:]], 0))
            full.set_shape(static.concatenate(rows.shape[-1:]))
            return full

        return Bags(ids.values, factors, None, 1, count, fill)
    if static.rank is None or static.rank < 2:
        raise ValueError(f"`ids` must have rank 2 or more where they are sparse. Received: shape {static}")
    rows = ids if static.rank == 2 else tf.sparse.reshape(ids, [tf.reduce_prod(shape[:-1]), shape[-1]])
    splits = _splits_of(rows.indices[:, 0], rows.dense_shape[0])
    count = tf.shape(splits)[0] - 1
    return Bags(
        rows.values, factors, splits, None, count, lambda rows: _reshaped(rows, shape[:-1], static[:-1])
    )


def _splits_of(row, rows):
    """Return where each row begins, int64 `[rows + 1]`, of the rows of sparse elements.

    Raises:
        tf.errors.InvalidArgumentError: they are not in order, or outside `[0, rows)`.
    """
    splits = tf.searchsorted(row, tf.range(rows + 1))
    fine = tf.reduce_all(row[1:] >= row[:-1]) & (splits[0] == 0) & (splits[-1] == tf.size(row))
    rule = "The indices of a tf.SparseTensor must be in order (tf.sparse.reorder) and inside its shape. "
    check = tf.debugging.Assert(fine, [f"{rule}Received: rows", row, "where there are", rows])
    with tf.control_dependencies([] if check is None else [check]):
        return tf.cast(splits, tf.int64)


def _reshaped(rows, shape, static):
    """Return `rows` `[bags, dim]` as `shape + [dim]`; `static` is what is known of `shape`."""
    out = tf.reshape(rows, tf.concat([shape, tf.shape(rows, shape.dtype)[-1:]], 0))
    out.set_shape(static.concatenate(rows.shape[-1:]))
    return out


def _of_shape(weights, ids):
    """Return `weights`, checked to have the shape of `ids`."""
    weights = tf.convert_to_tensor(weights)
    if not weights.shape.is_compatible_with(ids.shape):
        raise ValueError(
            f"`weights` must have the shape of `ids`, {ids.shape}. Received: shape {weights.shape}"
        )
    if not (weights.shape.is_fully_defined() and ids.shape.is_fully_defined()):
        same = tf.debugging.assert_equal(
            tf.shape(weights), tf.shape(ids), "`weights` must have the shape of `ids`."
        )
        with tf.control_dependencies([same] if same is not None else []):
            return tf.identity(weights)
    return weights


def _same_partition(ids, weights):
    """Return the two with one partition, checked to be equal."""
    if ids.ragged_rank != weights.ragged_rank:
        raise ValueError(
            f"`weights` must have the ragged rank of `ids`, {ids.ragged_rank}. "
            f"Received: ragged_rank={weights.ragged_rank}"
        )
    for ours, theirs in zip(ids.nested_row_splits, weights.nested_row_splits):
        if ours is not theirs:
            theirs = tf.cast(theirs, ours.dtype)
            tf.debugging.assert_equal(theirs, ours, "`weights` must have the row splits of `ids`.")
    return ids, ids.with_flat_values(weights.flat_values)
