"""The optimizer of this package that does for rows what one of Keras's does for whole weights."""

import copy

import keras

from keras_largeout.optimizers.adagrad import Adagrad
from keras_largeout.optimizers.ftrl import Ftrl
from keras_largeout.optimizers.lazy_adam import LazyAdam
from keras_largeout.optimizers.row_sparse import RowSparse
from keras_largeout.optimizers.sgd import SGD

_OURS = {
    keras.optimizers.SGD: SGD,
    keras.optimizers.Adagrad: Adagrad,
    keras.optimizers.Adam: LazyAdam,
    keras.optimizers.AdamW: LazyAdam,
    keras.optimizers.Ftrl: Ftrl,
}


def optimizer_of(given):
    """Return what `keras.optimizers.get` makes of `given`, which it would change if it is a dict."""
    return keras.optimizers.get(copy.deepcopy(given) if isinstance(given, dict) else given)


def to_row_sparse(given, argument="`optimizer`"):
    """Return what trains rows with the hyperparameters of `given`.

    Args:
        given: an optimizer of this package, which is returned as it is; `keras.optimizers.SGD`, `Adagrad`,
            `Adam`, `AdamW` (both become `LazyAdam`) or `Ftrl`; or what `keras.optimizers.get` makes one of.
        argument: str, what an error calls it.

    Raises:
        ValueError: another optimizer.
    """
    found = optimizer_of(given)
    if isinstance(found, RowSparse):
        return found
    if type(found) not in _OURS:
        names = ", ".join(sorted(kind.__name__ for kind in _OURS))
        raise ValueError(
            f"{argument} must be one of keras_largeout.optimizers, or of keras.optimizers {names}: they can "
            f"update the rows of a batch alone. Received: {type(found).__module__}.{type(found).__name__}"
        )
    return _OURS[type(found)].from_config(found.get_config())
