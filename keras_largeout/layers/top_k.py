"""`TopK`: the k best classes of a head, as a layer."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="keras_largeout")
class TopK(keras.layers.Layer):
    """The k best classes of a head: `[..., dim] -> {"ids": [..., k], "scores": [..., k]}`."""

    def __init__(self, head, k=10, position="all", **kwargs):
        super().__init__(**kwargs)
        if position not in ("all", "last"):
            raise ValueError(f'`position` must be "all" or "last". Received: position={position!r}')
        head.check_k(k)
        self.head, self.k, self.position = head, k, position
        self.supports_masking = True
        self.supports_jit = False

    def build(self, input_shape):
        if not self.head.built:
            self.head.build(input_shape)
        self.built = True

    def call(self, inputs, mask=None):
        hidden = tf.convert_to_tensor(inputs)
        if self.position == "last" and hidden.shape.rank != 3:
            raise ValueError(
                '`position="last"` is for hidden vectors [batch, time, dim]. '
                f"Received: inputs.shape={hidden.shape}"
            )
        if self.position == "last":
            time = tf.shape(hidden)[1]
            if mask is None:
                last = tf.fill([tf.shape(hidden)[0]], time - 1)
            else:
                last = tf.reduce_max(tf.where(tf.cast(mask, tf.bool), tf.range(time)[None, :], 0), axis=1)
            hidden = tf.gather(hidden, last, axis=1, batch_dims=1)
        scores, ids = self.head.top_k(hidden, self.k)
        return {"ids": ids, "scores": scores}

    def compute_mask(self, inputs, mask=None):
        return None

    def get_config(self):
        return {
            **super().get_config(),
            "head": keras.saving.serialize_keras_object(self.head),
            "k": self.k,
            "position": self.position,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        return cls(keras.saving.deserialize_keras_object(config.pop("head")), **config)
