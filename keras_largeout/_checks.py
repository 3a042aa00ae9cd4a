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


def number_of_classes(k, num_classes):
    """Return `k`, how many classes are asked for, as an int.

    Raises:
        ValueError: it is not an integer in 1 .. num_classes.
    """
    try:
        number = operator.index(k)
    except TypeError:
        number = 0
    if isinstance(k, bool) or not 1 <= number <= num_classes:
        raise ValueError(f"`k` must be an integer in 1 .. num_classes={num_classes}. Received: k={k!r}")
    return number


def check_one_of(name, value, known, of=None):
    """Raise ValueError where the argument `name` has a value that is not in `known`.

    Args:
        name: str.
        value: what was given.
        known: tuple or list.
        of: None, or str: what the argument belongs to.
    """
    if value not in known:
        whose = "" if of is None else f" of {of}"
        raise ValueError(f"`{name}`{whose} must be one of {known}. Received: {name}={value!r}")
