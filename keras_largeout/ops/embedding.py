"""Embedding lookup: rows of a table, alone or combined over bags of ids; gradients of touched rows only."""

import itertools

import keras
import numpy as np
import tensorflow as tf

from keras_largeout.ops import _gradients
from keras_largeout.ops._library import ops

COMBINERS = (None, "sum", "mean", "sqrtn")
OUT_OF_RANGE = ("error", "zero")


def embedding_lookup(table, ids, row_splits=None, weights=None, combiner=None, out_of_range="error"):
    """Looks up rows of `table`, and combines them over bags of ids if `combiner` is given.

    The table is used by its handle, in place: it is never read as a tensor. Its gradient is an
    `tf.IndexedSlices` with every touched row once, in ascending order, duplicates summed (in float32, in the
    order in which they occur).

    Args:
        table: `tf.Variable` (or `keras.Variable` that holds one) of shape `[rows, dim]`, float32 or bfloat16.
        ids: Integer `tf.Tensor`, `tf.RaggedTensor` or `tf.SparseTensor` (indices in row-major order).
        row_splits: For ids `[n]` with a combiner: integer `[bags + 1]` from 0 to n, never decreasing; bag `b`
            is `ids[row_splits[b]:row_splits[b + 1]]`. `None` for dense, ragged and sparse ids.
        weights: `None`, or a factor for each id: of the same kind and shape as `ids`, cast to float32.
            Differentiable.
        combiner: `None`, `"sum"`, `"mean"` (`sum(w x) / sum(w)`) or `"sqrtn"` (`sum(w x) / sqrt(sum(w**2))`).
            Empty bags, and bags whose divisor is zero, give zeros.
        out_of_range: `"error"`: an id outside `[0, rows)` is an error. `"zero"`: it is dropped: zeros without
            combiner, no contribution (and no share of the divisor) with one, and no gradient.

    Returns:
        Tensor of the table's dtype. Without combiner `ids.shape + [dim]` (ragged where `ids` are). With one,
        the last axis of `ids` is combined: `[..., k]` gives `[..., dim]`, ragged and sparse `[b, (k)]` give
        `[b, dim]`, `row_splits` `[bags + 1]` give `[bags, dim]`.

    Raises:
        TypeError: `table` is no variable, or `weights` is of another kind than `ids`.
        ValueError: A wrong name, dtype or combination of arguments, or shapes that are known to be wrong.
        tf.errors.InvalidArgumentError: Ids out of range (the first one is named), or shapes that turn out
            wrong.

    Reference:
        [Keras `Embedding`](https://keras.io/api/layers/core_layers/embedding/); the combiners are those of
        `tf.nn.embedding_lookup_sparse`.
    """
    if combiner not in COMBINERS:
        raise ValueError(f"`combiner` must be one of {COMBINERS}. Received: combiner={combiner!r}")
    if out_of_range not in OUT_OF_RANGE:
        raise ValueError(
            f"`out_of_range` must be one of {OUT_OF_RANGE}. Received: out_of_range={out_of_range!r}"
        )
    if isinstance(table, keras.Variable):
        table = table.value
    if not isinstance(table, tf.Variable):
        raise TypeError(f"`table` must be a tf.Variable. Received: {type(table).__name__}")
    if table.dtype not in (tf.float32, tf.bfloat16):
        raise ValueError(f"`table` must be of dtype float32 or bfloat16. Received: dtype={table.dtype.name}")
    kind = next((k for k in (tf.RaggedTensor, tf.SparseTensor) if isinstance(ids, k)), None)
    if kind is None and isinstance(weights, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(f"`weights` must be dense as `ids` are. Received: {type(weights).__name__}")
    if kind is not None and weights is not None and not isinstance(weights, kind):
        raise TypeError(
            f"`weights` must be a {kind.__name__} as `ids` are. Received: {type(weights).__name__}"
        )
    if row_splits is not None and (kind is not None or combiner is None):
        raise ValueError(
            "`row_splits` must be None unless `ids` are dense and `combiner` is given. "
            f"Received: combiner={combiner!r} and ids of type {type(ids).__name__}"
        )
    return Lookup(table, combiner, out_of_range)(ids, weights, row_splits)


class Lookup:
    """The lookup with its table and options, for each kind of ids."""

    def __init__(self, table, combiner, out_of_range):
        self.table, self.combiner, self.out_of_range = table, combiner, out_of_range

    def __call__(self, ids, weights=None, row_splits=None):
        if isinstance(ids, tf.RaggedTensor):
            return self.ragged(ids, weights)
        if isinstance(ids, tf.SparseTensor):
            return self.sparse(ids, weights)
        return self.dense(ids, weights, row_splits)

    def dense(self, ids, weights, row_splits=None):
        ids = _as_ids(ids)
        ragged = row_splits is not None
        _gradients.watch(self.table)
        output = ops.largeout_embedding_lookup(
            self.table.handle,
            ids,
            tf.cast(row_splits, tf.int64) if ragged else tf.zeros([0], tf.int64),
            tf.zeros([0], tf.float32) if weights is None else tf.cast(weights, tf.float32),
            dtype=self.table.dtype,
            combiner=self.combiner or "none",
            out_of_range=self.out_of_range,
        )
        if ragged and output.shape.rank is None:  # a graph where the length of row_splits is unknown
            output.set_shape([None, self.table.shape[-1]])
        return output

    def ragged(self, ids, weights):
        if weights is not None:
            ids, weights = _same_partition(ids, weights)
        if self.combiner is None:
            return ids.with_flat_values(
                self.dense(ids.flat_values, None if weights is None else weights.flat_values)
            )
        values, value_weights = ids.values, None if weights is None else weights.values
        if isinstance(values, tf.RaggedTensor):
            return ids.with_values(self.ragged(values, value_weights))
        if values.shape.rank != 1:  # uniform inner dimensions: the last one is combined
            return ids.with_values(self.dense(values, value_weights))
        return self.dense(values, value_weights, ids.row_splits)

    def sparse(self, ids, weights):
        if self.combiner is None:
            raise ValueError("`combiner` must be given where `ids` are sparse. Received: combiner=None")
        if ids.shape.rank is None or ids.shape.rank < 2:
            raise ValueError(
                f"`ids` must have rank 2 or more where they are sparse. Received: shape {ids.shape}"
            )
        if weights is not None and weights.indices is not ids.indices:
            tf.debugging.assert_equal(
                weights.indices, ids.indices, "`weights` must have the indices of `ids`."
            )
        shape, static = ids.dense_shape, ids.shape
        rows = ids if static.rank == 2 else tf.sparse.reshape(ids, [tf.reduce_prod(shape[:-1]), shape[-1]])
        # Checks that the indices are in order.
        bags = tf.RaggedTensor.from_value_rowids(rows.values, rows.indices[:, 0], rows.dense_shape[0])
        output = self.dense(bags.values, None if weights is None else weights.values, bags.row_splits)
        output = tf.reshape(output, tf.concat([shape[:-1], [tf.shape(output, tf.int64)[1]]], 0))
        output.set_shape(static[:-1].concatenate([self.table.shape[-1]]))
        return output


def _as_ids(ids):
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer:
        raise ValueError(f"`ids` must be integers. Received: dtype={ids.dtype.name}")
    if ids.dtype in (tf.int32, tf.int64):
        return ids
    return tf.cast(ids, tf.int32 if ids.dtype.size < 4 else tf.int64)


def _same_partition(ids, weights):
    """The two with one partition, checked to be equal."""
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


@tf.RegisterGradient("Largeout>EmbeddingLookup")
def _embedding_lookup_gradient(op, grad):
    handle, ids, row_splits, weights = op.inputs
    options = {name: op.get_attr(name) for name in ("combiner", "out_of_range")}
    options = {name: v.decode() if isinstance(v, bytes) else v for name, v in options.items()}
    grad = tf.convert_to_tensor(grad)
    skipped = getattr(op, "skip_input_indices", None) or ()
    table_gradient = weights_gradient = None
    if 0 not in skipped:
        shape = tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)
        unique_ids, rows = ops.largeout_embedding_grad(ids, row_splits, weights, grad, shape[0], **options)
        table_gradient = _gradients.row_gradient(shape, unique_ids, rows)
    if 3 not in skipped and weights.shape != [0]:
        weights_gradient = ops.largeout_embedding_weights_grad(
            handle, ids, row_splits, weights, grad, **options
        )
    return table_gradient, None, None, weights_gradient


def _bags(ids, row_splits, weights, combiner, num_rows, out_of_range):
    """Yields (bag, [(position, id, factor)]) of what takes part, and the divisor of each bag."""
    ids = np.asarray(ids)
    flat = ids.reshape(-1).astype(np.int64)
    bad = np.flatnonzero((flat < 0) | (flat >= num_rows))
    if out_of_range == "error" and bad.size:
        raise IndexError(f"`ids` must lie in [0, {num_rows}). Received: {flat[bad[0]]} at position {bad[0]}")
    factors = np.ones(flat.size) if weights is None else np.asarray(weights, np.float64).reshape(-1)
    if row_splits is None:
        size = 1 if combiner is None else ids.shape[-1]
        count = ids.size if combiner is None else int(np.prod(ids.shape[:-1]))
        row_splits = np.arange(count + 1) * size
    for bag, (begin, end) in enumerate(itertools.pairwise(row_splits)):
        members = [(p, flat[p], factors[p]) for p in range(begin, end) if 0 <= flat[p] < num_rows]
        w = np.array([factor for _, _, factor in members])
        yield bag, members, {"mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}.get(combiner, 1.0)


def embedding_lookup_reference(
    table, ids, row_splits=None, weights=None, combiner=None, out_of_range="error"
):
    """What `embedding_lookup` computes, on NumPy arrays, in float64, bag by bag."""
    table, ids = np.asarray(table).astype(np.float64), np.asarray(ids)
    leading = (
        ids.shape if combiner is None else ids.shape[:-1] if row_splits is None else (len(row_splits) - 1,)
    )
    output = np.zeros((int(np.prod(leading)), table.shape[1]))
    for bag, members, divisor in _bags(ids, row_splits, weights, combiner, len(table), out_of_range):
        if divisor != 0:
            output[bag] = sum((w * table[i] / divisor for _, i, w in members), np.zeros(table.shape[1]))
    return output.reshape(*leading, table.shape[1])


def embedding_gradient_reference(
    table, ids, grad, row_splits=None, weights=None, combiner=None, out_of_range="error"
):
    """The gradients of `embedding_lookup`, on NumPy arrays, in float64.

    Returns:
        The ids that take part (`[u]`, ascending), the gradients of their rows (`[u, dim]`), and that of the
        weights (the shape of `ids`; at weights of 1 where none are given).
    """
    table, ids = np.asarray(table).astype(np.float64), np.asarray(ids)
    grad = np.asarray(grad).astype(np.float64).reshape(-1, table.shape[1])
    rows, weights_gradient = {}, np.zeros(ids.size)
    for bag, members, divisor in _bags(ids, row_splits, weights, combiner, len(table), out_of_range):
        for _, i, w in members:
            rows[i] = rows.get(i, 0) + (w / divisor if divisor != 0 else 0.0) * grad[bag]
        if divisor == 0:
            continue
        output = sum((w * table[i] / divisor for _, i, w in members), np.zeros(table.shape[1]))
        for position, i, w in members:
            pull = {"mean": 1.0, "sqrtn": w / divisor}.get(combiner, 0.0)  # of the divisor
            weights_gradient[position] = grad[bag] @ (table[i] - pull * output) / divisor
    unique = sorted(rows)
    values = np.array([rows[i] for i in unique]).reshape(len(unique), table.shape[1])
    return np.array(unique, np.int64), values, weights_gradient.reshape(ids.shape)
