"""Drawing candidates: the classes that stand for all others in one step of a sampled softmax."""

from typing import NamedTuple

import tensorflow as tf

_MOST_ROUNDS = 16

DISTRIBUTIONS = ("log_uniform", "uniform", "counts", "in_batch", "mixed")


class Candidates(NamedTuple):
    """Distinct classes, ascending, and what their logits are corrected by.

    Attributes:
        ids: int64 `[n]`.
        correction: float32 `[n]`, to be added to the logits: log(how often it was drawn) - log(expected).
    """

    ids: tf.Tensor
    correction: tf.Tensor

    def places_of(self, classes):
        """Return where each of `classes` (int64 `[m]`) is among the ids: int64 `[m]`, -1 where it is not."""
        count = tf.size(self.ids)
        places = tf.searchsorted(self.ids, classes, out_type=tf.int64)
        places = tf.minimum(places, tf.cast(tf.maximum(count - 1, 0), tf.int64))
        padded = tf.concat([self.ids, [tf.constant(-1, tf.int64)]], 0)  # never without an element
        return tf.where(tf.gather(padded, places) == classes, places, -1)


class CandidateSampler:
    """Draws classes and knows how often each is expected.

    Args:
        num_classes: int.
        num_sampled: int, draws per step; for a batch's own classes 0.
        distribution: one of `DISTRIBUTIONS`. "mixed": the batch's own classes, and uniform ones.
        unique: whether classes are drawn until `num_sampled` different ones are there.
        counts: function that gives float32 `[num_classes]`, frequencies of the classes, or None.
    """

    def __init__(self, num_classes, num_sampled, distribution, unique=True, counts=None):
        self.num_classes, self.num_sampled = num_classes, num_sampled
        self.distribution, self.unique, self._counts = distribution, unique, counts
        self._all = unique and num_sampled == num_classes  # nothing is left to chance
        self._own = distribution in ("in_batch", "mixed")

    def draw(self, targets, seed):
        """Return the `Candidates` of a step.

        Args:
            targets: int64 `[tokens]`, of the whole batch, from 0 to num_classes - 1.
            seed: int32 or int64 `[2]`: the same seed draws the same classes.
        """
        drawn, draws = tf.zeros([0], tf.int64), float(self.num_sampled)
        if self._all:
            drawn = tf.range(self.num_classes, dtype=tf.int64)
        elif self.num_sampled and self.unique:
            drawn, draws = self._distinct(seed)
        elif self.num_sampled:
            drawn = self._some(self.num_sampled, seed)
        ids, _, times = tf.unique_with_counts(tf.sort(tf.concat([drawn, targets], 0) if self._own else drawn))
        times = tf.cast(times, tf.float32)
        frequency = self._batch_frequency(targets) if self._own else None
        expected = self._expected(ids, draws, frequency)
        return Candidates(ids, tf.math.log(times) - tf.math.log(expected))

    def _some(self, n, seed):
        """Return classes, int64 `[n]`, each drawn by itself."""
        uniform = tf.random.stateless_uniform([n], seed, dtype=tf.float64)
        if self.distribution == "log_uniform":
            classes = tf.exp(uniform * tf.math.log(tf.constant(self.num_classes + 1.0, tf.float64))) - 1.0
        elif self.distribution == "counts":
            sums = tf.cumsum(tf.cast(self._counts(), tf.float64))
            classes = tf.searchsorted(sums, uniform * sums[-1], side="right", out_type=tf.int64)
        else:
            classes = uniform * self.num_classes
        return tf.clip_by_value(tf.cast(classes, tf.int64), 0, self.num_classes - 1)

    def _distinct(self, seed):
        """Return `num_sampled` different classes, and how many draws they took: a float32 scalar.

        Rounds of draws follow one another until there are enough; the draws after the last new class do not
        count. Where nearly all classes are wanted the rarest would take forever: then there are fewer.
        """
        wanted, size = self.num_sampled, 2 * self.num_sampled + 64

        def too_few(round_, drawn):
            return (tf.size(tf.unique(drawn).y) < wanted) & (round_ < _MOST_ROUNDS)

        def more(round_, drawn):
            again = tf.random.experimental.stateless_fold_in(seed, round_)
            return round_ + 1, tf.concat([drawn, self._some(size, again)], 0)

        none_yet = tf.constant(0), tf.zeros([0], tf.int64)
        shapes = tf.TensorShape([]), tf.TensorShape([None])
        _, drawn = tf.while_loop(too_few, more, none_yet, shape_invariants=shapes)
        classes, which = tf.unique(drawn)  # numbered in the order in which they were drawn
        enough = tf.size(classes) >= wanted
        last_new = tf.where(enough, tf.argmax(which == wanted - 1, output_type=tf.int32) + 1, tf.size(drawn))
        return classes[:wanted], tf.cast(last_new, tf.float32)

    def _probability(self, classes):
        """Return the probability of each class in one draw, float32."""
        if self.distribution == "log_uniform":
            classes = tf.cast(classes, tf.float64)
            odds = tf.math.log1p(1.0 / (classes + 1.0))
            return tf.cast(odds / tf.math.log(tf.constant(self.num_classes + 1.0, tf.float64)), tf.float32)
        if self.distribution == "counts":
            counts = self._counts()
            return tf.gather(counts, classes) / tf.reduce_sum(counts)
        return tf.fill(tf.shape(classes), 1.0 / self.num_classes)

    def _expected(self, classes, draws, frequency):
        """Return how often each class is expected among the candidates, float32."""
        expected = tf.zeros(tf.shape(classes)) if frequency is None else frequency(classes)
        if self._all:
            expected += 1.0
        elif self.num_sampled:
            p = self._probability(classes)
            if self.unique:
                # At most once: 1 - (1 - p)^draws.
                p = tf.minimum(p, 1.0 - 1e-7)
                expected += -tf.math.expm1(draws * tf.math.log1p(-p))
            else:
                expected += draws * p
        return expected

    def _batch_frequency(self, targets):
        """Return a function from classes to how often each is expected in a batch: by counts, or as in
        this one.
        """
        if self._counts is not None:
            counts = self._counts()
            share = tf.cast(tf.size(targets), tf.float32) / tf.reduce_sum(counts)
            return lambda classes: tf.gather(counts, classes) * share
        ids, _, times = tf.unique_with_counts(tf.sort(targets))
        batch = Candidates(ids, tf.cast(times, tf.float32))

        def in_this_batch(classes):
            places = batch.places_of(classes)
            times = tf.concat([batch.correction, [0.0]], 0)
            return tf.where(places >= 0, tf.gather(times, tf.maximum(places, 0)), 0.0)

        return in_this_batch
