"""Checks of arguments that all parts of the package share."""

import operator


def positive_int(name, value):
    """`value` as an int (NumPy's integers are integers too).

    Raises:
        ValueError: it is none, or below 1.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or number <= 0:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value} (of type {type(value).__name__})."
        )
    return number
