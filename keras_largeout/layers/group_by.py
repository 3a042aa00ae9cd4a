"""`GroupBy`: the groups of the rows of an output, for metrics."""

from typing import Any

import keras
import tensorflow as tf

from keras_largeout._head_annotations import annotate_groups


@keras.saving.register_keras_serializable(package="keras_largeout")
class GroupBy(keras.layers.Layer):
    """Returns its input, and says to `keras_largeout.metrics.GAUC` which group each row belongs to.

    Metrics get labels and predictions from Keras, and no other inputs of the model. So the groups are
    attached to the prediction. Make it the last layer of the model; it has no weights.

    Args:
        **kwargs: `name`, `dtype`.

    Call arguments:
        inputs: float `[batch, ...]`, the predictions.
        groups: int or string `[batch]`, or of more axes of `inputs`: the group of each row, such as its user.

    Output shape:
        the shape of `inputs`.

    Example:

    ```python
    user = keras.Input((), dtype="string", name="user")
    x = keras.Input((4,), name="x")
    click = keras.layers.Dense(1, activation="sigmoid")(x)
    model = kl.Model({"user": user, "x": x}, kl.layers.GroupBy()(click, user))
    model.compile("adam", "binary_crossentropy", metrics=[kl.metrics.GAUC()])
    ```
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs: tf.Tensor, groups: tf.Tensor) -> tf.Tensor:
        outputs = tf.identity(inputs)  # its own tensor: other layers may get the same inputs
        annotate_groups(outputs, groups)
        return outputs

    def compute_output_shape(
        self, inputs_shape: tuple[int | None, ...], groups_shape: tuple[int | None, ...]
    ) -> tuple[int | None, ...]:
        return inputs_shape
