"""`Positions`: learned positions, added to the rows of tokens."""

from typing import Any

import keras
import tensorflow as tf

from keras_largeout._checks import positive_int


@keras.saving.register_keras_serializable(package="keras_largeout")
class Positions(keras.layers.Layer):
    """Adds a learned vector for each time step to its input, and keeps the input's mask.

    A sum of two embeddings by `keras.layers.Add` has no mask, since the positions have none: attention then
    sees padding, and `position="last"` of a predictor takes a step of padding for the last one.

    Args:
        length: int > 0, the largest number of time steps.
        initializer: initializer of the vectors `[length, dim]`. Defaults to `"uniform"`.
        **kwargs: `name`, `dtype`, `trainable`.

    Input shape:
        float `[batch, time, dim]`, `time <= length`.

    Output shape:
        the same.

    Raises:
        ValueError: `length` is not a positive integer; in a call: the input has another rank, or more time
            steps than `length`.

    Example:

    >>> words = keras_largeout.layers.ShardedEmbedding(50_000, 64, mask_zero=True)
    >>> keras_largeout.layers.Positions(128)(words(np.array([[3, 14, 15, 0]]))).shape
    TensorShape([1, 4, 64])
    """

    def __init__(self, length: int, initializer: str | keras.Initializer = "uniform", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = positive_int("length", length)
        self.initializer = keras.initializers.get(initializer)
        self.supports_masking = True

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if len(input_shape) != 3 or input_shape[-1] is None:
            raise ValueError(
                "`inputs` must be [batch, time, dim] with a known last axis. "
                f"Received: inputs.shape={tuple(input_shape)}"
            )
        shape = (self.length, input_shape[-1])
        self.vectors = self.add_weight(shape=shape, initializer=self.initializer, name="vectors")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        time = inputs.shape[1]
        if time is not None and time > self.length:
            raise ValueError(
                f"`inputs` must have at most length={self.length} time steps. "
                f"Received: inputs.shape={tuple(inputs.shape)}"
            )
        time = tf.shape(inputs)[1] if time is None else time
        return inputs + tf.slice(self.vectors, [0, 0], [time, -1])  # an error where `time` is too large

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "length": self.length,
            "initializer": keras.initializers.serialize(self.initializer),
        }
