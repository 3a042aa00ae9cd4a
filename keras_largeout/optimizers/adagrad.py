from typing import Any

import keras

from keras_largeout.ops.row_update import adagrad_hyper
from keras_largeout.optimizers.row_sparse import RowSparse


@keras.saving.register_keras_serializable(package="keras_largeout")
class Adagrad(RowSparse, keras.optimizers.Adagrad):
    """`keras.optimizers.Adagrad` that updates just the rows that a sparse gradient lists.

    Adagrad does nothing where the gradient is zero, so this is exactly Keras's Adagrad, at the cost of the
    rows touched.

    Args:
        *args: arguments of `keras.optimizers.Adagrad`. `weight_decay` acts on the rows of the batch.
        stochastic_rounding: bool, whether rows of bfloat16 are rounded stochastically, so that small steps
            move them in the mean. Defaults to `False`: to nearest.
        rounding_seed: int in `[0, 2^32)`, of the random bits of this rounding. Defaults to `0`.
        **kwargs: arguments of `keras.optimizers.Adagrad`.

    Raises:
        ValueError: an argument that Keras refuses; when weights that are updated by rows are seen: XLA, a
            dtype other than float32 and bfloat16, `stochastic_rounding` where nothing is rounded by rows, a
            constraint that does not act on each row by itself, or `use_ema` for a table in files, by columns,
            of bfloat16 or over several machines.

    Example:

    ```python
    model.compile(keras_largeout.optimizers.Adagrad(0.05), loss=head.loss)
    ```

    References:
        - [Duchi et al., 2011](http://www.jmlr.org/papers/volume12/duchi11a/duchi11a.pdf), section 1.3.
    """

    row_rule, slot_names = "adagrad", ("accumulator",)

    def row_hyper(self, learning_rate: Any, decay: Any) -> Any:
        return adagrad_hyper(learning_rate, self.epsilon, decay)
