"""`TopK`: the k best classes of a head, as a layer."""

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from keras_largeout._head_annotations import heads_of
from keras_largeout._keras import forget, mask_of, outermost_layer
from keras_largeout.layers._inputs import check_keras_3
from keras_largeout.layers.heads._lost_mask import warn_of_lost_mask
from keras_largeout.layers.heads.sampling import all_scores

if TYPE_CHECKING:
    from keras_largeout.layers.heads.head import Head


@keras.saving.register_keras_serializable(package="keras_largeout")
class TopK(keras.layers.Layer):
    """The k classes of highest score of a head: what `head.predictor` puts on a model.

    It shares the weights of the head. Use it in your own model, where `head.predictor` does not fit.

    Args:
        head: a head, such as `HierarchicalSoftmax`.
        k: int, `1 <= k <= head.num_classes`; or None: the scores of all classes, for an output so small that
            they fit into memory. Defaults to `10`.
        position: `"all"`, or `"last"`: only the last (unmasked) time step of `[batch, time, dim]` is scored.
            It warns where the model masks padding and the mask has been lost on its way. Defaults to `"all"`.
        **kwargs: `name`, `dtype`.

    Call arguments:
        inputs: the hidden vectors.
        exclude: None, or ids of classes that are left out, as in `head.top_k`. Of a head with a `vocabulary`
            they are its ids, as targets are: strings filled up with "".

    Input shape:
        float `[..., dim]`, the hidden vectors that the head was given, or those that it returned.

    Output shape:
        `{"ids": int32 [..., k], "scores": float32 [..., k]}`, the best first, as in `head.top_k`; without the
        axis of time where `position` is "last". Of a head with a `vocabulary` they are ids of the vocabulary,
        int64 or strings; -1 or "", of score -inf, where there are fewer than k. With `k=None` the scores
        alone, float32 `[..., num_classes]` in the order of the classes; -inf of those that `exclude` names.

    Raises:
        ValueError: `k` or `position` out of range; `position="last"` with another rank than 3.

    Example:

    ```python
    class Server(keras.Model):
        def __init__(self, tower, head):
            super().__init__()
            self.tower, self.best = tower, kl.layers.TopK(head, k=20)

        def call(self, inputs):
            return self.best(self.tower(inputs))
    ```
    """

    def __init__(self, head: "Head", k: int | None = 10, position: str = "all", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if position not in ("all", "last"):
            raise ValueError(f'`position` must be "all" or "last". Received: position={position!r}')
        if k is not None:
            head.check_k(k)
        self.head, self.k, self.position = head, k, position
        self._is_copy = False
        self.supports_masking = True
        self.supports_jit = False

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # A copy made from a config belongs to a copy of a model, which has the head already.
        named = [head for head in heads_of(inputs) if head.name == self.head.name]
        if self._is_copy and named and named[-1] is not self.head:
            forget(self, self.head)
            self.head = named[-1]
        self._is_copy = False
        return super().__call__(inputs, *args, **kwargs)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if not self.head.built:
            self.head.build(input_shape)
        self.built = True

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Do nothing: the layer has no weights, and may get another head when it is called."""

    def call(
        self,
        inputs: tf.Tensor,
        mask: tf.Tensor | None = None,
        exclude: tf.Tensor | tf.RaggedTensor | tf.SparseTensor | None = None,
    ) -> tf.Tensor | dict[str, tf.Tensor]:
        check_keras_3(self, inputs)
        if mask is None:  # Keras fills in `mask` only where there is no other tensor than `inputs`
            mask = mask_of(inputs)
        hidden = tf.convert_to_tensor(inputs)
        if self.position == "last" and hidden.shape.rank != 3:
            raise ValueError(
                '`position="last"` is for hidden vectors [batch, time, dim]. '
                f"Received: inputs.shape={hidden.shape}"
            )
        if self.position == "last":
            time = tf.shape(hidden)[1]
            if mask is None:
                warn_of_lost_mask(outermost_layer(self), self)
                last = tf.fill([tf.shape(hidden)[0]], time - 1)
            else:
                last = tf.reduce_max(tf.where(tf.cast(mask, tf.bool), tf.range(time)[None, :], 0), axis=1)
            hidden = tf.gather(hidden, last, axis=1, batch_dims=1)
        vocabulary = self.head.class_vocabulary
        if exclude is not None:
            exclude = vocabulary.classes(exclude)
        more = {} if exclude is None else {"exclude": exclude}  # a head of one's own may not know it
        if self.k is None:
            return all_scores(self.head, hidden, **more)
        scores, ids = self.head.top_k(hidden, self.k, **more)
        self._names = vocabulary.names()  # an export looks for it in the layer that needs it
        return {"ids": vocabulary.ids(ids), "scores": scores}

    def count_params(self) -> int:
        """Return 0: the weights belong to the head, and a summary counts them there."""
        return 0

    def compute_mask(self, inputs: Any, mask: Any = None) -> None:
        return None

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "head": keras.saving.serialize_keras_object(self.head),
            "k": self.k,
            "position": self.position,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "TopK":
        config = dict(config)
        layer = cls(keras.saving.deserialize_keras_object(config.pop("head")), **config)
        layer._is_copy = True
        return layer
