"""Metrics of the probability of a click: log loss, normalized entropy, calibration."""

from typing import Any

import keras
import tensorflow as tf

from keras_largeout._keras import mask_of
from keras_largeout.metrics._weights import per_row

# The smallest probability and its complement, as in scikit-learn for float32.
_LEAST = 2.0**-23


class ProbabilityMetric(keras.metrics.Metric):
    """A metric of labels and probabilities, whose state is sums over the rows. Subclasses `add` to them."""

    def __init__(
        self, name: str, dtype: str | keras.DTypePolicy | None = None, from_logits: bool = False
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.from_logits = bool(from_logits)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch.

        Args:
            y_true: labels, 0 or 1, or numbers between: bool, int or float, of the shape of `y_pred`. A last
                axis of length 1 may be missing.
            y_pred: float `[...]`, probabilities, or logits with `from_logits`. Masked rows are left out.
            sample_weight: optional, `[...]`, or of the first axes of that shape. Rows of weight 0 are left
                out.

        Raises:
            ValueError: the shapes do not belong together.
        """
        self.add(*self.batch(y_true, y_pred, sample_weight))

    def batch(self, y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return labels, predictions and weights: float64 `[n]` each.

        Labels and predictions outside of their range become NaN, together with their weight: so does each
        sum that has them.
        """
        mask, y_pred, y_true = mask_of(y_pred), tf.convert_to_tensor(y_pred), tf.convert_to_tensor(y_true)
        _check_shapes(y_true, y_pred)
        rows = tf.shape(y_pred)
        y, p = (tf.cast(tf.reshape(values, [-1]), tf.float64) for values in (y_true, y_pred))
        weight = tf.ones_like(p)
        for given in (sample_weight, mask):
            if given is not None:
                weight *= per_row(given, rows)
        y, p = (tf.where(weight == 0, tf.zeros_like(p), values) for values in (y, p))
        valid = (y >= 0) & (y <= 1)
        valid &= tf.math.is_finite(p) if self.from_logits else (p >= 0) & (p <= 1)
        return tuple(tf.where(valid, values, float("nan")) for values in (y, p, weight))

    def probabilities(self, predictions: tf.Tensor) -> tf.Tensor:
        """Return what `batch` gives as predictions, as probabilities."""
        return tf.sigmoid(predictions) if self.from_logits else predictions

    def add(self, labels: tf.Tensor, predictions: tf.Tensor, weight: tf.Tensor) -> None:
        """Adds what `batch` returns to the state."""
        raise NotImplementedError

    def add_sum(self, name: str, shape: tuple[int, ...] = (), dtype: str = "float64") -> keras.Variable:
        """Return a weight that begins at 0. (float32 would stop counting at 16.7 million rows.)"""
        return self.add_weight(shape=shape, initializer="zeros", dtype=dtype, name=name)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "from_logits": self.from_logits}


def _check_shapes(y_true, y_pred):
    labels, shape = y_true.shape, y_pred.shape
    fits = True
    if labels.rank is not None and shape.rank is not None:
        longer, shorter = (labels, shape) if labels.rank > shape.rank else (shape, labels)
        if longer.rank == shorter.rank + 1 and longer[-1] in (1, None):
            longer = longer[:-1]
        fits = longer.is_compatible_with(shorter)
    if not fits:
        raise ValueError(
            "`y_true` must have the shape of `y_pred`, a number for each row. "
            f"Received: y_true.shape={labels}, y_pred.shape={shape}"
        )


@keras.saving.register_keras_serializable(package="keras_largeout")
class LogLoss(ProbabilityMetric):
    """The mean of -log p(label), over all rows since the metric was reset.

    It is the loss "binary_crossentropy" without penalties, and a mean over rows where Keras has a mean over
    batches. Probabilities are clipped to `[2**-23, 1 - 2**-23]`; logits are not clipped.

    In `metrics` each row weighs the same; in `weighted_metrics` it has its sample weight.

    Args:
        name: str. Defaults to `"log_loss"`.
        dtype: of the result. Defaults to `None`.
        from_logits: bool, whether predictions are logits. Defaults to `False`.

    Raises:
        ValueError: when it is updated: `y_true` does not have the shape of `y_pred`. A label or a probability
            outside of [0, 1] raises nothing: the result is NaN.

    Example:

    >>> metric = kl.metrics.LogLoss()
    >>> metric.update_state([0, 1, 1], [0.1, 0.8, 0.5])
    >>> round(float(metric.result()), 4)
    0.3406
    """

    _direction = "down"  # Keras's callbacks ask whether more is better

    def __init__(
        self,
        name: str = "log_loss",
        dtype: str | keras.DTypePolicy | None = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(name, dtype, from_logits)
        self.total, self.count = self.add_sum("total"), self.add_sum("count")

    def add(self, labels: tf.Tensor, predictions: tf.Tensor, weight: tf.Tensor) -> None:
        if self.from_logits:
            losses = tf.math.softplus(predictions) - labels * predictions
        else:
            p = tf.clip_by_value(predictions, _LEAST, 1 - _LEAST)
            losses = -(labels * tf.math.log(p) + (1 - labels) * tf.math.log1p(-p))
        self.total.assign_add(tf.reduce_sum(weight * losses))
        self.count.assign_add(tf.reduce_sum(weight))

    def result(self) -> tf.Tensor:
        return keras.ops.cast(tf.math.divide_no_nan(self.total.value, self.count.value), self.dtype)


@keras.saving.register_keras_serializable(package="keras_largeout")
class NormalizedEntropy(LogLoss):
    """The log loss, divided by the log loss of a constant prediction: the mean label.

    A model that knows nothing but the average click rate has 1; smaller is better. Unlike the log loss it
    can be compared between data of different click rates. It is 0 while all labels are the same.

    Args:
        name: str. Defaults to `"normalized_entropy"`.
        dtype: of the result. Defaults to `None`.
        from_logits: bool, whether predictions are logits. Defaults to `False`.

    Raises:
        ValueError: as in `LogLoss`.

    Example:

    >>> metric = kl.metrics.NormalizedEntropy()
    >>> metric.update_state([0, 1, 1], [0.1, 0.8, 0.5])
    >>> round(float(metric.result()), 4)
    0.535

    References:
        - He et al., "Practical lessons from predicting clicks on ads at Facebook", ADKDD 2014, section 2.
    """

    def __init__(
        self,
        name: str = "normalized_entropy",
        dtype: str | keras.DTypePolicy | None = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(name, dtype, from_logits)
        self.positive = self.add_sum("positive")

    def add(self, labels: tf.Tensor, predictions: tf.Tensor, weight: tf.Tensor) -> None:
        super().add(labels, predictions, weight)
        self.positive.assign_add(tf.reduce_sum(weight * labels))

    def result(self) -> tf.Tensor:
        count = self.count.value
        rate = tf.math.divide_no_nan(self.positive.value, count)
        entropy = -(tf.math.xlogy(rate, rate) + tf.math.xlog1py(1 - rate, -rate))
        mean = tf.math.divide_no_nan(self.total.value, count)
        return keras.ops.cast(tf.math.divide_no_nan(mean, entropy), self.dtype)


@keras.saving.register_keras_serializable(package="keras_largeout")
class Calibration(ProbabilityMetric):
    """The sum of the predictions, divided by the sum of the labels: expected over observed clicks.

    1 is right on average, 1.1 is 10% too many. It is 0 while there is no positive label.

    Args:
        name: str. Defaults to `"calibration"`.
        dtype: of the result. Defaults to `None`.
        from_logits: bool, whether predictions are logits. Defaults to `False`.

    Raises:
        ValueError: as in `LogLoss`.

    Example:

    >>> metric = kl.metrics.Calibration()
    >>> metric.update_state([0, 1, 1], [0.2, 0.8, 0.5])
    >>> float(metric.result())
    0.75

    References:
        - He et al., "Practical lessons from predicting clicks on ads at Facebook", ADKDD 2014, section 2.
    """

    def __init__(
        self,
        name: str = "calibration",
        dtype: str | keras.DTypePolicy | None = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(name, dtype, from_logits)
        self.predicted, self.positive = self.add_sum("predicted"), self.add_sum("positive")

    def add(self, labels: tf.Tensor, predictions: tf.Tensor, weight: tf.Tensor) -> None:
        self.predicted.assign_add(tf.reduce_sum(weight * self.probabilities(predictions)))
        self.positive.assign_add(tf.reduce_sum(weight * labels))

    def result(self) -> tf.Tensor:
        return keras.ops.cast(tf.math.divide_no_nan(self.predicted.value, self.positive.value), self.dtype)


def prior_correction(probabilities: Any, kept: float) -> Any:
    """Return the probabilities of all rows, from the probabilities of a model of downsampled negatives.

    A model that was trained on all positives, and on the share `kept` of the negatives, predicts too high
    probabilities p. Those of the whole data are `p / (p + (1 - p) / kept)`. The order of the rows stays, so
    AUC and `GAUC` stay, too.

    Args:
        probabilities: float `[...]`, an array, a tensor, or a `KerasTensor` while a functional model is made.
        kept: float in (0, 1], the share of the negatives that the model was trained on.

    Returns:
        What `probabilities` was, of the same shape.

    Raises:
        ValueError: `kept` is not in (0, 1].

    Example:

    >>> np.round(kl.metrics.prior_correction(np.array([0.1, 0.5, 0.9]), kept=0.1), 3).tolist()
    [0.011, 0.091, 0.474]

    A model that serves has it as its last step:

    ```python
    x = keras.Input((4,))
    click = keras.layers.Dense(1, activation="sigmoid")(x)
    trained = kl.Model(x, click)
    served = kl.Model(x, kl.metrics.prior_correction(click, kept=0.1))
    ```

    References:
        - He et al., "Practical lessons from predicting clicks on ads at Facebook", ADKDD 2014, section 6.3.
    """
    if not 0 < kept <= 1:
        raise ValueError(f"`kept` must be in (0, 1]. Received: kept={kept}")
    return probabilities / (probabilities + (1 - probabilities) / kept)
