"""`SwapEMAWeights`: evaluates the moving averages of weights, of tables too."""

from keras_largeout._keras import AverageSwaps


class SwapEMAWeights(AverageSwaps):
    """`keras.callbacks.SwapEMAWeights` for models with tables.

    With `use_ema=True` an optimizer of `kl.optimizers` keeps the moving averages of all weights. This
    callback puts them in the place of the weights before each evaluation or prediction, and the weights back
    after it. In a table it visits, in chunks, all rows that were ever updated. (Keras's callback has no way
    to the averages of tables: it raises an error there.)

    With or without this callback, `fit` ends with the averages in the place of the weights, as in Keras.

    Args:
        swap_on_epoch: bool, whether the averages are also in the model from the end of an epoch until the
            next one begins. A `ModelCheckpoint` behind it in the list then saves them. Defaults to `False`.

    Raises:
        ValueError: at the first swap, the model's optimizer has no `use_ema`.

    Example:

    ```python
    model.compile(kl.optimizers.LazyAdam(1e-3, use_ema=True, ema_momentum=0.999), head.loss)
    model.fit(x, y, validation_data=held_out, epochs=5, callbacks=[kl.callbacks.SwapEMAWeights()])
    ```

    References:
        - [Polyak and Juditsky, 1992](https://doi.org/10.1137/0330046).
    """

    def __init__(self, swap_on_epoch: bool = False) -> None:
        super().__init__(swap_on_epoch)
