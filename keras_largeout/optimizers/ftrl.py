from typing import Any

import keras

from keras_largeout.ops.row_update import ftrl_hyper
from keras_largeout.optimizers.row_sparse import RowSparse


@keras.saving.register_keras_serializable(package="keras_largeout")
class Ftrl(RowSparse, keras.optimizers.Ftrl):
    """`keras.optimizers.Ftrl` that updates just the rows that a sparse gradient lists.

    Args:
        *args: arguments of `keras.optimizers.Ftrl`. The shrinkage and `weight_decay` act on the
            rows of the batch.
        stochastic_rounding: bool, whether rows of bfloat16 are rounded stochastically, so that small steps
            move them in the mean. Defaults to `False`: to nearest.
        rounding_seed: int in `[0, 2^32)`, of the random bits of this rounding. Defaults to `0`.
        **kwargs: arguments of `keras.optimizers.Ftrl`.

    Raises:
        ValueError: an argument that Keras refuses; when weights that are updated by rows are seen: XLA, a
            dtype other than float32 and bfloat16, `stochastic_rounding` where nothing is rounded by rows, a
            constraint that does not act on each row by itself, or `use_ema` for a table in files, by columns,
            of bfloat16 or over several machines.

    Example:

    ```python
    optimizer = keras_largeout.optimizers.Ftrl(0.05, l1_regularization_strength=1e-3)
    model.compile(optimizer, "binary_crossentropy")
    ```

    References:
        - [McMahan et al., 2013](https://research.google.com/pubs/archive/41159.pdf), algorithm 1.
    """

    row_rule, slot_names = "ftrl", ("accumulator", "linear")

    def row_hyper(self, learning_rate: Any, decay: Any) -> Any:
        return ftrl_hyper(
            learning_rate,
            self.learning_rate_power,
            self.l1_regularization_strength,
            self.l2_regularization_strength,
            self.l2_shrinkage_regularization_strength,
            self.beta,
            decay,
        )
