"""Checks of the builders' arguments."""

import warnings

import numpy as np

from keras_largeout._checks import positive_int


def class_counts(counts):
    """Return `counts` as a 1-D float64 array of positive numbers.

    A count of 0 becomes the smallest that is not 0, with a warning: any class may come.

    Raises:
        ValueError: counts that are negative or not finite, or all 0.
    """
    counts = np.asarray(counts)
    if counts.ndim != 1 or counts.size == 0:
        raise ValueError(
            "`counts` must be a 1-D array with one positive number for every class. "
            f"Received: an array of shape {counts.shape}"
        )
    if counts.dtype.kind not in "iuf":
        raise ValueError(f"`counts` must hold integers or floats. Received: dtype {counts.dtype}")
    counts = counts.astype(np.float64)
    seen = counts > 0
    bad = ~((counts >= 0) & (counts < np.inf)) if seen.any() else ~seen
    if bad.any():
        first = int(np.argmax(bad))
        raise ValueError(
            "`counts` must be finite and at least 0, and not all 0. "
            f"Received: counts[{first}]={counts[first]:g}, and {int(bad.sum())} such values in all"
        )
    if not seen.all():
        least = counts[seen].min()
        warnings.warn(
            f"`counts` of 0 are taken as {least:g}, the smallest other one: any class may come. "
            f"Received: {int((~seen).sum())} counts of 0, the first is counts[{int(np.argmin(seen))}]",
            stacklevel=3,
        )
        counts[~seen] = least
    return counts


def classes_in_order(classes, name):
    """Return the number of classes, and their ids in the order of the leaves (None: the order of the ids).

    Args:
        classes: int, the number of classes; or a 1-D array of counts, then the most frequent class is first.
        name: str, of the argument.
    """
    if np.ndim(classes) == 0:
        return positive_int(name, classes), None
    counts = class_counts(classes)
    return len(counts), by_frequency(counts)


def by_frequency(counts):
    """Return int32 `[num_classes]`: class ids, most frequent first; ties in the order of the ids."""
    return np.argsort(-counts, kind="stable").astype(np.int32)
