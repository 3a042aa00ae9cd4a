"""Checks of arguments that all parts of the package share."""

import operator


def positive_int(name, value, minimum=1):
    """Return `value` as an int (NumPy's integers are integers too).

    Raises:
        ValueError: it is not an integer, or below `minimum`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    if isinstance(value, bool) or number < minimum:
        rule = "a positive integer" if minimum == 1 else f"an integer of at least {minimum}"
        raise ValueError(
            f"`{name}` must be {rule}. Received: {name}={value!r} (of type {type(value).__name__})."
        )
    return number
