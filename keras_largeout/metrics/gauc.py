"""`GAUC`: AUC within groups, in bounded memory.

Its state is sums, as is that of every metric here: so it adds up over replicas, hosts and workers. A sketch
of fixed size holds histograms of scores: one for the positive, one for the negative rows of a *bucket*. The
hash of a group names its bucket. Two groups in one bucket would be compared with each other, so such a bucket
is left out. It is found by sums as well: the fingerprints of its rows have a variance.

Bucket i of n takes the groups whose hash, in [0, 1), is in `[(i / n)**4, ((i + 1) / n)**4)`. Few groups are
spread over nearly all buckets; of very many, the first buckets still hold one each. As hashes have nothing to
do with scores, the buckets that count are a random sample of the groups.
"""

from typing import Any

import keras
import tensorflow as tf

from keras_largeout._checks import positive_int
from keras_largeout._head_annotations import groups_of
from keras_largeout._keras import is_symbolic
from keras_largeout.metrics._weights import per_row
from keras_largeout.metrics.probability import ProbabilityMetric
from keras_largeout.ops.labels import on_the_host
from keras_largeout.ops.mixing import mixed, shifted

_WIDEST = 10.0  # logits beyond it are in the outermost bins
_FINGERPRINTS = 4096


@keras.saving.register_keras_serializable(package="keras_largeout")
class GAUC(ProbabilityMetric):
    """The AUC within each group, such as the rows of a user: its mean, weighted by the rows of the groups.

    It measures the order in which each user sees the items. The AUC over all rows also rewards a model that
    merely finds out who clicks often. Groups whose labels are all the same are left out.

    The groups come from `keras_largeout.layers.GroupBy`, a layer of the model behind its output; then the
    metric works in `metrics` and in `weighted_metrics` of `compile`. In loops that are not Keras's, give them
    to `update_state`.

    Memory and time of a step do not depend on the number of groups or rows: the state is `2 * buckets * bins`
    floats, which each step adds to and reads. Two errors follow:

    - Of many groups, a random sample is measured. With n groups and b buckets, the expected share left out is
      about `2.3 * n / b` if n is much smaller than b; of n = b groups 82% are left out. If n is much larger
      than b, about `0.19 * b * (b / n)**(1 / 3)` groups are measured. The standard error of the result is
      the standard deviation of the groups' AUCs, over the root of the number of measured groups.
      `coverage` returns the share of the rows that are measured.
    - Rows of one bin of scores are ties, which count a half. Bins are intervals of the logit, of the width
      `20 / bins`. Logits beyond -10 and 10 are all in the outermost bins.

    Args:
        buckets: int > 0. Defaults to `16384`.
        bins: int > 1. Defaults to `64`.
        name: str. Defaults to `"gauc"`.
        dtype: of the result. Defaults to `None`.
        from_logits: bool, whether predictions are logits. Defaults to `False`.

    Raises:
        ValueError: `buckets` or `bins` is out of range; when it is updated: no groups are known, or they are
            neither integers nor strings; as in `LogLoss`.

    Example:

    ```python
    user = keras.Input((), dtype="int64", name="user")
    x = keras.Input((4,), name="x")
    click = keras.layers.Dense(1, activation="sigmoid")(x)
    model = kl.Model({"user": user, "x": x}, kl.layers.GroupBy()(click, user))
    model.compile("adam", "binary_crossentropy", metrics=[kl.metrics.GAUC()])
    ```

    References:
        - [Zhou et al., 2018](https://arxiv.org/abs/1706.06978), section 6.3.
    """

    _direction = "up"  # Keras's callbacks ask whether more is better

    def __init__(
        self,
        buckets: int = 16384,
        bins: int = 64,
        name: str = "gauc",
        dtype: str | keras.DTypePolicy | None = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(name, dtype, from_logits)
        self.buckets, self.bins = positive_int("buckets", buckets), positive_int("bins", bins)
        if self.bins < 2 or self.buckets * self.bins >= 2**30:
            raise ValueError(
                "`bins` must be at least 2, and `buckets * bins` less than 2**30. "
                f"Received: buckets={buckets}, bins={bins}"
            )
        self.scores = self.add_sum("scores", (2, self.buckets * self.bins), "float32")
        self.rows = self.add_sum("rows", (3, self.buckets))  # how many, their fingerprints, and squares

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None, groups: Any = None) -> None:
        """Adds a batch.

        Args:
            y_true: labels, 0 or 1, of the shape of `y_pred`. A last axis of length 1 may be missing.
            y_pred: float `[...]`, probabilities, or logits with `from_logits`. Masked rows are left out.
            sample_weight: optional, `[...]`, or of the first axes of that shape. Rows of weight 0 are left
                out.
            groups: int or string, of the shape of `y_pred` or of its first axes, the group of each row. None:
                the groups that a `GroupBy` has attached to `y_pred`. Defaults to `None`.

        Raises:
            ValueError: no groups are known, or they are neither integers nor strings; the shapes do not
                belong together.
        """
        groups = groups_of(y_pred) if groups is None else groups
        if groups is None:
            if is_symbolic():
                return
            raise ValueError(
                "`groups` must be given, or `y_pred` be the output of a `kl.layers.GroupBy`. "
                f"Received: groups=None, y_pred={y_pred}"
            )
        labels, predictions, weight = self.batch(y_true, y_pred, sample_weight)
        hashes = per_row(_hashes(tf.convert_to_tensor(groups)), tf.shape(y_pred), tf.int64)
        share = tf.cast(shifted(hashes, 11), tf.float64) * 2.0**-53
        bucket = tf.cast(tf.sqrt(tf.sqrt(share)) * self.buckets, tf.int32)
        bucket = tf.minimum(bucket, self.buckets - 1)  # the root of nearly 1 may be 1
        logits = predictions
        if not self.from_logits:
            logits = tf.math.log(predictions) - tf.math.log1p(-predictions)
        place = (tf.clip_by_value(logits, -_WIDEST, _WIDEST) / (2 * _WIDEST) + 0.5) * self.bins
        place = tf.clip_by_value(tf.cast(place, tf.int32), 0, self.bins - 1)
        cell = bucket * self.bins + place
        cells = [
            tf.math.unsorted_segment_sum(tf.cast(mass, tf.float32), cell, self.buckets * self.bins)
            for mass in (weight * labels, weight * (1 - labels))
        ]
        self.scores.assign_add(tf.stack(cells))
        fingerprint = tf.cast(hashes % _FINGERPRINTS, tf.float64)
        counts = tf.cast(weight != 0, tf.float64)
        rows = [
            tf.math.unsorted_segment_sum(counts * values, bucket, self.buckets)
            for values in (tf.ones_like(fingerprint), fingerprint, fingerprint**2)
        ]
        self.rows.assign_add(tf.stack(rows))

    def _single(self):
        """Return bool `[buckets]`: which buckets hold rows of one group."""
        count, total, squares = tf.unstack(self.rows.value)
        return squares - total * tf.math.divide_no_nan(total, count) < 0.25  # sums of integers

    def result(self) -> tf.Tensor:
        shape = (self.buckets, self.bins)
        positive, negative = (tf.reshape(part, shape) for part in tf.unstack(self.scores.value))
        below = tf.cumsum(negative, axis=1, exclusive=True) + negative / 2
        won = tf.cast(tf.reduce_sum(positive * below, axis=1), tf.float64)
        ones, zeros = (tf.cast(tf.reduce_sum(part, axis=1), tf.float64) for part in (positive, negative))
        weight = tf.where(self._single() & (ones * zeros != 0), ones + zeros, 0.0)
        total = tf.reduce_sum(weight * tf.math.divide_no_nan(won, ones * zeros))
        return keras.ops.cast(tf.math.divide_no_nan(total, tf.reduce_sum(weight)), self.dtype)

    def coverage(self) -> tf.Tensor:
        """Return the share of the rows that is in buckets of one group: a scalar, 0 before the first row."""
        count = self.rows.value[0]
        measured = tf.reduce_sum(tf.where(self._single(), count, 0.0))
        return keras.ops.cast(tf.math.divide_no_nan(measured, tf.reduce_sum(count)), self.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "buckets": self.buckets, "bins": self.bins}


def _hashes(groups):
    """Return int64, the shape of `groups`: the hash of each."""
    if groups.dtype == tf.string:
        with on_the_host():
            groups = tf.strings.to_hash_bucket_fast(groups, 2**63 - 1)
    elif not groups.dtype.is_integer:
        raise ValueError(f"`groups` must be integers or strings. Received: {groups.dtype.name}")
    return mixed(tf.cast(groups, tf.int64))
