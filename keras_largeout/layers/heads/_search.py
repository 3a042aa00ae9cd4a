"""Search of the best classes for `head.top_k`: some are left out, and scores get a gradient.

Leaving out is exact: of the best k + m classes at most m are excluded. So every head, and every way to search
it, can leave out items that a user has seen, or words that may not follow. (Where a head scores all classes
anyway, it masks them: `TableHead.best_without`.)
"""

import tensorflow as tf

from keras_largeout.layers._inputs import hidden_vectors
from keras_largeout.ops._gradients import with_gradient
from keras_largeout.ops.export_mode import is_exporting
from keras_largeout.ops.top_k_in_chunks import marked_missing

_FEW = 32  # ids of a token that are not worth their own search
_MANY = 4  # times the average: tokens with more of them are searched apart


def top_k(head, hidden, k, exclude=None):
    """Return scores and ids, `[..., k]` each, of the best classes; takes the arguments of `head.top_k`."""
    head.check_k(k)
    k, hidden = int(k), hidden_vectors(head, tf.convert_to_tensor(hidden))
    lead = hidden.shape[:-1], tf.shape(hidden)[:-1]
    shape = tf.concat([lead[1], [k]], 0)
    if not head.initialized:
        return tf.zeros(shape), tf.zeros(shape, tf.int32)
    flat = tf.reshape(hidden, [-1, head.dim])
    if exclude is None:
        best = head.present_classes(flat, k)
    else:
        best = head.best_without(flat, k, classes_per_token("exclude", exclude, lead, head.num_classes))
    found = [tf.reshape(part, shape) for part in _differentiable(head, flat, *best)]
    for part in found:
        part.set_shape([*lead[0], k])
    return tuple(found)


def _differentiable(head, hidden, scores, ids):
    """Return `best_classes` of hidden vectors, `[n, k]` each, with the gradient of the scores."""
    if is_exporting() or not head.searches:
        return scores, ids
    variables = head.score_variables()

    def gradient(upstream):
        found = ids >= 0
        with tf.GradientTape() as tape:
            tape.watch([hidden, *variables])
            again = head.scores_of(hidden, tf.where(found, ids, 0))
        upstream = tf.where(found, upstream, 0.0)
        return tape.gradient(again, [hidden, *variables], output_gradients=upstream)

    return with_gradient(gradient, tf.stop_gradient(scores), [hidden], variables), ids


def best_without(search, hidden, k, excluded, num_classes):
    """Return the k best classes of those that are not excluded; see `Head.best_without`.

    As many more are searched as a token has excluded at most. Tokens with far more than the others are
    searched apart.

    Args:
        search: `(hidden, k) -> (scores, ids)`, `[n, k]` each, the best first; k is an int or an int32 scalar.
        hidden: float `[n, dim]`.
        k: int.
        excluded: int32 `[n, m]`, -1 being none.
        num_classes: int.
    """
    width = excluded.shape[1]
    if width is not None and width <= _FEW:
        return _best_of_more(search, hidden, k, excluded, min(k + width, num_classes))
    excluded = tf.sort(excluded, axis=1, direction="DESCENDING")  # what is padded comes last
    each = tf.reduce_sum(tf.cast(excluded >= 0, tf.int32), axis=1)
    usual = tf.reduce_sum(each) // tf.maximum(tf.size(each), 1)
    group = tf.cast(each > tf.maximum(_MANY * usual, _FEW), tf.int32)
    places, found = tf.dynamic_partition(tf.range(tf.size(each)), group, 2), []
    for tokens in places:
        most = tf.maximum(tf.reduce_max(tf.gather(each, tokens)), 0)  # without tokens: the smallest integer
        theirs = tf.gather(excluded, tokens)[:, :most]
        wanted = tf.minimum(k + most, num_classes)
        found.append(_best_of_more(search, tf.gather(hidden, tokens), k, theirs, wanted))
    return tuple(tf.dynamic_stitch(places, parts) for parts in zip(*found))


def _best_of_more(search, hidden, k, excluded, wanted):
    """Return the k best classes that are not excluded, of the `wanted` best."""
    scores, ids = search(hidden, wanted)
    kept = tf.cast(~_contained(ids, tf.cast(excluded, ids.dtype)), tf.int32)
    kept, places = tf.math.top_k(kept, k)  # of equal ones the first: the order stays
    scores, ids = (tf.gather(part, places, batch_dims=1) for part in (scores, ids))
    return marked_missing(scores, ids, kept <= 0)


def best_present(head, hidden, k):
    """Return the k best classes that stand for an id; see `Head.present_classes`.

    Of the k best of all, and then of twice as many, and so on, those are taken: classes without an id have
    learnt to be improbable, and few are among the best. (A `TableHead` scores all classes anyway, and masks
    these.)

    Raises:
        NotImplementedError: several hosts have the head's weights, and would search unequally often.
    """
    tables = {shard.array.table for shard in getattr(head, "shards", ())}
    if not (is_exporting() or all(table.hosts.is_alone for table in tables)):
        raise NotImplementedError(
            f"The best classes of a {type(head).__name__} with a `vocabulary` are searched on one host: "
            "export the predictor, or take a FullSoftmax or SampledSoftmax. Received: several hosts, for the "
            f"head {head.name!r}"
        )
    present = head.class_vocabulary.present(head.num_classes)

    def search(wanted, *_):
        scores, ids = head.best_classes(hidden, wanted)
        kept = tf.cast(tf.gather(present, ids), tf.int32)
        enough = tf.reduce_all(tf.reduce_sum(kept, axis=1) >= k) | (wanted >= head.num_classes)
        kept, places = tf.math.top_k(kept, k)  # of equal ones the first: the order stays
        scores, ids = (tf.gather(part, places, batch_dims=1) for part in (scores, ids))
        scores, ids = marked_missing(scores, ids, kept <= 0)
        return tf.minimum(2 * wanted, head.num_classes), scores, ids, enough

    shape = tf.TensorShape([None, tf.get_static_value(k)])
    none = tf.fill([tf.shape(hidden)[0], k], -1)
    found = tf.while_loop(
        lambda wanted, scores, ids, enough: ~enough,
        search,
        (tf.convert_to_tensor(k), tf.cast(none, tf.float32), none, tf.constant(False)),
        shape_invariants=(tf.TensorShape([]), shape, shape, tf.TensorShape([])),
        parallel_iterations=1,
    )
    return found[1], found[2]


def classes_per_token(name, classes, lead, num_classes):
    """Return int32 `[n, m]`: the classes of each token, such as those that are left out, -1 being none.

    Args:
        name: str, of the argument, for errors.
        classes: class ids as `Head.top_k` takes its `exclude`.
        lead: `(static, dynamic)`: the shape of the tokens before they were flattened, `[...]`.
        num_classes: int.

    Raises:
        ValueError: `classes` do not belong to the tokens.
    """
    static, dynamic = lead
    if isinstance(classes, tf.RaggedTensor):
        classes = classes.to_tensor(-1)
    elif isinstance(classes, tf.SparseTensor):
        classes = tf.sparse.to_dense(tf.sparse.reorder(classes), default_value=-1)
    classes = tf.convert_to_tensor(classes)
    axes = None if classes.shape.rank is None else classes.shape.rank - 1
    fits = (
        axes is not None and 1 <= axes <= static.rank and classes.shape[:-1].is_compatible_with(static[:axes])
    )
    if not fits or not classes.dtype.is_integer:
        raise ValueError(
            f"`{name}` must be class ids [..., m] for hidden vectors [..., dim], or for the first of their "
            "axes; padded with -1, ragged or sparse. "
            f"Received: {classes.dtype.name} of shape {classes.shape}, for tokens of shape {static}"
        )
    classes = tf.cast(classes, tf.int64)  # small types hold neither -1 nor the number of classes
    classes = tf.cast(tf.where((classes >= 0) & (classes < num_classes), classes, -1), tf.int32)
    width, static_width = tf.shape(classes)[-1], classes.shape[-1]
    between = [1] * (static.rank - axes)
    classes = tf.reshape(classes, tf.concat([tf.shape(classes)[:-1], between, [width]], 0))
    classes = tf.broadcast_to(classes, tf.concat([dynamic, [width]], 0))
    classes = tf.reshape(classes, [tf.reduce_prod(dynamic), width])
    classes.set_shape([None, static_width])
    return classes


def _contained(ids, excluded):
    """Return bool `[n, k]`: which of `ids` are in their row of `excluded`, `[n, m]`."""
    ordered = tf.sort(tf.pad(excluded, [[0, 0], [0, 1]], constant_values=-1), axis=1)  # never without columns
    places = tf.minimum(tf.searchsorted(ordered, ids), tf.shape(ordered)[1] - 1)
    return tf.gather(ordered, places, batch_dims=1) == ids
