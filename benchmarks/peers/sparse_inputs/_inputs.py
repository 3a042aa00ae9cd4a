"""The strings and rows that all of them get."""

import numpy as np

from benchmarks._data import load


def strings(data):
    """Return a list of bytes."""
    letters, ends = load(data, "letters").tobytes(), np.cumsum(load(data, "lengths")).tolist()
    return [letters[first:last] for first, last in zip([0, *ends], ends)]


def rows(data):
    """Return `(ids, values, labels)`: `[rows, non-zeros]` twice, `[rows]`."""
    return load(data, "ids"), load(data, "values"), load(data, "labels")
