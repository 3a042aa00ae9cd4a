"""`MultiOptimizer`: Keras's, whose files have the slots of tables once."""

from typing import Any

import keras

from keras_largeout.optimizers.row_saving import SavedWithoutRows

# Keras 3.12 has none.
_KERAS: Any = getattr(keras.optimizers, "MultiOptimizer", keras.optimizers.Optimizer)


@keras.saving.register_keras_serializable(package="keras_largeout")
class MultiOptimizer(SavedWithoutRows, _KERAS):
    """A `keras.optimizers.MultiOptimizer` around optimizers of this package, which save slots of tables.

    Takes the arguments of `keras.optimizers.MultiOptimizer`. A model with a table replaces Keras's by it.
    """
