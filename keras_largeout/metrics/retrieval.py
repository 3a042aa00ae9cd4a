"""Metrics of retrieval: recall, hit rate and reciprocal rank among the k best classes."""

from typing import Any

import keras
import tensorflow as tf

from keras_largeout.metrics.at_k import AtK, TopKAccuracy


@keras.saving.register_keras_serializable(package="keras_largeout")
class RecallAtK(AtK):
    """Recall@k: how many of a row's labels are among the k best classes, over all of its labels; the mean.

    Rows without a label are left out. A row of more than k labels cannot reach 1.

    Args:
        k: int > 0.
        name: str. None: `recall_at_{k}`. Defaults to `None`.
        dtype: of the result. Defaults to `None`.
        num_classes: int, or None: only needed for multi-hot matrices. Defaults to `None`.

    Raises:
        ValueError: `k` is no positive integer.

    Example:

    ```python
    model.compile(optimizer, loss=head.loss, metrics=[kl.metrics.RecallAtK(10), kl.metrics.NDCGAtK(10)])
    ```

    References:
        - Manning, Raghavan and Schütze, "Introduction to Information Retrieval", 2008, Cambridge University
          Press, sections 8.3 and 8.4.
    """

    short_name = "recall"

    def parts(self, hits: Any) -> tuple[tf.Tensor, tf.Tensor]:
        labels = tf.cast(hits.labels_per_row(), tf.float64)
        found = tf.reduce_sum(tf.cast(hits.hit, tf.float64), axis=1)
        return tf.math.divide_no_nan(found, labels), tf.cast(labels > 0, tf.float64)


@keras.saving.register_keras_serializable(package="keras_largeout")
class HitRateAtK(TopKAccuracy):
    """HR@k: how often one of the k best classes is a label of the row.

    The name is that of recommenders, the numbers are those of `TopKAccuracy`. With one label per row they
    are also those of `RecallAtK`.

    Args:
        k: int > 0. Defaults to `10`.
        name: str. None: `hit_rate_at_{k}`. Defaults to `None`.
        dtype: of the result. Defaults to `None`.
        num_classes: int, or None: only needed for multi-hot matrices. Defaults to `None`.

    Raises:
        ValueError: `k` is not a positive integer.

    Example:

    ```python
    model.compile(optimizer, loss=head.loss, metrics=[kl.metrics.HitRateAtK(10)])
    ```

    References:
        - Deshpande and Karypis, "Item-based top-N recommendation algorithms", ACM TOIS 22(1), 2004, section
          6.2.
    """

    def __init__(
        self,
        k: int = 10,
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(k, name=name or f"hit_rate_at_{k}", dtype=dtype, num_classes=num_classes)


@keras.saving.register_keras_serializable(package="keras_largeout")
class MRR(AtK):
    """Mean reciprocal rank: 1 / the rank of the first of the k best classes that is a label; 0 where none is.

    Rows without a label are left out.

    Args:
        k: int > 0. Defaults to `10`.
        name: str. None: `mrr_at_{k}`. Defaults to `None`.
        dtype: of the result. Defaults to `None`.
        num_classes: int, or None: only needed for multi-hot matrices. Defaults to `None`.

    Raises:
        ValueError: `k` is not a positive integer.

    Example:

    ```python
    model.compile(optimizer, loss=head.loss, metrics=[kl.metrics.MRR(10)])
    ```

    References:
        - Voorhees, "The TREC-8 question answering track report", TREC 1999, section 3.
    """

    short_name = "mrr"

    def __init__(
        self,
        k: int = 10,
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(k, name=name, dtype=dtype, num_classes=num_classes)

    def parts(self, hits: Any) -> tuple[tf.Tensor, tf.Tensor]:
        reciprocal = 1 / tf.range(1, self.k + 1, dtype=tf.float64)
        first = tf.reduce_max(tf.where(hits.hit, reciprocal, 0.0), axis=1)
        return first, tf.cast(hits.labels_per_row() > 0, tf.float64)
