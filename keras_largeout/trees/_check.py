"""Checks of the builders' arguments."""

import numpy as np

from keras_largeout._checks import positive_int


def class_counts(counts):
    """`counts` as a 1-D float64 array. Raises ValueError unless all are positive and finite."""
    counts = np.asarray(counts)
    if counts.ndim != 1 or counts.size == 0:
        raise ValueError(
            "`counts` must be a 1-D array with one positive number for every class. "
            f"Received: an array of shape {counts.shape}"
        )
    if counts.dtype.kind not in "iuf":
        raise ValueError(f"`counts` must hold integers or floats. Received: dtype {counts.dtype}")
    counts = counts.astype(np.float64)
    bad = ~((counts > 0) & (counts < np.inf))
    if bad.any():
        first = int(np.argmax(bad))
        raise ValueError(
            "`counts` must be positive and finite for every class (give unseen classes a count of 1). "
            f"Received: counts[{first}]={counts[first]:g}, and {int(bad.sum())} such values in all"
        )
    return counts


def classes_in_order(classes, name):
    """The number of classes, and their ids in the order of the leaves (None: the order of the ids).

    Args:
        classes: int, the number of classes; or a 1-D array of counts, then the most frequent class is first.
        name: str, of the argument.
    """
    if np.ndim(classes) == 0:
        return positive_int(name, classes), None
    counts = class_counts(classes)
    return len(counts), by_frequency(counts)


def by_frequency(counts):
    """int32 `[num_classes]`: class ids, most frequent first; ties in the order of the ids."""
    return np.argsort(-counts, kind="stable").astype(np.int32)
