"""What the tree is compared with: Keras's own `Dense` over all words and its sparse cross-entropy."""

import keras
import numpy as np


@keras.saving.register_keras_serializable(package="language_model")
class DenseSoftmax(keras.layers.Dense):
    """`keras.layers.Dense(num_classes)` whose outputs are logits, spoken to like a head of keras_largeout.

    Like the tree it starts out with the frequencies of `counts`: learning these first would take it long.
    """

    def __init__(self, units, counts=None, **kwargs):
        super().__init__(units, **kwargs)
        self._counts = None if counts is None else np.asarray(counts)

    def build(self, input_shape):
        super().build(input_shape)
        if self._counts is not None:
            self.bias.assign(np.log(self._counts / self._counts.sum()))

    @property
    def loss(self):
        return self.make_loss()

    def make_loss(self, **kwargs):
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **kwargs)

    def predictor(self, model, k=10, position="last"):
        """Return a model from the inputs of `model` to the k most probable words after the last step."""
        if position != "last":
            raise ValueError(f'`position` must be "last". Received: position={position!r}')
        hidden = model.layers[-2].output
        log_p = keras.ops.log_softmax(self(LastStep()(hidden)))
        scores, ids = keras.ops.top_k(log_p, k)
        return keras.Model(model.inputs, {"ids": ids, "scores": scores})


@keras.saving.register_keras_serializable(package="language_model")
class LastStep(keras.layers.Layer):
    """The last step that is not padding: `[batch, time, dim] -> [batch, dim]`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs, mask=None):
        steps = keras.ops.arange(keras.ops.shape(inputs)[1])
        if mask is not None:
            steps = keras.ops.where(mask, steps, 0)
        last = keras.ops.max(keras.ops.broadcast_to(steps, keras.ops.shape(inputs)[:2]), axis=1)
        return keras.ops.squeeze(keras.ops.take_along_axis(inputs, last[:, None, None], axis=1), 1)

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])
