"""Variables: what is behind a `keras.Variable`, and the values of a layer's weights."""

import keras
import numpy as np

from keras_largeout._keras.versions import KNOWN, _need


def uncast(variable):
    """Return the `tf.Variable` of a `keras.Variable`, also inside a layer of mixed precision.

    Why: `value` is a cast of it there, and gradients are asked of the variable.
    """
    made = _need(variable, "_value")
    return variable.value if made is None else made


def is_made(variable):
    """Return whether a `keras.Variable` has its `tf.Variable`, which it has not in a symbolic build of a
    model.

    Why: the backend decides when it is made, and nothing public says whether it was.
    """
    return _need(variable, "_value") is not None


def move_variable(variable, moved):
    """Make a `keras.Variable` keep its values in another `tf.Variable`.

    Why: the place of a variable is decided when it is made, and a layer that was built has made its own.
    """
    _need(variable, "_value")
    variable._value = moved


class LazyTfVariable(keras.Variable):
    """A `keras.Variable` that makes its own `tf.Variable` when Keras asks for it.

    Why: Keras asks in the constructor, or later where it builds a model symbolically first. An initializer,
    the public way, returns a tensor: a large table would exist twice.

    A subclass has `make`, which returns the `tf.Variable`, and `when_made`, which is called after it.
    """

    def __init__(self, **kwargs):
        super().__init__(_never_called, **kwargs)

    def _initialize_with_initializer(self, initializer):
        _need(self, "_initialize")(self.make())
        self.when_made()

    @property
    def _unique_id(self):
        """The id that only optimizers of tf_keras read, and read first. They cannot train this variable."""
        raise AttributeError(
            f"`optimizer` must be one of Keras 3 to train {self.path!r}, a table of keras_largeout. In a "
            "model of tf_keras (a tfrs.Model is one) give the layer its own optimizer, such as "
            "optimizer=keras.optimizers.Adagrad(0.1); or build a keras.Model of Keras 3, and call what needs "
            "tf_keras in its `compute_loss`. Received: an optimizer of tf_keras"
        )


def _never_called(shape, dtype=None):
    """Return the initializer that Keras is given by a `LazyTfVariable`."""
    raise ImportError(
        "keras_largeout needs `keras.Variable._initialize_with_initializer`, which Keras "
        f"{keras.__version__} does not call. It is known to work with Keras {KNOWN}: install one of these."
    )


class ValuesOfWeights:
    """A base, before a Keras layer or model, whose `get_weights` leaves triggers out.

    Nothing private: it is here because layers and models both need it. A trigger (`is_trigger`) is there for
    the gradient tape alone. Without it `get_weights` of a layer with its own optimizer is that of a layer
    without one, and of Keras's layer.
    """

    def get_weights(self) -> list[np.ndarray]:
        """Return the values of all weights but triggers: a list of NumPy arrays."""
        return [weight.numpy() for weight in self.weights if not is_trigger(weight)]

    def set_weights(self, weights: list[np.ndarray]) -> None:
        """Assign the values of all weights but triggers.

        Args:
            weights: list of arrays, as `get_weights` returns them. Empty ones, the triggers of a plain
                `keras.Model`, are left out.

        Raises:
            ValueError: another number of arrays, or an array of another shape.
        """
        own = [weight for weight in self.weights if not is_trigger(weight)]
        given = list(weights)
        if len(given) > len(own):
            given = [value for value in given if tuple(value.shape) != (0,)]
        shapes, expected = ([tuple(v.shape) for v in values] for values in (given, own))
        if shapes != expected:
            wrong = next((i for i, (a, b) in enumerate(zip(shapes, expected)) if a != b), None)
            received = f"{len(given)} arrays" if wrong is None else f"shape {shapes[wrong]} at index {wrong}"
            must = f"{len(own)} arrays" if wrong is None else f"the shape {expected[wrong]} at index {wrong}"
            raise ValueError(f"`weights` of {self.name!r} must have {must}. Received: {received}")
        for weight, value in zip(own, given):
            weight.assign(value)


def is_trigger(weight):
    """Return whether a weight holds no value, as its attribute `is_trigger` says."""
    return getattr(weight, "is_trigger", False)
