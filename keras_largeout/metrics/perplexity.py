"""`Perplexity` of what a head predicts."""

from typing import Any

import keras
import tensorflow as tf

from keras_largeout.metrics._scores import head_of, nothing_to_measure, scored


@keras.saving.register_keras_serializable(package="keras_largeout")
class Perplexity(keras.metrics.Metric):
    """exp of the mean of -log p(target | hidden), over all tokens since the metric was reset.

    It belongs into `compile(metrics=...)` of a model that ends in a head: it takes the losses that
    `head.loss` has computed, so it costs nothing. Tokens that the loss leaves out (masked, of weight 0,
    without a target) are left out here. Every token weighs the same; in `weighted_metrics` it has its sample
    weight. (The loss that Keras reports is a mean over batches, however many of their tokens count.)

    Args:
        name: str. Defaults to `"perplexity"`.
        dtype: of the result. Defaults to `None`.

    Raises:
        ValueError: when it is updated: `y_pred` is no output of a head, or the head's losses are no
            log-probabilities (a `SparseOutput` whose loss is not "softmax").

    Example:

    ```python
    model.compile(optimizer, loss=head.loss, metrics=[kl.metrics.Perplexity()])
    model.fit(train, validation_data=valid, callbacks=[keras.callbacks.EarlyStopping("val_perplexity")])
    ```

    References:
        - Jelinek, Mercer, Bahl and Baker, "Perplexity: a measure of the difficulty of speech recognition
          tasks", JASA 62(S1), 1977.
    """

    _direction = "down"  # Keras's callbacks ask whether more is better

    def __init__(self, name: str = "perplexity", dtype: str | keras.DTypePolicy | None = None) -> None:
        super().__init__(name=name, dtype=dtype)
        # float32 would stop counting at 16.7 million tokens.
        self.total = self.add_weight(shape=(), initializer="zeros", dtype="float64", name="total")
        self.count = self.add_weight(shape=(), initializer="zeros", dtype="float64", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch.

        Args:
            y_true: targets, as the head's loss takes them.
            y_pred: the output of a model that ends in a head.
            sample_weight: optional, of the shape of the tokens, or of its first axes.
        """
        if nothing_to_measure(y_pred):
            return
        head = head_of(y_pred)
        if head is None or not head.has_log_probs:
            received = f"{type(y_pred).__name__} of no head" if head is None else f"that of {head!r}"
            raise ValueError(
                "`y_pred` must be the output of a head whose losses are -log p, such as a "
                "HierarchicalSoftmax: `model(x)`, not an array that `predict` returns. "
                f"Received: {received}"
            )
        tokens = scored(y_true, y_pred, sample_weight)
        losses, weight = tf.cast(tokens.cross_entropy, tf.float64), tf.ones([], tf.float64)
        if tokens.active is not None:
            weight = tf.cast(tokens.active, tf.float64)
        if sample_weight is not None:
            weight *= tf.cast(tokens.weight, tf.float64)
        weight = tf.broadcast_to(weight, tf.shape(losses))
        self.total.assign_add(tf.reduce_sum(losses * weight))
        self.count.assign_add(tf.reduce_sum(weight))

    def result(self) -> tf.Tensor:
        mean = tf.math.divide_no_nan(self.total.value, self.count.value)
        return keras.ops.cast(tf.exp(mean), self.dtype)
