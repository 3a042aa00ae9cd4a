from typing import Any

import keras

from keras_largeout.ops.row_update import momentum_hyper, sgd_hyper
from keras_largeout.optimizers.row_sparse import RowSparse


@keras.saving.register_keras_serializable(package="keras_largeout")
class SGD(RowSparse, keras.optimizers.SGD):
    """`keras.optimizers.SGD` that updates just the rows that a sparse gradient lists.

    With momentum, the velocity of a row decays, and moves the row, only in the steps that have the row in
    their batch.

    Args:
        *args: arguments of `keras.optimizers.SGD`. `weight_decay` acts on the rows of the batch.
        stochastic_rounding: bool, whether rows of bfloat16 are rounded stochastically, so that small steps
            move them in the mean. Defaults to `False`: to nearest.
        rounding_seed: int in `[0, 2^32)`, of the random bits of this rounding. Defaults to `0`.
        **kwargs: arguments of `keras.optimizers.SGD`.

    Raises:
        ValueError: an argument that Keras refuses; when weights that are updated by rows are seen: XLA, a
            dtype other than float32 and bfloat16, `stochastic_rounding` where nothing is rounded by rows, a
            constraint that does not act on each row by itself, or `use_ema` for a table in files, by columns,
            of bfloat16 or over several machines.

    Example:

    ```python
    model.compile(keras_largeout.optimizers.SGD(0.1, momentum=0.9), loss=head.loss)
    ```

    References:
        - [Sutskever et al., 2013](https://proceedings.mlr.press/v28/sutskever13.html), section 2.
    """

    @property
    def row_rule(self) -> str:
        if self.momentum == 0:
            return "sgd"
        return "nesterov" if self.nesterov else "momentum"

    @property
    def slot_names(self) -> tuple[str, ...]:
        return () if self.momentum == 0 else ("momentum",)

    def row_hyper(self, learning_rate: Any, decay: Any) -> Any:
        if self.momentum == 0:
            return sgd_hyper(learning_rate, decay)
        return momentum_hyper(learning_rate, self.momentum, decay)
