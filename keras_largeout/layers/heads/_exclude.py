"""The best classes but some: items that a user has seen, words that may not follow.

It is exact: of the best k + m classes at most m are excluded. So every head, and every way to search it, can
leave classes out.
"""

import tensorflow as tf


def best_without(search, hidden, lead, exclude, k, num_classes):
    """The k best classes of those that are not excluded.

    Args:
        search: `(hidden, k) -> (scores, ids)`, `[n, k]` each, the best first; k is an int or an int32 scalar.
        hidden: float `[n, dim]`.
        lead: `(static, dynamic)`: the shape of the tokens before they were flattened, `[...]`.
        exclude: class ids as `Head.top_k` takes them.
        k: int.
        num_classes: int.

    Returns:
        `(scores, ids)`, `[n, k]` each.

    Raises:
        ValueError: `exclude` does not belong to the tokens.
        tf.errors.InvalidArgumentError: fewer than k classes are left for a token.
    """
    excluded = _per_token(exclude, lead, num_classes)
    width = excluded.shape[1]
    if width is None:
        wanted = tf.minimum(k + tf.shape(excluded)[1], num_classes)
    else:
        wanted = min(k + width, num_classes)
    scores, ids = search(hidden, wanted)
    kept = tf.cast(~_contained(ids, tf.cast(excluded, ids.dtype)), tf.int32)
    if width is None or k + width > num_classes:
        left = tf.reduce_min(tf.reduce_sum(kept, axis=1))  # without tokens: the largest integer
        enough = tf.debugging.assert_greater_equal(
            left,
            k,
            message=f"`exclude` must leave at least k={k} of the {num_classes} classes for every token.",
        )
        with tf.control_dependencies([] if enough is None else [enough]):
            kept = tf.identity(kept)
    places = tf.math.top_k(kept, k).indices  # of equal ones the first: the order stays
    return tuple(tf.gather(part, places, batch_dims=1) for part in (scores, ids))


def _per_token(exclude, lead, num_classes):
    """int32 `[n, m]`: the excluded classes of each token; -1 is none."""
    static, dynamic = lead
    if isinstance(exclude, tf.RaggedTensor):
        exclude = exclude.to_tensor(-1)
    elif isinstance(exclude, tf.SparseTensor):
        exclude = tf.sparse.to_dense(tf.sparse.reorder(exclude), default_value=-1)
    exclude = tf.convert_to_tensor(exclude)
    axes = None if exclude.shape.rank is None else exclude.shape.rank - 1
    fits = (
        axes is not None and 1 <= axes <= static.rank and exclude.shape[:-1].is_compatible_with(static[:axes])
    )
    if not fits or not exclude.dtype.is_integer:
        raise ValueError(
            "`exclude` must be class ids [..., m] for hidden vectors [..., dim], or for the first of their "
            "axes; padded with -1, ragged or sparse. "
            f"Received: {exclude.dtype.name} of shape {exclude.shape}, for tokens of shape {static}"
        )
    exclude = tf.cast(exclude, tf.int64)  # small types hold neither -1 nor the number of classes
    exclude = tf.cast(tf.where((exclude >= 0) & (exclude < num_classes), exclude, -1), tf.int32)
    width, static_width = tf.shape(exclude)[-1], exclude.shape[-1]
    between = [1] * (static.rank - axes)
    exclude = tf.reshape(exclude, tf.concat([tf.shape(exclude)[:-1], between, [width]], 0))
    exclude = tf.broadcast_to(exclude, tf.concat([dynamic, [width]], 0))
    exclude = tf.reshape(exclude, [tf.reduce_prod(dynamic), width])
    exclude.set_shape([None, static_width])
    return exclude


def _contained(ids, excluded):
    """bool `[n, k]`: which of `ids` are in their row of `excluded`, `[n, m]`."""
    ordered = tf.sort(tf.pad(excluded, [[0, 0], [0, 1]], constant_values=-1), axis=1)  # never without columns
    places = tf.minimum(tf.searchsorted(ordered, ids), tf.shape(ordered)[1] - 1)
    return tf.gather(ordered, places, batch_dims=1) == ids
