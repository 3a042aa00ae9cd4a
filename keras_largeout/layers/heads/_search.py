"""`Search`: the best classes for `head.top_k`. Some are left out, and scores get a gradient.

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


class Search:
    """A base of `Head`: the best classes of all, without the excluded ones, and without those of no id."""

    searches = False  # whether `best_classes` are found by ops that have no gradient themselves

    def _top_k(self, hidden, k, exclude=None):
        """Return what `top_k` does."""
        self.check_k(k)
        k, hidden = int(k), hidden_vectors(self, tf.convert_to_tensor(hidden))
        lead = hidden.shape[:-1], tf.shape(hidden)[:-1]
        shape = tf.concat([lead[1], [k]], 0)
        if not self.initialized:
            return tf.zeros(shape), tf.zeros(shape, tf.int32)
        flat = tf.reshape(hidden, [-1, self.dim])
        if exclude is None:
            best = self.present_classes(flat, k)
        else:
            best = self.best_without(flat, k, classes_per_token("exclude", exclude, lead, self.num_classes))
        found = [tf.reshape(part, shape) for part in self._differentiable(flat, *best)]
        for part in found:
            part.set_shape([*lead[0], k])
        return tuple(found)

    def _differentiable(self, hidden, scores, ids):
        """Return `best_classes` of hidden vectors, `[n, k]` each, with the gradient of the scores."""
        if is_exporting() or not self.searches:
            return scores, ids
        variables = self.score_variables()

        def gradient(upstream):
            found = ids >= 0
            with tf.GradientTape() as tape:
                tape.watch([hidden, *variables])
                again = self.scores_of(hidden, tf.where(found, ids, 0))
            upstream = tf.where(found, upstream, 0.0)
            return tape.gradient(again, [hidden, *variables], output_gradients=upstream)

        return with_gradient(gradient, tf.stop_gradient(scores), [hidden], variables), ids

    def scores_of(self, hidden, ids):
        """Return the scores that `best_classes` has found, computed again where their gradient is asked for.

        Args:
            hidden: float `[n, dim]`.
            ids: int32 `[n, k]`, class ids.

        Returns:
            float32 `[n, k]`, with gradients.
        """
        every = tf.repeat(hidden, tf.shape(ids)[1], axis=0)
        return tf.reshape(self.log_prob(every, tf.reshape(ids, [-1])), tf.shape(ids))

    def score_variables(self):
        """Return the plain `tf.Variable`s of one device that scores have a gradient to, in addition
        to hidden vectors.
        """
        return []

    def best_without(self, hidden, k, excluded):
        """Return what `top_k` gives without some classes: `(scores, ids)`, `[n, k]` each; -inf and -1 if too
        few.

        As many more are searched as a token has excluded at most. Tokens with far more than the others are
        searched apart.

        Args:
            hidden: float `[n, dim]`.
            k: int.
            excluded: int32 `[n, m]`, class ids of each token, -1 being none.
        """
        width = excluded.shape[1]
        if width is not None and width <= _FEW:
            return self._best_of_more(hidden, k, excluded, min(k + width, self.num_classes))
        excluded = tf.sort(excluded, axis=1, direction="DESCENDING")  # what is padded comes last
        each = tf.reduce_sum(tf.cast(excluded >= 0, tf.int32), axis=1)
        usual = tf.reduce_sum(each) // tf.maximum(tf.size(each), 1)
        group = tf.cast(each > tf.maximum(_MANY * usual, _FEW), tf.int32)
        places, found = tf.dynamic_partition(tf.range(tf.size(each)), group, 2), []
        for tokens in places:
            # Without tokens the maximum is the smallest integer.
            most = tf.maximum(tf.reduce_max(tf.gather(each, tokens)), 0)
            theirs = tf.gather(excluded, tokens)[:, :most]
            wanted = tf.minimum(k + most, self.num_classes)
            found.append(self._best_of_more(tf.gather(hidden, tokens), k, theirs, wanted))
        return tuple(tf.dynamic_stitch(places, parts) for parts in zip(*found))

    def _best_of_more(self, hidden, k, excluded, wanted):
        """Return what `best_without` does, of the `wanted` best classes."""
        scores, ids = self.present_classes(hidden, wanted)
        kept = ~_contained(ids, tf.cast(excluded, ids.dtype))
        return _first_kept(scores, ids, tf.cast(kept, tf.int32), k)

    def present_classes(self, hidden, k):
        """Return `best_classes` of those that stand for an id; all do where there is no `vocabulary`.

        Of the k best of all, and then of twice as many, and so on, those are taken: classes without an id
        have learnt to be improbable, and few are among the best. (A `TableHead` scores all classes anyway,
        and masks these.)

        Args:
            hidden: float `[n, dim]`.
            k: int, or an int32 scalar tensor.

        Raises:
            NotImplementedError: several hosts have the head's weights, and would search unequally often.
        """
        if self.vocabulary is None:
            return self.best_classes(hidden, k)
        tables = {shard.array.table for shard in getattr(self, "shards", ())}
        if not (is_exporting() or all(table.hosts.is_alone for table in tables)):
            raise NotImplementedError(
                f"The best classes of a {type(self).__name__} with a `vocabulary` are searched on one host: "
                "export the predictor, or take a FullSoftmax or SampledSoftmax. Received: several hosts, for "
                f"the head {self.name!r}"
            )
        present = self.class_vocabulary.present(self.num_classes)

        def search(wanted, *_):
            scores, ids = self.best_classes(hidden, wanted)
            kept = tf.cast(tf.gather(present, ids), tf.int32)
            enough = tf.reduce_all(tf.reduce_sum(kept, axis=1) >= k) | (wanted >= self.num_classes)
            return tf.minimum(2 * wanted, self.num_classes), *_first_kept(scores, ids, kept, k), enough

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


def _first_kept(scores, ids, kept, k):
    """Return the first k classes for which `kept`, int32 `[n, m]`, is 1; -inf and -1 if too few."""
    kept, places = tf.math.top_k(kept, k)  # of equal ones the first: the order stays
    scores, ids = (tf.gather(part, places, batch_dims=1) for part in (scores, ids))
    return marked_missing(scores, ids, kept <= 0)


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
