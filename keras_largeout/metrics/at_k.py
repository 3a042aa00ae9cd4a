"""Accuracy, precision, nDCG and propensity-scored precision of the k best classes."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout._checks import positive_int
from keras_largeout.metrics._hits import find_hits
from keras_largeout.metrics._scores import best_of, classes_of, head_of, nothing_to_measure
from keras_largeout.metrics._weights import per_row


class AtK(keras.metrics.Metric):
    """A ratio of two sums over the rows. Subclasses say what a row adds to each: `parts`."""

    _direction = "up"  # Keras's callbacks ask whether more is better

    def __init__(
        self,
        k: int,
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        num_classes: int | None = None,
    ) -> None:
        k = positive_int("k", k)
        super().__init__(name=name or f"{self.short_name}_at_{k}", dtype=dtype)
        self.k, self.num_classes = k, None if num_classes is None else int(num_classes)
        # float32 would stop counting at 16.7 million rows.
        self.total = self.add_weight(shape=(), initializer="zeros", dtype="float64", name="total")
        self.count = self.add_weight(shape=(), initializer="zeros", dtype="float64", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch.

        Args:
            y_true: label ids: int `[..., n]` padded with -1, a `tf.RaggedTensor` or `tf.SparseTensor`
                `[batch, n]`, or one id per row, `[...]`. Labels given twice count once. Or a multi-hot
                matrix `[batch, num_classes]`, sparse or dense, as in the losses of heads: a sparse one of
                floats or bools, any other if `num_classes` is known, from the metric or the head.
            y_pred: int `[..., m]`, m >= k, the ids of `top_k`, best first; or what `head.predictor` returns,
                a dict with these at "ids" (those of its `vocabulary`, if the head has one, which may be
                strings: then `y_true` has them, too); or the output of a model that ends in a head, in
                `compile`: its k best classes are then found in every step, and rows that are masked are left
                out.
            sample_weight: optional, a weight per row, `[...]`, or of the first axes of that shape.

        Raises:
            ValueError: these are no ids, or shapes that do not belong together; zeros and ones in many
                columns where `num_classes` is not known or another (in a graph a
                `tf.errors.InvalidArgumentError`).
        """
        if nothing_to_measure(y_pred):
            return
        counted, num_classes, head = None, self.num_classes, head_of(y_pred)
        if head is not None:
            num_classes = head.num_classes
            best, counted = best_of(y_true, y_pred, self.k)
            y_true, y_pred = classes_of(y_true, y_pred), best
        hits = find_hits(y_true, y_pred, self.k, num_classes)
        top, bottom = self.parts(hits)
        ids = y_pred["ids"] if isinstance(y_pred, dict) else y_pred
        for weight in (sample_weight, counted):
            if weight is not None:
                weight = per_row(weight, tf.shape(ids)[:-1])
                top, bottom = top * weight, bottom * weight
        self.total.assign_add(tf.reduce_sum(top))
        self.count.assign_add(tf.reduce_sum(bottom))

    def parts(self, hits: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return what each row adds to the two sums: float64 `[n]` each."""
        raise NotImplementedError

    def result(self) -> tf.Tensor:
        return keras.ops.cast(tf.math.divide_no_nan(self.total.value, self.count.value), self.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "k": self.k, "num_classes": self.num_classes}


@keras.saving.register_keras_serializable(package="keras_largeout")
class TopKAccuracy(AtK):
    """The share of rows of which one of the k best classes is a label. Rows without a label are left out.

    With one label per row and k = 1 that is the accuracy. In `compile(metrics=...)` of a model that ends in a
    head, the k best classes of every token are found in every step, which costs more than the loss does.

    Args:
        k: int > 0. Defaults to `5`.
        name: str. None: `top_{k}_accuracy`. Defaults to `None`.
        dtype: of the result. Defaults to `None`.
        num_classes: int, or None: only needed for multi-hot matrices. Defaults to `None`.

    Example:

    ```python
    model.compile(optimizer, loss=head.loss, metrics=[kl.metrics.TopKAccuracy(1), kl.metrics.TopKAccuracy(5)])
    ```
    """

    def __init__(
        self,
        k: int = 5,
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(k, name=name or f"top_{k}_accuracy", dtype=dtype, num_classes=num_classes)

    def parts(self, hits: Any) -> tuple[tf.Tensor, tf.Tensor]:
        has_label = tf.cast(hits.labels_per_row() > 0, tf.float64)
        return tf.cast(tf.reduce_any(hits.hit, axis=1), tf.float64), has_label


@keras.saving.register_keras_serializable(package="keras_largeout")
class PrecisionAtK(AtK):
    """P@k: how many of the k best classes are labels of their row, over k; the mean over all rows.

    A row without labels counts as 0. With one label per row, P@1 is the accuracy.

    Args:
        k: int > 0.
        name: str. None: `precision_at_{k}`. Defaults to `None`.
        dtype: of the result. Defaults to `None`.
        num_classes: int, or None: only needed for multi-hot matrices. Defaults to `None`.

    Example:

    ```python
    predictor, metric = head.predictor(model, k=5), kl.metrics.PrecisionAtK(5)
    for x, y in data:
        metric.update_state(y, predictor(x))
    ```
    """

    short_name = "precision"

    def parts(self, hits: Any) -> tuple[tf.Tensor, tf.Tensor]:
        hit = tf.cast(hits.hit, tf.float64)
        return tf.reduce_sum(hit, axis=1) / self.k, tf.ones_like(hit[:, 0])


@keras.saving.register_keras_serializable(package="keras_largeout")
class NDCGAtK(AtK):
    """nDCG@k: hits discounted by 1 / log2(rank + 1), over the best that the row's labels allow; the mean.

    A row without labels counts as 0. Labels are equally relevant.

    Args:
        k: int > 0.
        name: str. None: `ndcg_at_{k}`. Defaults to `None`.
        dtype: of the result. Defaults to `None`.
        num_classes: int, or None: only needed for multi-hot matrices. Defaults to `None`.

    Raises:
        ValueError: `k` is not a positive integer.

    Example:

    ```python
    model.compile(optimizer, loss=head.loss, metrics=[kl.metrics.NDCGAtK(10)])
    ```

    References:
        - Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", ACM TOIS 20(4), 2002,
          in the form of the Extreme Classification Repository (discounted from the first rank on).
    """

    short_name = "ndcg"

    def parts(self, hits: Any) -> tuple[tf.Tensor, tf.Tensor]:
        discount = tf.constant(1 / np.log2(np.arange(2, self.k + 2)))
        gain = tf.linalg.matvec(tf.cast(hits.hit, tf.float64), discount)
        best = tf.concat([tf.zeros([1], tf.float64), tf.cumsum(discount)], axis=0)
        ideal = tf.gather(best, tf.minimum(hits.labels_per_row(), self.k))
        return tf.math.divide_no_nan(gain, ideal), tf.ones_like(gain)


@keras.saving.register_keras_serializable(package="keras_largeout")
class PropensityScoredPrecisionAtK(AtK):
    """PSP@k: precision in which a hit weighs 1 / propensity of its label, so that rare labels count more.

    As the Extreme Classification Repository reports it: the sum over all rows, over the largest one that any
    prediction could reach. (PSP of the paper has no such division, and can exceed 1.)

    Args:
        propensities: float `[num_classes]` in (0, 1], see `kl.metrics.propensities`.
        k: int > 0.
        name: str. None: `psp_at_{k}`. Defaults to `None`.
        dtype: of the result. Defaults to `None`.

    Raises:
        ValueError: `k` is not a positive integer, or a propensity is not in (0, 1].

    Example:

    >>> metric = kl.metrics.PropensityScoredPrecisionAtK(propensities=[0.5, 0.25, 1.0], k=1)
    >>> metric.update_state([[1, 2]], [[2, 0]])  # the labels of a row, its best classes
    >>> float(metric.result())
    0.25

    References:
        - Jain, Prabhu and Varma, "Extreme multi-label loss functions for recommendation, tagging, ranking &
          other missing label applications", KDD 2016: propensity scored precision.
    """

    short_name = "psp"

    def __init__(
        self,
        propensities: ArrayLike,
        k: int,
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
    ) -> None:
        values = np.asarray(propensities, np.float64)
        super().__init__(k, name=name, dtype=dtype, num_classes=values.size)
        if values.ndim != 1 or not np.all((values > 0) & (values <= 1)):
            raise ValueError(
                "`propensities` must be one number in (0, 1] for every class. "
                f"Received: propensities of shape {values.shape}, from {values.min(initial=np.inf)} "
                f"to {values.max(initial=-np.inf)}"
            )
        self._gains = 1 / values

    def parts(self, hits: Any) -> tuple[tf.Tensor, tf.Tensor]:
        gains = tf.constant(self._gains)
        won = tf.where(hits.hit, tf.gather(gains, tf.where(hits.hit, hits.ids, 0)), 0.0)
        rows = tf.shape(hits.ids, tf.int64)[0]
        ideal = tf.RaggedTensor.from_value_rowids(tf.gather(gains, hits.label), hits.row, rows)
        # At least k columns, so that there are k best.
        ideal = tf.pad(ideal.to_tensor(0.0), [[0, 0], [0, self.k]])
        best = tf.math.top_k(ideal, self.k).values
        return tf.reduce_sum(won, axis=1), tf.reduce_sum(best, axis=1)

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "propensities": (1 / self._gains).tolist()}
        del config["num_classes"]
        return config
