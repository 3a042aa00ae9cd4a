"""`FollowLearningRate`: the optimizers of layers follow the learning rate of the model's."""

from typing import Any

import keras

from keras_largeout._keras import all_layers, own_optimizers


class FollowLearningRate(keras.callbacks.Callback):
    """Keeps the learning rates of layers' own optimizers at the same multiple of the model's.

    Keras's callbacks, such as `LearningRateScheduler` and `ReduceLROnPlateau`, change the learning rate of
    the optimizer that `compile` was given. This callback changes those of layers that have an `optimizer` by
    the same factor, at the beginning and the end of each epoch. Put it behind the others in the list. An
    optimizer whose learning rate is a `LearningRateSchedule` keeps its own.

    Raises:
        ValueError: when training begins, the learning rate of the model's optimizer is not positive, or is a
            schedule.

    Example:

    ```python
    embedding = kl.layers.ShardedEmbedding(1000, 16, optimizer=kl.optimizers.Adagrad(0.1))
    model = kl.Sequential([embedding, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    slower = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=2)
    model.fit(ids, y, epochs=10, callbacks=[slower, kl.callbacks.FollowLearningRate()])
    ```
    """

    def __init__(self) -> None:
        super().__init__()
        self._followers: list[tuple[keras.Optimizer, float]] | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        rate = self.model.optimizer.get_config().get("learning_rate")
        if not isinstance(rate, (int, float)) or not rate > 0:
            raise ValueError(
                "`learning_rate` of the model's optimizer must be a positive number where those of layers "
                f"follow it. Received: learning_rate={rate!r}"
            )
        own = {id(o): o for layer in all_layers(self.model) for o in own_optimizers(layer)}.values()
        followed = [(o, o.get_config()["learning_rate"]) for o in own]
        # Taken once: another `fit` goes on with the multiples of the first one.
        if self._followers is None:
            self._followers = [(o, r / rate) for o, r in followed if isinstance(r, (int, float))]

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._follow()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._follow()

    def _follow(self):
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        for optimizer, multiple in self._followers:
            optimizer.learning_rate = rate * multiple
