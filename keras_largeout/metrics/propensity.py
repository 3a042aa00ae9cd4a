"""Propensities: the probability that a label which applies to a row is among the row's labels."""

import math

import numpy as np
from numpy.typing import ArrayLike


def propensities(label_counts: ArrayLike, num_rows: int, a: float = 0.55, b: float = 1.5) -> np.ndarray:
    """Return the propensity model of Jain et al.: p = 1 / (1 + C (count + b)^-a), C = (log(rows) - 1) (b +
    1)^a.

    Args:
        label_counts: `[num_labels]`, how many training rows have each label
            (`LabeledRows.label_counts()`).
        num_rows: int, the training rows; at least 3, where C begins to be positive.
        a: float, of the data set: 0.5 for Wikipedia sets, 0.6 for Amazon sets, 0.55 for others. Defaults to
            `0.55`.
        b: float, likewise: 0.4, 2.6 and 1.5. Defaults to `1.5`.

    Returns:
        float64 `[num_labels]`, each in (0, 1).

    Raises:
        ValueError: a count is negative, or an argument is out of its range.

    Example:

    >>> kl.metrics.propensities([1, 10, 100], num_rows=1000).round(2).tolist()
    [0.14, 0.28, 0.56]

    References:
        - Jain, Prabhu and Varma, "Extreme multi-label loss functions for recommendation, tagging, ranking &
          other missing label applications", KDD 2016: its propensity model.
    """
    counts = np.asarray(label_counts, np.float64)
    if counts.ndim != 1 or not np.all(counts >= 0):
        raise ValueError(
            "`label_counts` must be one number from 0 on for every label. "
            f"Received: label_counts of shape {counts.shape}, smallest {counts.min(initial=np.inf)}"
        )
    if not num_rows >= 3:
        raise ValueError(f"`num_rows` must be at least 3. Received: num_rows={num_rows}")
    if not (a >= 0 and b > 0):
        raise ValueError(f"`a` must be at least 0 and `b` above it. Received: a={a}, b={b}")
    c = (math.log(num_rows) - 1) * (b + 1) ** a
    return 1 / (1 + c * (counts + b) ** -a)
