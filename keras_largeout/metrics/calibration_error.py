"""`ExpectedCalibrationError`, and its picture."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_largeout._checks import positive_int
from keras_largeout.metrics.probability import ProbabilityMetric
from keras_largeout.planning.plan_plot import COLORS, new_figure


@keras.saving.register_keras_serializable(package="keras_largeout")
class ExpectedCalibrationError(ProbabilityMetric):
    """The distance between predicted and observed rates of clicks: a mean over bins of the predictions.

    Rows are put into bins by their prediction. The error of a bin is the distance between its mean prediction
    and its mean label; the mean of the errors is weighted by the rows of the bins. The state is three numbers
    for each bin, however many rows come.

    Args:
        bins: int > 0, the number of bins of equal width; or the edges between bins, increasing numbers in
            (0, 1). For rare clicks give edges, such as `np.geomspace(1e-4, 0.5, 14)`: nearly all predictions
            would be in the first of 15 equal bins. A prediction on an edge is in the lower bin. Defaults to
            `15`.
        name: str. Defaults to `"expected_calibration_error"`.
        dtype: of the result. Defaults to `None`.
        from_logits: bool, whether predictions are logits. Defaults to `False`.

    Raises:
        ValueError: `bins` is neither of these; as in `LogLoss`.

    Example:

    ```python
    metric = kl.metrics.ExpectedCalibrationError(10)
    metric.update_state([0, 1, 1, 0], [0.12, 0.81, 0.55, 0.18])
    print(float(metric.result()))  # 0.235
    metric.plot("reliability.svg")
    ```

    References:
        - [Guo et al., 2017](https://arxiv.org/abs/1706.04599), section 2.
    """

    _direction = "down"  # Keras's callbacks ask whether more is better

    def __init__(
        self,
        bins: int | ArrayLike = 15,
        name: str = "expected_calibration_error",
        dtype: str | keras.DTypePolicy | None = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(name, dtype, from_logits)
        if np.ndim(bins) == 0:
            bins = np.linspace(0, 1, positive_int("bins", bins) + 1)[1:-1]
        self.edges = np.asarray(bins, np.float64)
        if self.edges.ndim != 1 or not np.all(np.diff(self.edges, prepend=0, append=1) > 0):
            raise ValueError(
                f"`bins` must be a positive integer, or increasing numbers in (0, 1). Received: bins={bins}"
            )
        shape = (len(self.edges) + 1,)
        self.count, self.predicted, self.positive = (
            self.add_sum(name, shape) for name in ("count", "predicted", "positive")
        )

    def add(self, labels: tf.Tensor, predictions: tf.Tensor, weight: tf.Tensor) -> None:
        p = self.probabilities(predictions)
        places = tf.searchsorted(tf.constant(self.edges, tf.float64), p)
        for total, values in (
            (self.count, weight),
            (self.predicted, weight * p),
            (self.positive, weight * labels),
        ):
            total.assign_add(tf.math.unsorted_segment_sum(values, places, len(self.edges) + 1))

    def result(self) -> tf.Tensor:
        error = tf.reduce_sum(tf.abs(self.predicted.value - self.positive.value))
        error = tf.math.divide_no_nan(error, tf.reduce_sum(self.count.value))
        return keras.ops.cast(error, self.dtype)

    def reliability(self) -> dict[str, np.ndarray]:
        """Return the numbers of the picture, of the bins that have rows.

        Returns:
            A dict of float64 `[bins with rows]`: "predicted", the mean prediction; "observed", the mean
            label; "share", the share of all rows.
        """
        count, predicted, positive = (
            np.asarray(variable) for variable in (self.count, self.predicted, self.positive)
        )
        used = count != 0
        mean = {"predicted": predicted[used] / count[used], "observed": positive[used] / count[used]}
        return {**mean, "share": count[used] / count.sum()}

    def plot(self, path: str) -> None:
        """Draws the reliability picture: predicted against observed rates, and how many rows each bin has.

        Args:
            path: str, the file to write. Its suffix is the format (`.svg`, `.png`, `.pdf`).

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: there are no rows yet.
        """
        found = self.reliability()
        if not len(found["share"]):
            raise ValueError("`plot` must come after `update_state`. Received: a metric without rows")
        figure = new_figure("ExpectedCalibrationError.plot", 5, 6)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        most = 1.08 * max(found["predicted"].max(), found["observed"].max()) or 1
        above.plot([0, most], [0, most], color="#8c8c8c", linestyle="--", label="right in every bin")
        above.plot(found["predicted"], found["observed"], color=COLORS[0], marker="o", label="the model")
        above.set_title(f"Expected calibration error {float(self.result()):.4f}", loc="left")
        above.set(ylabel="observed rate", xlim=(-0.04 * most, most), ylim=(-0.04 * most, most))
        below.vlines(found["predicted"], 0, 100 * found["share"], color=COLORS[0], linewidth=3)
        below.set(xlabel="predicted probability", ylabel="% of rows", ylim=(0, 108 * found["share"].max()))
        figure.align_ylabels()
        figure.legend(*above.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        figure.savefig(path)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "bins": self.edges.tolist()}
