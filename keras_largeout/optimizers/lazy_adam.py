from typing import Any

import keras

from keras_largeout.ops.row_update import adam_alpha, lazy_adam_hyper
from keras_largeout.optimizers.row_sparse import RowSparse


@keras.saving.register_keras_serializable(package="keras_largeout")
class LazyAdam(RowSparse, keras.optimizers.Adam):
    """`keras.optimizers.Adam` that updates just the rows that a sparse gradient lists.

    The moments of a row decay, and move the row, only in the steps that have the row in their batch; Keras's
    Adam reads and writes the whole table and both its moments in every step. The bias correction counts all
    steps.

    A row that rarely occurs therefore learns more slowly: under Adam its momentum moves it on for some
    `1 / (1 - beta_1)` steps after each of its batches. A larger learning rate for tables of rare rows makes
    up for it (`keras.optimizers.MultiOptimizer`).

    Args:
        *args: arguments of `keras.optimizers.Adam`. `amsgrad` is for dense weights alone.
            `weight_decay` acts on the rows of the batch.
        stochastic_rounding: bool, whether rows of bfloat16 are rounded stochastically, so that small steps
            move them in the mean. Defaults to `False`: to nearest.
        rounding_seed: int in `[0, 2^32)`, of the random bits of this rounding. Defaults to `0`.
        **kwargs: arguments of `keras.optimizers.Adam`.

    Raises:
        ValueError: an argument that Keras refuses; when weights that are updated by rows are seen: `amsgrad`,
            XLA, a dtype other than float32 and bfloat16, `stochastic_rounding` where nothing is rounded by
            rows, a constraint that does not act on each row by itself, or `use_ema` for a table in files, by
            columns, of bfloat16 or over several machines.

    Example:

    ```python
    model.compile(keras_largeout.optimizers.LazyAdam(1e-3), loss=head.loss)
    ```

    References:
        - [Kingma and Ba, 2014](http://arxiv.org/abs/1412.6980), section 2.
    """

    row_rule, slot_names = "lazy_adam", ("momentum", "velocity")

    def check_rows(self, weight: keras.Variable) -> None:
        super().check_rows(weight)
        if self.amsgrad:
            raise ValueError(
                "`amsgrad` must be False for weights that are updated by rows. "
                f"Received: amsgrad={self.amsgrad} and row gradients for {weight.name}"
            )

    def in_one_pass(self, copy: Any) -> bool:
        return not self.amsgrad and super().in_one_pass(copy)

    def row_hyper(self, learning_rate: Any, decay: Any) -> Any:
        alpha = adam_alpha(learning_rate, self.beta_1, self.beta_2, self.iterations + 1)
        return lazy_adam_hyper(alpha, self.beta_1, self.beta_2, self.epsilon, decay)
