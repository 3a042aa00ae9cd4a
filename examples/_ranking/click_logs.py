"""Click logs that every machine can make: ids by Zipf's law, and clicks from a hidden model that is known.

Nothing is stored. What an id means to the hidden model is a hash of it, and a block of the log follows from
the seed and the number of the block. So a log may be longer, and a vocabulary larger, than the memory.
"""

import math

import numpy as np
import tensorflow as tf
from _ranking.models import Feature

DENSE = 13
#: Rows that are made at a time. A log does not depend on the size of the batches that it is read in.
BLOCK = 4096
#: Features of several ids, by their place, and how many they have at most.
_BAGS = {8: 5, 15: 4, 22: 5}
#: Numbers in the vector by which the hidden model knows an id.
_LATENT = 4


def default_features(most_rows=5_000_000):
    """Return 26 `Feature`s of 10 to `most_rows` rows; each is larger than the one before by the same
    factor.
    """
    rows = np.geomspace(10, most_rows, 26).round().astype(int).tolist()
    return [Feature(f"c{i + 1}", n, _BAGS.get(i, 1)) for i, n in enumerate(rows)]


def zipf_ranks(uniform, rows, exponent):
    """Return ranks `0 .. rows - 1` from numbers in 0 .. 1: rank r has the probability `zipf_shares(...)[r]`.

    The continuous law x^-exponent on 1 .. rows + 1, rounded down: it needs no table of probabilities.
    """
    top = (rows + 1.0) ** (1 - exponent) - 1
    found = tf.floor((1 + uniform * top) ** (1 / (1 - exponent))) - 1
    return tf.cast(tf.clip_by_value(found, tf.zeros_like(found), rows - 1.0), tf.int64)


def zipf_shares(rows, exponent):
    """Return float64 `[rows]`: the probabilities of the ranks."""
    below = np.arange(1, rows + 2, dtype=np.float64) ** (1 - exponent)
    return np.diff(below) / (below[-1] - 1)


class ClickLogs:
    """Rows of 13 dense features, categorical features, a label, and the true probability of the label 1.

    Every id has a vector of 4 numbers. The true log odds are the sum of an effect of each id, of the dot
    products of all pairs of ids, and of the dense features, which are in the pairs as one more vector. An id
    of a bag counts as the share of the bag that it is.

    Args:
        features: list of `Feature`. In those of several ids 0 is padding.
        seed: int. Other seeds have other ids, other effects and other labels.

    Attributes:
        exponents: float64 `[features]`, of Zipf's law for each.
    """

    def __init__(self, features, seed=0):
        self.features, self.seed = list(features), seed
        rng = np.random.default_rng(seed)
        count = len(self.features)
        self.exponents = 1.05 + 0.3 * rng.random(count)
        # Columns: one per id that a row may have. A bag has several.
        self._owner = np.repeat(np.arange(count), [f.ids for f in self.features])
        self._first = np.array([int(f.ids > 1) for f in self.features])  # in a bag 0 is padding
        self._rows = np.array([f.rows for f in self.features]) - self._first
        self._steps = np.array([_coprime(rows) for rows in self._rows])
        self._salts = rng.integers(0, 2**63, count, dtype=np.uint64)
        self._place = rng.normal(0, 1, DENSE)
        self._effects = rng.normal(0, 0.7 / math.sqrt(count), (count, _LATENT))
        # Pairs: sum of w_f w_g <v_f, v_g>. The dense features have a vector too, the last one.
        strength = rng.uniform(0.3, 1, count + 1)
        pairs = (strength.sum() ** 2 - (strength**2).sum()) / 2
        self._strength = strength * math.sqrt(0.45 / math.sqrt(pairs))
        self._dense_effects = rng.normal(0, 0.6 / math.sqrt(DENSE), DENSE)
        self._dense_vectors = rng.normal(0, 1 / math.sqrt(DENSE), (DENSE, _LATENT))

    def dataset(self, rows, batch, side="train", truth=False):
        """Return a `tf.data.Dataset` of batches `(inputs, labels)`, made while they are read.

        Args:
            rows: int, how many rows.
            batch: int, rows in a batch. The last batch may be smaller.
            side: "train" or "test": no row is in both.
            truth: whether to add the true probabilities: `(inputs, labels, probabilities)`.

        Returns:
            Inputs are a dict: "dense", float32 `[batch, 13]`, and the ids of each feature by its name, int32
            `[batch]`, or `[batch, ids]` for a bag. Labels are float32 `[batch]`.
        """
        if side not in ("train", "test"):
            raise ValueError(f"`side` must be 'train' or 'test'. Received: side={side!r}")
        if rows < 1:
            raise ValueError(f"`rows` must be a positive integer. Received: rows={rows}")

        @tf.autograph.experimental.do_not_convert
        def block(number):
            parts = self._block(number, side)
            return tf.nest.map_structure(lambda part: part[: rows - number * BLOCK], parts)

        data = tf.data.Dataset.range(-(-rows // BLOCK)).map(block, num_parallel_calls=tf.data.AUTOTUNE)
        data = data.rebatch(batch).apply(tf.data.experimental.assert_cardinality(-(-rows // batch)))
        if not truth:
            data = data.map(lambda inputs, labels, probabilities: (inputs, labels))
        return data.prefetch(tf.data.AUTOTUNE)

    def _block(self, number, side):
        """Return `BLOCK` rows: `(inputs, labels, probabilities)`."""
        draw = iter(range(10))

        def uniform(*shape):
            seed = tf.stack([self.seed * 20 + 10 * (side == "test") + next(draw), number])
            return tf.random.stateless_uniform([BLOCK, *shape], seed, dtype=tf.float64)

        ids = self._ids(uniform(len(self._owner)))
        # A bag has one id at least, and each further one with a probability of 0.7.
        more, inside = uniform(len(self._owner)) < 0.7, []
        for column, owner in enumerate(self._owner):
            new = column == 0 or owner != self._owner[column - 1]
            inside.append(tf.ones([BLOCK], bool) if new else inside[-1] & more[:, column])
        inside = tf.cast(tf.stack(inside, 1), tf.float32)
        normal = tf.sqrt(-2 * tf.math.log(1 - uniform(DENSE))) * tf.cos(2 * math.pi * uniform(DENSE))
        dense = tf.math.log1p(tf.floor(tf.exp(_float32(self._place) + tf.cast(normal, tf.float32))))
        same = _float32(self._owner[:, None] == self._owner)  # columns of one feature
        probabilities = tf.sigmoid(self._log_odds(dense, ids, inside / (inside @ same)))
        labels = tf.cast(tf.cast(uniform(), tf.float32) < probabilities, tf.float32)
        inputs = {"dense": dense}
        shown = tf.cast(ids, tf.int32) * tf.cast(inside, tf.int32)
        for i, feature in enumerate(self.features):
            (columns,) = np.nonzero(self._owner == i)
            first, last = columns[0], columns[-1]
            inputs[feature.name] = shown[:, first] if feature.ids == 1 else shown[:, first : last + 1]
        return inputs, labels, probabilities

    def _ids(self, uniform):
        """Return ids of all columns. Ranks are scattered over the rows, as hashing would do it, by a
        bijection.
        """
        rows, steps, first = (a[self._owner] for a in (self._rows, self._steps, self._first))
        ranks = zipf_ranks(uniform, rows.astype(np.float64), self.exponents[self._owner])
        return first + ranks * steps % rows

    def _log_odds(self, dense, ids, shares):
        """Return float32 `[rows]`. `shares`: what each column counts in its feature, `[rows, columns]`."""
        vectors = _hashed(ids, self._salts[self._owner])  # [rows, columns, 4]
        effects = tf.einsum("rc,rck,ck->r", shares, vectors, _float32(self._effects[self._owner]))
        centred = dense - _float32(np.log1p(np.exp(self._place)))
        effects += tf.linalg.matvec(centred, _float32(self._dense_effects))
        own = tf.tanh(centred @ _float32(self._dense_vectors)) * _float32(self._strength[-1])
        # The sum over all pairs, from the square of the sum.
        weights = (shares * _float32(self._strength[self._owner]))[..., None]
        each = tf.concat([vectors * weights, own[:, None]], 1)
        pairs = tf.reduce_sum(tf.reduce_sum(each, 1) ** 2 - tf.reduce_sum(each**2, 1), -1) / 2
        return effects + pairs - 1.9


def _float32(values):
    return tf.constant(values, tf.float32)


def _coprime(rows):
    """Return a step of about 0.62 `rows` that meets every row before it meets one again."""
    step = max(1, round(0.618 * rows))
    while math.gcd(step, rows) > 1:
        step += 1
    return step


def _hashed(ids, salts):
    """Return float32 `[..., 4]`: numbers of mean 0 and variance 1, from an id and the salt of its feature.

    The bits are mixed as by SplitMix64 (Steele, Lea and Flood, 2014).
    """
    mixed = tf.cast(ids, tf.uint64) * tf.constant(0x9E3779B97F4A7C15, tf.uint64) + salts
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        shifted = tf.bitwise.right_shift(mixed, tf.constant(shift, tf.uint64))
        mixed = tf.bitwise.bitwise_xor(mixed, shifted) * tf.constant(factor, tf.uint64)
    parts = tf.cast(tf.bitcast(mixed, tf.uint16), tf.float32)
    return (parts / 2**15 - 1) * math.sqrt(3)
