"""Embedding lookup: rows of a table, alone or combined over bags of ids; gradients of touched rows only."""

import copy

import keras
import tensorflow as tf

from keras_largeout._checks import check_one_of
from keras_largeout.ops import _gradients
from keras_largeout.ops._library import ops
from keras_largeout.ops.embedding.bags import bags_of, concat_bags
from keras_largeout.ops.embedding.largest import largest_of_bags
from keras_largeout.ops.embedding.reference import embedding_gradient_reference, embedding_lookup_reference
from keras_largeout.ops.labels import on_the_host

__all__ = [
    "COMBINERS",
    "OUT_OF_RANGE",
    "Lookup",
    "check_unweighted",
    "embedding_combine",
    "embedding_gradient_reference",
    "embedding_lookup",
    "embedding_lookup_reference",
]

COMBINERS = (None, "sum", "mean", "sqrtn", "max")
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
        combiner: `None`, `"sum"`, `"mean"` (`sum(w x) / sum(w)`), `"sqrtn"` (`sum(w x) / sqrt(sum(w**2))`) or
            `"max"` (the largest value of each column; a weight of zero leaves an id out, and no other does
            anything). Empty bags, and bags whose divisor is zero, give zeros.
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
            wrong. A graph on a GPU does not wait to learn about ids: such ones are dropped, and the error is
            that of the next call.

    Reference:
        [Keras `Embedding`](https://keras.io/api/layers/core_layers/embedding/); the combiners are those of
        `tf.nn.embedding_lookup_sparse`.
    """
    if isinstance(table, keras.Variable):
        table = table.value
    if not isinstance(table, tf.Variable):
        raise TypeError(f"`table` must be a tf.Variable. Received: {type(table).__name__}")
    _check("table", table, ids, row_splits, weights, combiner, out_of_range)
    return Lookup(table, combiner, out_of_range)(ids, weights, row_splits)


def embedding_combine(rows, ids, row_splits=None, weights=None, combiner=None, out_of_range="zero"):
    """Return `embedding_lookup` in a tensor of rows that have been brought together, such as those of an
    exchange.

    Its gradient is dense: `[u, dim]`, duplicates summed as there.

    Args:
        rows: `tf.Tensor` `[u, dim]`, float32 or bfloat16.
        ids: Integers in `[0, u)`, such as `Partition.inverse` of `ops.exchange.partition_ids`: a `tf.Tensor`,
            `tf.RaggedTensor` or `tf.SparseTensor`.
        row_splits, weights, combiner: As in `embedding_lookup`.
        out_of_range: As there, but `"zero"` by default: ids of -1 are dropped.

    Returns:
        As `embedding_lookup`.

    Raises:
        TypeError, ValueError, tf.errors.InvalidArgumentError: As `embedding_lookup`.
    """
    rows = tf.convert_to_tensor(rows)
    _check("rows", rows, ids, row_splits, weights, combiner, out_of_range)
    return Lookup(rows, combiner, out_of_range)(ids, weights, row_splits)


def check_unweighted(combiner, weights, argument="`weights`"):
    """Raises ValueError where weights of the ids are given and the combiner has no use for them."""
    if combiner == "max" and weights is not None:
        raise ValueError(
            f"{argument} must be None with combiner='max': the largest value has no weight. "
            f"Received: weights of type {type(weights).__name__}"
        )


def _check(name, table, ids, row_splits, weights, combiner, out_of_range):
    check_one_of("combiner", combiner, COMBINERS)
    check_one_of("out_of_range", out_of_range, OUT_OF_RANGE)
    if table.dtype not in (tf.float32, tf.bfloat16):
        raise ValueError(f"`{name}` must be of dtype float32 or bfloat16. Received: dtype={table.dtype.name}")
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


class Lookup:
    """The lookup with its table (a variable or a tensor) and options, for each kind of ids.

    A subclass that looks rows up in another way overrides `combined`.

    Args:
        num_rows: None, or the rows of a table whose shape does not tell.
    """

    def __init__(self, table, combiner, out_of_range, num_rows=None):
        self.table, self.combiner, self.out_of_range = table, combiner, out_of_range
        self.num_rows = num_rows or table.shape[0]

    def __call__(self, ids, weights=None, row_splits=None):
        if not isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
            return self.dense(ids, weights, row_splits)
        if self.combiner is None and isinstance(ids, tf.SparseTensor):
            raise ValueError("`combiner` must be given where `ids` are sparse. Received: combiner=None")
        bags = bags_of(ids, weights, self.combiner)
        return bags.restore(self.bags(bags.ids, bags.weights, *concat_bags([bags])))

    def bags(self, ids, weights, splits, size):
        """Return one row per bag, `[bags, dim]`, of flat `ids` and `weights` in the layout of
        `bags.concat_bags`.
        """
        if self.combiner is not None and splits is None:
            ids = tf.reshape(ids, [-1, size])
            weights = None if weights is None else tf.reshape(weights, [-1, size])
        return self.dense(ids, weights, splits)

    def dense(self, ids, weights, row_splits=None):
        """Return the lookup of a tensor of ids, `[n]` where `row_splits` are given."""
        if self.combiner != "max":
            return self.combined(ids, weights, row_splits)
        ids, alone = as_ids(ids), copy.copy(self)
        alone.combiner = None
        rows = tf.shape(self.table, tf.int64)[0] if self.num_rows is None else self.num_rows
        wide = tf.cast(ids, tf.int64)  # a GPU compares int32 on the host
        kept = (wide >= 0) & (wide < rows)
        if weights is not None:
            kept &= tf.reshape(weights, tf.shape(ids)) != 0
        return largest_of_bags(alone.combined(ids, None), kept, row_splits)

    def combined(self, ids, weights, row_splits=None):
        """Return the same where the op combines the rows, or nothing does."""
        ids = as_ids(ids)
        ragged = row_splits is not None
        if isinstance(self.table, tf.Variable):
            _gradients.watch(self.table)
            source, op = self.table.handle, ops.largeout_embedding_lookup
        else:
            source, op = self.table, ops.largeout_embedding_combine
        output = op(
            source,
            ids,
            tf.cast(row_splits, tf.int64) if ragged else tf.zeros([0], tf.int64),
            tf.zeros([0], tf.float32) if weights is None else tf.cast(weights, tf.float32),
            combiner=self.combiner or "none",
            out_of_range=self.out_of_range,
            late_errors=not tf.executing_eagerly(),
            **({"dtype": self.table.dtype} if source is not self.table else {}),
        )
        if ragged and output.shape.rank is None:  # a graph where the length of row_splits is unknown
            output.set_shape([None, self.table.shape[-1]])
        return output


def as_ids(ids):
    """Return ids as the ops take them: int32 or int64."""
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer:
        raise ValueError(f"`ids` must be integers. Received: dtype={ids.dtype.name}")
    if ids.dtype in (tf.int32, tf.int64):
        return ids
    return tf.cast(ids, tf.int32 if ids.dtype.size < 4 else tf.int64)


@tf.RegisterGradient("Largeout>EmbeddingLookup")
def _embedding_lookup_gradient(op, grad):
    handle = op.inputs[0]

    def of_table(*inputs, **options):
        shape = tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)
        rows = ops.largeout_embedding_grad(*inputs, _first(shape), **options)
        return _gradients.row_gradient(shape, *rows)

    return _gradient(op, grad, of_table, ops.largeout_embedding_weights_grad)


@tf.RegisterGradient("Largeout>EmbeddingCombine")
def _embedding_combine_gradient(op, grad):
    def of_table(*inputs, **options):
        num_rows = _first(tf.shape(op.inputs[0], tf.int64))
        return ops.largeout_embedding_combine_grad(*inputs, num_rows, **options)

    return _gradient(op, grad, of_table, ops.largeout_embedding_combine_weights_grad)


def _first(shape):
    """Return the first number of an int64 shape, in host memory."""
    with on_the_host():
        return shape[0]


@tf.RegisterGradient("Largeout>EmbeddingGrad")
def _second_gradient(op, _, grad_rows):
    """Find the rows of `grad_rows` that the ids name: there is one for each distinct id."""
    ids, unique_ids = op.inputs[0], op.outputs[0]
    wide = tf.cast(ids, tf.int64)
    places = tf.searchsorted(unique_ids, tf.reshape(wide, [-1]), out_type=tf.int64)
    places = tf.reshape(places, tf.shape(wide))
    known = tf.gather(tf.pad(unique_ids, [[0, 1]], constant_values=-1), places) == wide
    return _gradient_of_gradient(op, tf.where(known, places, -1), grad_rows)  # -1: outside of the table


@tf.RegisterGradient("Largeout>EmbeddingCombineGrad")
def _second_combine_gradient(op, grad_rows):
    return _gradient_of_gradient(op, op.inputs[0], grad_rows)


def _gradient_of_gradient(op, places, grad_rows):
    """Return the gradients of a gradient of rows, which is linear in that of the lookup: it is a lookup, too.

    Args:
        op: the gradient of the rows.
        places: integers of the shape of the ids: the row of `grad_rows` of each id. Others are dropped.
        grad_rows: float `[n, dim]`.
    """
    _, row_splits, weights, grad, _ = op.inputs
    grad_rows = tf.convert_to_tensor(grad_rows)
    combiner = op.get_attr("combiner")
    options = {"combiner": combiner.decode() if isinstance(combiner, bytes) else combiner}
    options["out_of_range"] = "zero"
    grad_weights = None
    if weights.shape != [0]:
        grad_weights = ops.largeout_embedding_combine_weights_grad(
            grad_rows, places, row_splits, weights, grad, **options
        )
    grad_grad = ops.largeout_embedding_combine(grad_rows, places, row_splits, weights, **options)
    return None, None, grad_weights, tf.reshape(grad_grad, tf.shape(grad)), None


def _gradient(op, grad, of_table, weights_grad):
    """Return the gradients of a lookup.

    Args:
        op: the lookup.
        grad: the gradient of its output.
        of_table: function that returns the gradient of the table. It takes the inputs `ids`, `row_splits`,
            `weights` and `grad` of an op, and its attributes.
        weights_grad: function, the op that returns the gradient of the weights.
    """
    table, ids, row_splits, weights = op.inputs
    options = {name: op.get_attr(name) for name in ("combiner", "out_of_range", "late_errors")}
    options = {name: v.decode() if isinstance(v, bytes) else v for name, v in options.items()}
    grad = tf.convert_to_tensor(grad)
    skipped = getattr(op, "skip_input_indices", None) or ()
    table_gradient = weights_gradient = None
    if 0 not in skipped:
        table_gradient = of_table(ids, row_splits, weights, grad, **options)
    if 3 not in skipped and weights.shape != [0]:
        weights_gradient = weights_grad(table, ids, row_splits, weights, grad, **options)
    return table_gradient, None, None, weights_gradient
