"""How good predicted probabilities are: AUC, log loss, normalised entropy, calibration. NumPy alone."""

from typing import NamedTuple

import numpy as np


def auc(labels, scores):
    """Return the probability that a row of label 1 scores above one of label 0; equal scores count a half."""
    labels, scores = _checked(labels, scores)
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # from 1 on; equal scores share the mean of theirs
    ones = labels.sum()
    zeros = len(labels) - ones
    if not ones or not zeros:
        raise ValueError(f"`labels` must have both 0 and 1. Received: {ones:.0f} of {len(labels)} are 1")
    return float((ranks[inverse][labels == 1].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def log_loss(labels, probabilities):
    """Return the mean of -log of the probability that a row's label was given."""
    labels, probabilities = _checked(labels, probabilities)
    said = np.where(labels == 1, probabilities, 1 - probabilities)
    return float(-np.log(np.clip(said, 1e-7, None)).mean())


def normalised_entropy(labels, probabilities):
    """Log loss over that of the mean of the labels for every row (He et al., 2014, section 2.2).

    1 is no better than knowing how often there is a click. Smaller is better.
    """
    labels, probabilities = _checked(labels, probabilities)
    return log_loss(labels, probabilities) / log_loss(labels, np.full(len(labels), labels.mean()))


class Bin(NamedTuple):
    """Rows of similar predictions.

    Attributes:
        rows: int, how many.
        predicted: the mean of their predictions; observed: the mean of their labels.
    """

    rows: int
    predicted: float
    observed: float

    @property
    def ratio(self):
        """Predicted over observed: 1 is calibrated; nan where nothing was observed."""
        return self.predicted / self.observed if self.observed else float("nan")


def calibration(labels, probabilities, bins=10):
    """Return `(all, list)`: a `Bin` of all rows, and `bins` of equally many, by their predictions."""
    labels, probabilities = _checked(labels, probabilities)
    if not 1 <= bins <= len(labels):
        raise ValueError(f"`bins` must be 1 to the number of rows, {len(labels)}. Received: bins={bins}")
    order = np.argsort(probabilities, kind="stable")
    parts = [order, *np.array_split(order, bins)]
    found = [Bin(len(p), float(probabilities[p].mean()), float(labels[p].mean())) for p in parts]
    return found[0], found[1:]


def _checked(labels, scores):
    labels, scores = (np.asarray(a, np.float64).reshape(-1) for a in (labels, scores))
    if len(labels) != len(scores) or not len(labels):
        raise ValueError(
            "`labels` and scores must be as many, and one at least. "
            f"Received: {len(labels)} labels, {len(scores)} scores"
        )
    if not np.isin(labels, (0, 1)).all():
        raise ValueError(f"`labels` must be 0 or 1. Received: {labels[~np.isin(labels, (0, 1))][0]:g}")
    return labels, scores
